"""`python -m scone` is the command line `scone`."""

import sys

from scone.cli import main

if __name__ == "__main__":
    sys.exit(main())
