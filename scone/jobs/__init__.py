"""Many prompts: a file of prompts in, a file of texts out, with resume, and on many machines where there are some.

    write_file(engine, "prompts.jsonl", "texts.jsonl", max_new_tokens=25, seed=0)

`lines` reads prompts, `worker` writes the texts of a batch, `ledger` keeps what is done, `run` puts them together, and
`cluster` spreads work over Ray.
"""

from scone.jobs.job import Job
from scone.jobs.run import do, here, look_through, write_file
from scone.jobs.worker import Worker

__all__ = ["Job", "Worker", "do", "here", "look_through", "write_file"]
