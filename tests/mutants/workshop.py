"""A copy of the repository in which mutants are applied, built and tested. The repository itself is only read."""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .catalogue import ROOT, Mutant

PASSED, FAILED = (
    0,
    1,
)  # pytest's exit codes for "all passed" and "some failed"; above are errors of use or of collection


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed, survived or broken, after how many seconds, and what there is to say about it."""

    outcome: str
    seconds: float
    words: str = ""


class Children:
    """The processes under way, each in a session of its own, so that all they started can be ended with them."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, command: Sequence[str], cwd: Path, env: dict[str, str], timeout: float) -> tuple[int | None, str]:
        """The exit code, None after `timeout` seconds, and what the command printed."""
        with self._lock:
            if self._closed:
                raise KeyboardInterrupt
            child = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip
            self._running.add(child)
        try:
            output = child.communicate(timeout=timeout)[0]
            return child.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            _end(child)
            with self._lock:
                self._running.discard(child)
                if self._closed:  # ended from outside: what the tests said means nothing
                    raise KeyboardInterrupt

    def start(self, command: Sequence[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen:
        """A process that is talked to, and ended with the others."""
        with self._lock:
            if self._closed:
                raise KeyboardInterrupt
            child = subprocess.Popen(
                command, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(child)
            return child

    def end(self) -> None:
        """End what runs; nothing is started any more."""
        with self._lock:
            self._closed = True
            for child in self._running:
                _end(child)


def _end(child: subprocess.Popen) -> None:
    """Kill a process and all of its session that is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Warm:
    """A process that has imported torch and the like, and runs tests in forks of itself; started when it is first used."""

    def __init__(self, children: Children, env: dict[str, str]) -> None:
        self._children, self._env = children, env
        self._process: subprocess.Popen | None = None

    def run(self, folder: Path, tests: Sequence[str], timeout: float) -> tuple[int | None, str]:
        """pytest's exit code, None after `timeout` seconds, and what it printed."""
        if self._process is None:
            command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
            self._process = self._children.start(command, folder, self._env)
            assert self._answer() == "ready", "the process that runs the tests did not begin"
        output = folder.with_name(f"{folder.name}.output")
        assert self._process.stdin is not None
        request = {"folder": str(folder), "tests": list(tests), "output": str(output)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        child = int(self._answer())
        late = threading.Event()

        def give_up() -> None:
            late.set()
            _end_group(child)

        clock = threading.Timer(timeout, give_up)
        clock.start()
        code = int(self._answer())
        clock.cancel()
        _end_group(child)  # what it has left behind
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        return (None, "") if late.is_set() else (code, text)

    def _answer(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:  # ended from outside, or it died
            raise KeyboardInterrupt
        return line.strip()


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Workshop:
    """A folder with the sources as they are now, also what is not committed, and the extension as it is built here."""

    def __init__(self, folder: Path, children: Children, timeout: float) -> None:
        self.folder, self.children, self._timeout = folder, children, timeout
        self._warm: dict[tuple[tuple[str, str], ...], Warm] = {}  # by what the tests' environment has besides
        copy_sources(folder)

    def build(self) -> str | None:
        """Compile what has changed since the last time; returns the compiler's words if it failed."""
        command = [sys.executable, "setup.py", "build_ext", "--inplace", "--force"]  # ninja knows what is up to date
        code, output = self.children.run(command, self.folder, self._environment({"SCONE_BUILD_EXT": "1"}), 3600)
        return None if code == 0 else output

    def test(self, tests: Sequence[str], env: dict[str, str]) -> tuple[int | None, str]:
        """pytest's exit code (None: out of time) and output."""
        warm = self._warm.setdefault(tuple(env.items()), Warm(self.children, self._environment(env)))
        return warm.run(self.folder, tests, self._timeout)

    def judge(self, mutant: Mutant) -> Verdict:
        """Apply the mutant, build, test, and put the file back."""
        began = time.monotonic()

        def verdict(outcome: str, words: str = "") -> Verdict:
            return Verdict(outcome, time.monotonic() - began, words)

        if reason := mutant.fault(self.folder):
            return verdict("broken", reason)
        with self._applied(mutant):
            if mutant.build and (reason := self.build()):
                return verdict("broken", f"does not build:\n{reason[-2000:]}")
            code, output = self.test(mutant.tests, mutant.env)
        if code is None:
            return verdict("killed", "out of time")
        if code == PASSED:
            return verdict("survived")
        if code > FAILED:
            return verdict("broken", f"pytest ended with {code}:\n{output[-2000:]}")
        return verdict("killed", "" if code == FAILED else f"signal {-code}")

    @contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(text), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def _environment(self, extra: dict[str, str]) -> dict[str, str]:
        # No bytecode: a mutant may have the size and the second of the file that it replaces.
        own = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **extra}


def copy_sources(folder: Path) -> None:
    """Everything that git tracks or would track, as it lies in the working tree, and the built extension."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    names |= {str(path.relative_to(ROOT)) for path in ROOT.glob("scone_kernels/*.so")}
    for name in sorted(names):
        # What is there already keeps its time, so that it is not compiled again.
        if not (folder / name).exists() or not filecmp.cmp(ROOT / name, folder / name, shallow=False):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def claim(folder: Path) -> None:
    """Make `folder` ours, or exit: sources are written over what lies there."""
    mark = folder / ".scone-mutants"
    if not mark.exists() and folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"--folder must be empty, new, or one that was used for this before, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()


@contextmanager
def workshops(given: argparse.Namespace, *, build: bool) -> Iterator[tuple[Workshop, ...]]:
    """Copies that are gone afterwards, however it ends; in the first, the extension is built anew if `build`."""
    children = Children()
    with contextlib.ExitStack() as stack:
        folder = given.folder
        if folder is not None:
            claim(folder)
        else:
            temporary = tempfile.TemporaryDirectory(prefix="scone-mutants-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        stack.callback(children.end)
        places = tuple(Workshop(folder.resolve() / str(i), children, given.timeout) for i in range(max(1, given.jobs)))
        if build and (reason := places[0].build()):
            raise RuntimeError(f"the extension does not build without a mutant:\n{reason}")
        yield places
