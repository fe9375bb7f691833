"""A file of prompts becomes a file of texts; a job that was stopped goes on where it was."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from scone.decode import Scone
from scone.jobs import write_file

PROMPTS = """\
{"prompt": "This lamp is", "id": "lamp"}
"Our new kettle"
{"prompt": ""}
{"messages": [{"role": "user", "content": "Describe a chair."}], "id": "chair"}
"""


def stop_early(done: int, total: int) -> None:
    """Stands for Ctrl-C, a kill or a power cut."""
    if done:
        raise KeyboardInterrupt


engine = Scone.from_pretrained(target="positive")
options = {"samples": 2, "max_new_tokens": 8, "batch": 4, "bad_lines": "skip"}

with TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "prompts.jsonl").write_text(PROMPTS)
    write_file(engine, folder / "prompts.jsonl", folder / "texts.jsonl", **options)
    for line in (folder / "texts.jsonl").read_text().splitlines():
        text = json.loads(line)
        key = text.get("id", text["line"])
        print(f"{key:>5}  {text['score']:.2f}  {text['text']!r}" if "text" in text else f"{key:>5}  {text['error']}")

    try:
        write_file(engine, folder / "prompts.jsonl", folder / "again.jsonl", progress=stop_early, **options)
    except KeyboardInterrupt:
        write_file(engine, folder / "prompts.jsonl", folder / "again.jsonl", **options)
    same = (folder / "texts.jsonl").read_text() == (folder / "again.jsonl").read_text()
    print("the same file after a stop:", same)
