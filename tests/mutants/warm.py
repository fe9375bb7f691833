"""A process that has imported what never changes, and runs pytest in forks of itself.

`python tests/mutants/warm.py` (workshop.py starts it) reads requests, a line of JSON each: {"folder", "tests", "output"}. It answers each with
the process that was started and then with its exit code, a line each. Nothing of the package itself is imported before the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

# What most tests import: most of the seconds of a short test are these.
STEADY = (
    "torch", "torch._dynamo", "torch.testing", "transformers", "transformers.generation", "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama", "transformers.models.bert.modeling_bert",
    "transformers.models.roberta.modeling_roberta", "transformers.models.gpt2.modeling_gpt2", "transformers.models.auto",
    "pytest", "hypothesis", "numpy", "safetensors.torch", "tokenizers", "rich.console",
)  # fmt: skip


def main() -> None:
    """Serve until the input ends."""
    sys.path.pop(0)  # the folder of this file, whose names are nobody else's business
    for name in STEADY:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    answers.write("ready\n")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(**json.loads(line))
        answers.write(f"{child}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


def run(folder: str, tests: list[str], output: str) -> None:
    """In the fork: pytest as `python -m pytest` would be, in a session of its own."""
    import pytest

    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.dont_write_bytecode = True
    sys.path[:0] = [folder]
    code = 3
    try:
        code = int(pytest.main(["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
