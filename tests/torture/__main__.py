"""Torture: hours of bad luck in under an hour. `python -m tests.torture`, `make torture`.

Every stage (tests/torture/stages) runs in a process of its own, a few at a time. A failed check, a crash and a hang
are failures, told at the end with what was going on. Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from .tally import COUNTS, Counted, Stage, Tally, read_tally

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3.0  # times its minutes after which a stage counts as hanging


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PATTERN", help="stages whose name contains this, or matches it as a glob")
    parser.add_argument("--scale", type=float, default=1.0, help="of each stage's time (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="stages at once (default: cores)")
    parser.add_argument(
        "--grace",
        type=float,
        default=180,
        help=f"seconds beyond {PATIENCE:.0f} times its own after which a stage hangs",
    )
    parser.add_argument("--stages", default="tests.torture.stages", metavar="PACKAGE", help="where the stages are")
    parser.add_argument("--list", action="store_true", help="print the stages and stop")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    return parser.parse_args()


def load_stages(package: str) -> list[Stage]:
    """All stages of the modules of a package, the longest first."""
    found = []
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        found += [value for value in vars(importlib.import_module(module.name)).values() if isinstance(value, Stage)]
    return sorted(found, key=lambda stage: -stage.minutes)


def run_here(stage: Stage, given: argparse.Namespace, folder: Path) -> int:
    """In the process of the stage."""
    faulthandler.enable()
    tally = Tally(folder, stage.name, seconds=60 * stage.minutes * given.scale, seed=given.seed)
    stage.run(tally)
    tally.finish()
    return 0


def run_apart(stage: Stage, given: argparse.Namespace, folder: Path, children: Children) -> tuple[Counted, float]:
    """In a process of its own; how that ended is among the failures."""
    folder.mkdir()
    command = [
        sys.executable, "-m", "tests.torture", "--child", stage.name, str(folder), "--seed", str(given.seed),
        "--scale", str(given.scale), "--stages", given.stages,
    ]  # fmt: skip
    began, output = time.monotonic(), folder / "output"
    end = children.run(command, output, PATIENCE * 60 * stage.minutes * given.scale + given.grace)
    counted, last = read_tally(folder)
    if end or not counted.done:
        tail = output.read_text(encoding="utf-8", errors="replace")[-3000:]
        counted.failures += 1
        counted.told.append(f"{end or 'it stopped early'}, at: {last}\n{tail}")
    return counted, time.monotonic() - began


class Children:
    """The processes of the stages, each with all that it has started."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(self, command: Sequence[str], output: Path, seconds: float) -> str | None:
        """How the command ended, None where it ended well."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._running.add(process)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no end after {seconds:.0f} s"
        finally:
            self._running.discard(process)
            _end(process)
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}" if code else None

    def end(self) -> None:
        """End all of them."""
        for process in list(self._running):
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # the group outlives its leader as long as somebody is in it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def report(found: dict[str, tuple[Counted, float]]) -> int:
    """Failures in full, then the table; the exit code."""
    for name, (counted, _) in found.items():
        for words in counted.told:
            print(f"\nFAILED in {name}: {words}")
    for name, (counted, _) in found.items():
        for words in counted.notes:
            print(f"\n{name}: {words}")
    heads = (*COUNTS, "failures", "seconds")
    print(f"\n{'stage':<28}" + "".join(f"{head:>20}" for head in heads))
    sums = dict.fromkeys(heads, 0.0)
    for name, (counted, seconds) in found.items():
        row = {**counted.counts, "failures": counted.failures, "seconds": seconds}
        print(f"{name:<28}" + "".join(f"{row[head]:>20,.0f}" for head in heads))
        sums = {head: sums[head] + row[head] for head in heads}
    print(f"{'all':<28}" + "".join(f"{sums[head]:>20,.0f}" for head in heads))
    return 1 if sums["failures"] else 0


def main() -> int:
    """Run the stages that are asked for."""
    given = options()
    stages = load_stages(given.stages)
    if given.child is not None:
        name, folder = given.child
        return run_here(next(stage for stage in stages if stage.name == name), given, Path(folder))
    pattern = given.only or ""
    stages = [stage for stage in stages if pattern in stage.name or fnmatch.fnmatch(stage.name, pattern)]
    if given.list or not stages:
        print("\n".join(f"{stage.minutes:4.0f} min  {stage.name}" for stage in stages) or "no such stage")
        return 0 if stages else 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found: dict[str, tuple[Counted, float]] = {}
    children = Children()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        futures = {
            pool.submit(run_apart, stage, given, Path(folder) / str(i), children): stage
            for i, stage in enumerate(stages)
        }
        try:
            for future in as_completed(futures):
                name = futures[future].name
                found[name] = future.result()
                print(f"{found[name][1]:6.0f} s  {name}: {found[name][0].failures} failures", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            children.end()
            print("interrupted", file=sys.stderr)
            return 130
    return report({stage.name: found[stage.name] for stage in stages})


if __name__ == "__main__":
    sys.exit(main())
