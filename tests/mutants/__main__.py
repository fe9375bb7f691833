"""Breaks the package one line at a time and says whether the tests notice: `python -m tests.mutants`, `make mutants`.

Every mutant of the list (see catalogue.py) is applied to a copy of the repository, and the tests that ought to see it
are run. The repository itself is never changed. Exit code 1 if a mutant survived or could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import queue
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from .catalogue import Mutant, areas, load_all
from .workshop import PASSED, Verdict, Workshop, workshops

Item = TypeVar("Item")
OUTCOMES = ("killed", "survived", "broken")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--area", action="append", choices=areas(), metavar="NAME", help=f"one of {', '.join(areas())}")
    parser.add_argument(
        "--only", metavar="PATTERN", help="mutants whose name or file contains this, or matches it as a glob"
    )
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="copies that work at once")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds after which a mutant counts as killed")
    parser.add_argument(
        "--folder", type=Path, help="work there and leave it, so that the next run need not build again"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list[Mutant]:
    """The mutants that are asked for."""

    def wanted(mutant: Mutant) -> bool:
        text = f"{mutant.name} {mutant.file}"
        return given.only is None or given.only in text or fnmatch.fnmatch(text, given.only)

    return [mutant for mutant in load_all() if wanted(mutant) and (not given.area or mutant.area in given.area)]


def failing_without(places: tuple[Workshop, ...], mutants: list[Mutant]) -> dict[tuple[str, ...], str]:
    """Lists of tests that fail without any mutant, with what they print: they kill nothing."""
    failing: dict[tuple[str, ...], str] = {}
    lists = shared(sorted({(mutant.tests, tuple(sorted(mutant.env.items()))) for mutant in mutants}))

    def work(place: Workshop) -> None:
        for tests, env in lists():
            code, output = place.test(tests, dict(env))
            if code != PASSED:
                failing[tests] = output[-2000:]

    at_once(places, work)
    return failing


def shared(items: Iterable[Item]) -> Callable[[], Iterator[Item]]:
    """Iterators that take what is left, each in its own thread.

    >>> left = shared("ab")
    >>> next(left()), next(left())
    ('a', 'b')
    """
    rest: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        rest.put(item)

    def left() -> Iterator[Item]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield rest.get_nowait()

    return left


def at_once(places: tuple[Workshop, ...], work: Callable[[Workshop], None]) -> None:
    """Work in all of the copies, a thread each."""
    with ThreadPoolExecutor(len(places)) as pool:
        futures = [pool.submit(work, place) for place in places]
        try:
            for future in futures:
                future.result()
        except BaseException:
            places[0].children.end()  # the threads end with what they wait for
            raise


def judge_all(places: tuple[Workshop, ...], mutants: list[Mutant], report) -> None:
    """Share the mutants among the copies. Those that need a build go one after the other to the copy that was built."""
    # By file: what a mutant has changed is compiled again when it is put back.
    built = sorted((mutant for mutant in mutants if mutant.build), key=lambda mutant: mutant.file)
    rest = shared(mutant for mutant in mutants if not mutant.build)

    def work(place: Workshop) -> None:
        for mutant in built if place is places[0] else ():
            report(mutant, place.judge(mutant))
        if built and place is places[0] and (reason := place.build()):
            raise RuntimeError(f"the extension does not build without a mutant:\n{reason}")
        for mutant in rest():
            report(mutant, place.judge(mutant))

    at_once(places, work)


def main() -> int:
    """Try the mutants and print what became of them."""
    given = options()
    mutants = chosen(given)
    if given.list or not mutants:
        print("\n".join(f"{mutant.area:<10} {mutant.file}: {mutant.name}" for mutant in mutants) or "no such mutant")
        return 0 if mutants else 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, found = time.monotonic(), {}

    def report(mutant: Mutant, verdict: Verdict) -> None:
        found[mutant] = verdict
        words = f" ({verdict.words})" if verdict.words else ""
        print(f"{verdict.outcome:<8} {verdict.seconds:6.1f} s  {mutant.area}: {mutant.name}{words}", flush=True)

    print(f"{len(mutants)} mutants: copying{' and building' if any(m.build for m in mutants) else ''}", flush=True)
    try:
        with workshops(given, build=any(mutant.build for mutant in mutants)) as places:
            print("the tests without a mutant", flush=True)
            failing = failing_without(places, mutants)
            for mutant in mutants:
                if mutant.tests in failing:
                    report(mutant, Verdict("broken", 0.0, f"its tests fail without it:\n{failing[mutant.tests]}"))
            judge_all(places, [mutant for mutant in mutants if mutant not in found], report)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return summary(found, time.monotonic() - began)


def summary(found: dict[Mutant, Verdict], seconds: float) -> int:
    """Print a table by area and what was not killed; the exit code."""
    print(f"\n{'area':<12}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for area in sorted({mutant.area for mutant in found}):
        counts = Counter(verdict.outcome for mutant, verdict in found.items() if mutant.area == area)
        print(f"{area:<12}" + "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES))
    left = {mutant: verdict.outcome for mutant, verdict in found.items() if verdict.outcome != "killed"}
    print(f"{len(found) - len(left)} of {len(found)} killed in {seconds:.0f} s")
    for mutant, outcome in left.items():
        print(f"  {outcome}: {mutant.area}: {mutant.name} ({mutant.file})")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
