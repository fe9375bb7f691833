"""Where words go: results to standard output, progress and remarks to standard error, colours only on a terminal."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

__all__ = ["above", "err", "note", "out", "progress", "quiet_libraries"]


class _Console(Console):
    """Leaves a broken pipe to `main`, and words like :smile: as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def out() -> Console:
    """Standard output as it is at the time of the call."""
    return _Console()


def err() -> Console:
    """Standard error as it is at the time of the call."""
    return _Console(stderr=True)


def above(bar: Progress) -> Console:
    """Where results go while a bar is shown: standard output, or above the bar when both share the terminal."""
    return bar.console if bar.console.is_terminal and out().is_terminal else out()


def progress() -> Progress:
    """A bar on standard error with the time left; it disappears when done, and is silent off a terminal.

    Standard output stays untouched: redirected, it would end up on standard error.
    """
    console = err()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=not console.is_terminal,
    )


def note(what: str) -> None:
    """Says on standard error what is going on."""
    err().print(f"[dim]{what} …[/]")


def quiet_libraries() -> None:
    """Keeps transformers' remarks and weight-loading bars off the screen; downloads keep their progress bars."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if err().is_terminal:
        enable_progress_bars()
