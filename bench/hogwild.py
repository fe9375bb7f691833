"""The shared state against a mutex and torch indexing, and asynchronous workers against batched chains.

    python -m bench hogwild                both tables (about four minutes on two cores)
    python -m bench hogwild --only state   updates per second of the state
    python -m bench hogwild --only chains  block updates per second of Gibbs sampling on the embedded masked LM
    python -m bench hogwild --quick        a twentieth of the work, to see that it runs

Methods take short turns, so that a noisy machine disturbs all of them alike. A speed is the median of the turns; a ratio
is taken turn by turn before its median and quartiles. `--calm 0.2` leaves out the rounds of turns in which other
processes took more than a fifth of the cores.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.machine import describe
from bench.tables import markdown
from scone.embedded import load_masked_lm
from scone.lm import MaskedLM
from scone.lookahead import GibbsPool
from scone.lookahead.pool import GibbsStats
from scone_kernels import HogwildState

ROWS, POSITIONS, BLOCK = 8, 64, 4
BATCHED = "1 worker, all chains in a pass"
NATIVE = Path(__file__).parents[1] / "csrc" / "tests" / "hogwild_bench.cpp"

Update = Callable[[Tensor, Tensor, Tensor], None]
"""One update of a worker's part of the state: rows (n,), starts (n,), tokens (n, block)."""


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench hogwild", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["state", "chains"], help="one of the two tables")
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="turns of each way of sampling, and a third of those of the state (default 5)",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2, 4, 8], help="of the state's tables (default 1 2 4 8)"
    )
    parser.add_argument("--iterations", type=int, default=12, help="blocks drawn in each chain (default 12)")
    parser.add_argument(
        "--calm", type=float, default=1.0, help="leave out rounds of the state in which others took more (default 1)"
    )
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work")
    options = parser.parse_args(argv)
    print(f"# Hogwild\n\n`python -m bench hogwild {' '.join(argv)}`\n\n{describe()}\n")
    repeats, share = (1, 0.05) if options.quick else (options.repeats, 1.0)
    others = Others()
    if options.only != "chains":
        print(state_table(options.threads, 3 * repeats, seconds=0.05 * share, calm=options.calm), flush=True)
        print(native_table(options.threads, 3 * repeats, seconds=0.05 * share), flush=True)
    if options.only != "state":
        mlm = MaskedLM(*load_masked_lm())
        for chains in (1, 4, 16):
            print(chains_table(mlm, chains, repeats, iterations=4 if options.quick else options.iterations), flush=True)
    print(f"Meanwhile other processes took {others.share():.0%} of the cores: the less, the better the figures.")
    return 0


class Others:
    """Watches the processor time that other processes take from now on."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), self._seconds()

    def share(self) -> float:
        """The part of all cores that they took since then; NaN where /proc/stat does not tell."""
        return (self._seconds() - self._before) / (time.perf_counter() - self._began) / (os.cpu_count() or 1)

    def _seconds(self) -> float:
        """Of all processes but this one and those that it has waited for."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return math.nan
        user, nice, system, _idle, _wait, irq, softirq = map(int, stat.read_text().split()[1:8])
        own = os.times()
        ours = own.user + own.system + own.children_user + own.children_system
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK") - ours


def lock_free(state: HogwildState) -> Update:
    """HogwildState: read all of it, write a block in each row."""

    def update(rows: Tensor, starts: Tensor, tokens: Tensor) -> None:
        state.write(rows, starts, tokens, state.read())

    return update


def indexing(plain: Tensor) -> Update:
    """The same on a plain tensor with torch, without versions and unsafe from several threads."""
    offsets = torch.arange(BLOCK)

    def update(rows: Tensor, starts: Tensor, tokens: Tensor) -> None:
        plain.clone()
        plain[rows[:, None], starts[:, None] + offsets] = tokens

    return update


def mutex(plain: Tensor, lock: threading.Lock) -> Update:
    """The same, made safe by a mutex that is held for the read and for the write, not in between.

    Computing the places before the lock is taken, or writing them with `put_`, is slower from several threads: they
    then queue for the GIL instead, which each operation of torch lets go.
    """
    offsets = torch.arange(BLOCK)

    def update(rows: Tensor, starts: Tensor, tokens: Tensor) -> None:
        with lock:
            plain.clone()
        with lock:
            plain[rows[:, None], starts[:, None] + offsets] = tokens

    return update


def mutex_on_windows(plain: Tensor, lock: threading.Lock) -> Update:
    """The same through a view of all possible blocks, so that no index is computed.

    torch advises against writing through a view that overlaps itself; it is right here as long as the blocks of one call
    do not overlap.
    """
    windows = plain.unfold(1, BLOCK, 1)  # (rows, starts, block)

    def update(rows: Tensor, starts: Tensor, tokens: Tensor) -> None:
        with lock:
            plain.clone()
        with lock:
            windows[rows, starts] = tokens

    return update


def workers_of(method: str, threads: int, contended: bool) -> list[Update]:
    """One update function for each thread: all on the same rows, or each on its own part of one state."""
    parts = [slice(0, ROWS) if contended else slice(ROWS * i, ROWS * (i + 1)) for i in range(threads)]
    tokens = torch.zeros(ROWS * threads, POSITIONS, dtype=torch.int64)
    if method in ("cpu", "reference"):
        state = HogwildState(tokens, backend=method)
        return [lock_free(state[part]) for part in parts]
    if method == "indexing":
        return [indexing(tokens[part]) for part in parts]
    lock = threading.Lock()
    return [{"mutex": mutex, "windows": mutex_on_windows}[method](tokens[part], lock) for part in parts]


def updates_per_second(workers: list[Update], seconds: float) -> float:
    """Block updates of all workers together, each in its own thread, from the first one's start to the last one's end."""
    rows, tokens = torch.arange(ROWS), torch.arange(ROWS * BLOCK).view(ROWS, BLOCK)
    starts = [torch.randint(0, POSITIONS - BLOCK + 1, (ROWS,)) for _ in range(16)]
    ready = threading.Barrier(len(workers))
    done: list[tuple[float, int, float]] = []  # began, updates, ended
    running = True

    def work(update: Update) -> None:
        ready.wait()
        began, count = time.perf_counter(), 0
        while running:
            update(rows, starts[count % 16], tokens)
            count += 1
        done.append((began, count, time.perf_counter()))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    running = False
    for thread in threads:
        thread.join()
    began, counts, ended = zip(*done)
    return sum(counts) / (max(ended) - min(began))


def state_table(thread_counts: list[int], repeats: int, seconds: float, calm: float) -> str:
    """Python threads: updates per second, and how many times the others that is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors of this size are never shared out
    methods = ("cpu", "mutex", "windows", "indexing", "reference")
    rows = []
    for contended in (True, False):
        for threads in thread_counts:
            speeds: dict[str, list[float]] = {method: [] for method in methods}
            for _ in range(4 * repeats):
                others = Others()
                turn = {m: updates_per_second(workers_of(m, threads, contended), seconds) for m in methods}
                if not others.share() > calm:
                    for method, speed in turn.items():
                        speeds[method].append(speed)
                if len(speeds["cpu"]) == repeats:
                    break
            place = "contended" if contended else "apart"
            if not speeds["cpu"]:  # no round was calm
                rows.append([place, str(threads), *["–"] * (2 * len(methods) - 1)])
                continue
            middle = {method: statistics.median(values) for method, values in speeds.items()}
            against = [ratio(speeds["cpu"], speeds[method]) for method in methods[1:]]
            rows.append([place, str(threads), *(f"{middle[m] / 1000:.1f}" for m in methods), *against])
    torch.set_num_threads(before)
    rivals = ["mutex", "mutex, windows", "indexing", "same service"]
    header = ["rows", "threads", "HogwildState", *rivals, *(f"÷ {rival}" for rival in rivals)]
    note = (
        f"Thousand updates per second from Python threads; one update reads {ROWS} rows of {POSITIONS} positions and "
        f"writes a block of {BLOCK} tokens in each. *mutex*: `threading.Lock` around a plain int64 tensor; *windows*: the "
        "same through an overlapping view. *indexing*: torch indexing without a lock. *same service*: "
        '`HogwildState(backend="reference")`, a mutex that also keeps versions and measures staleness.\n'
    )
    return f"## The state\n\n{note}\n{markdown(header, rows)}\n"


def ratio(ours: list[float], theirs: list[float]) -> str:
    """The median ratio, turn by turn, and its quartiles."""
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):.1f} ({low:.1f}–{high:.1f})"


def native_table(thread_counts: list[int], repeats: int, seconds: float) -> str:
    """The same without Python, where a critical section is a few nanoseconds long."""
    title = "## The state without Python\n\n"
    if shutil.which("g++") is None:
        return title + "Not measured: needs g++.\n"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bench"
        include = NATIVE.parents[1] / "include"
        subprocess.run(["g++", "-std=c++20", "-O2", "-pthread", f"-I{include}", NATIVE, "-o", program], check=True)
        for place in ("contended", "apart"):
            for threads in thread_counts:
                speeds: dict[str, list[float]] = {}
                for _ in range(repeats):
                    arguments = [threads, seconds, POSITIONS, BLOCK, place]
                    printed = subprocess.check_output([program, *map(str, arguments)], text=True)
                    for line in printed.splitlines():
                        name, value = line.split()
                        speeds.setdefault(name, []).append(float(value))
                cells = [f"{statistics.median(values) / 1e6:.1f}" for values in speeds.values()]
                against = [ratio(speeds["lock-free"], speeds[name]) for name in ("same-mutex", "std::mutex")]
                rows.append([place, str(threads), *cells, *against])
    note = (
        f"Million updates per second from C++ threads; one update reads one row of {POSITIONS} positions and writes one "
        f"block of {BLOCK}. *plain store*: no compare-and-swap, so versions get lost. *same, mutex*: versions and staleness "
        "too, but under `std::mutex`. *std::mutex*: around plain memory, which it copies; no versions, no staleness.\n"
    )
    header = [
        "rows",
        "threads",
        "lock-free",
        "plain store",
        "same, mutex",
        "std::mutex",
        "÷ same, mutex",
        "÷ std::mutex",
    ]
    return f"{title}{note}\n{markdown(header, rows)}\n"


def chains_table(mlm: MaskedLM, chains: int, repeats: int, iterations: int) -> str:
    """Gibbs sampling with a masked LM: who updates, and how many chains go into one forward pass."""
    tokens, span = beginnings(mlm, chains)
    ways: dict[str, dict[str, Any]] = {BATCHED: {}}
    if chains > 1:
        ways["1 worker, a chain a pass"] = {"batch": 1}
        ways["2 workers, a chain a pass"] = {"workers": 2, "batch": 1}
        ways["2 workers, half the chains a pass"] = {"workers": 2, "batch": chains // 2}
        ways["2 workers, half the chains a pass, 2 threads each"] = {"workers": 2, "batch": chains // 2, "threads": 2}
    ways["2 workers, all chains in a pass"] = {"workers": 2}
    ways["2 workers, all chains in a pass, 2 threads each"] = {"workers": 2, "threads": 2}
    ways["8 workers, a chain a pass"] = {"workers": 8, "batch": 1}
    ways["1 worker, a pass for 4 blocks"] = {"sync_every": 4}
    ways["2 workers, a pass for 4 blocks"] = {"workers": 2, "sync_every": 4}
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, GibbsStats] = {}
    for repeat in range(repeats):
        for way, options in ways.items():
            pool = GibbsPool(masked(mlm), mlm.draw, iterations=iterations, block=2, **options)
            began = time.perf_counter()
            last[way] = pool.run(tokens, seed=torch.arange(chains) + 1000 * repeat, span=span).stats
            speeds[way].append(chains * iterations / (time.perf_counter() - began))
    rows = []
    for way, stats in last.items():
        unseen = f"{stats.overwritten / (stats.updates * 2):.0%}"
        speed = f"{statistics.median(speeds[way]):.0f}"
        rows.append([way, speed, ratio(speeds[way], speeds[BATCHED]), f"{stats.mean_staleness:.1f}", unseen])
    note = (
        f"Block updates per second of {chains} chain{'s' * (chains > 1)} of {tokens.shape[1]} positions, of which 25 are "
        f"drawn in blocks of 2, {iterations} blocks a chain; {torch.get_num_threads()} threads in all, shared out among "
        "the workers. *staleness*: versions that a snapshot was behind, on average. *overwritten*: tokens replaced unseen.\n"
    )
    table = markdown(["way", "updates/s", "÷ batched", "staleness", "overwritten"], rows)
    return f"## Asynchronous workers against batched chains: {chains}\n\n{note}\n{table}\n"


def beginnings(mlm: MaskedLM, chains: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Chains (R, T) that begin as a prompt and 25 masks, and their span."""
    prompt = [*mlm.opening, *mlm.encode("the movie that we saw last night was")]
    row = [*prompt, *[mlm.mask_id] * 25, *mlm.closing]
    span = (torch.full((chains,), len(prompt)), torch.full((chains,), 25))
    return torch.tensor([row] * chains), span


def masked(mlm: MaskedLM) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Conditionals at some positions of each row, with those positions masked."""

    def conditionals(tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        own = torch.arange(len(tokens))[:, None].expand_as(positions)
        hidden = tokens.scatter(1, positions, mlm.mask_id)
        return mlm.hidden(hidden, torch.ones_like(tokens), own.flatten(), positions.flatten())

    return conditionals
