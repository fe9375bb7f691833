"""Processes that are killed while they write: nothing is lost, and nothing half-written is ever read."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scone.embedded.cache import cached, is_whole
from scone.evaluate.records import Records
from tests.torture.tally import Tally, stage

BUILDS = """
import sys
from pathlib import Path
from scone.embedded.cache import cached

def build(folder):
    for part in range(40):
        (folder / f"part-{part}").write_bytes(bytes(200_000))

print("ready", flush=True)
for _ in range(10_000):
    folder = cached("model", build, root=Path(sys.argv[1]))
    (folder / "part-7").write_bytes(b"damaged")
"""
APPENDS = """
import sys
from pathlib import Path
from scone.evaluate.records import Records

records = Records(Path(sys.argv[1]) / "samples.jsonl")
print("ready", flush=True)
for i in range(len(records), 10**9):
    records.append({"key": str(i), "text": "x" * (i * 7919 % 50_000)})
    print(i, flush=True)
    if i % 20 == 0:
        records.sort(lambda record: int(record["key"]))
"""


@stage(minutes=4)
def builders_that_are_killed(tally: Tally) -> None:
    """Two at once, each killed at a random moment."""
    while tally.going():
        with tempfile.TemporaryDirectory() as name, tally.trial("faults injected", "two builders are killed"):
            root = Path(name)
            for process in [_begin(BUILDS, root) for _ in range(2)]:
                time.sleep(tally.random.random() / 2)
                process.kill()
                process.communicate()
            folder = cached("model", lambda fresh: (fresh / "part").write_bytes(b"whole") and None, root=root)
            assert is_whole(folder)
            assert {path.name for path in root.iterdir()} <= {"model", "model.lock"}


@stage(minutes=4)
def writers_that_are_killed(tally: Tally) -> None:
    """Every record that was said to be stored is there, and the next writer goes on behind it."""
    while tally.going():
        with tempfile.TemporaryDirectory() as name:
            said = -1
            for _ in range(3):
                with tally.trial("faults injected", f"a writer of records is killed, after {said}"):
                    process = _begin(APPENDS, Path(name))
                    time.sleep(tally.random.random())
                    process.kill()
                    said = max([said, *map(int, process.communicate()[0].split("\n")[:-1])])
                    records = Records(Path(name) / "samples.jsonl")
                    assert len(records) > said and all(str(i) in records for i in range(said + 1))
                    for line in (Path(name) / "samples.jsonl").read_text().splitlines():
                        json.loads(line)


def _begin(program: str, folder: Path) -> subprocess.Popen[str]:
    """A process that is ready, with more to say."""
    command = [sys.executable, "-c", program, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process
