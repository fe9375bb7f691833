"""A process that was forked after an engine had been used: the threads of torch stayed behind, and waiting for them hangs."""

from __future__ import annotations

import os

import torch

from scone.errors import ForkError

__all__ = ["check_fork"]

_threads_began = False  # in this process, or in the one that it was forked from
_forked_since = False


def check_fork() -> None:
    """Raise ForkError where torch would wait for threads that only the parent process has; say that an engine is used.

    >>> check_fork()
    """
    global _threads_began
    if _forked_since and torch.get_num_threads() > 1:
        raise ForkError(
            "this process was forked from one that had used an engine with several threads, which a fork loses: start it "
            'with multiprocessing.get_context("spawn"), fork before the first use, or call torch.set_num_threads(1) here'
        )
    _threads_began = _threads_began or torch.get_num_threads() > 1


def _in_child() -> None:
    global _forked_since
    _forked_since = _forked_since or _threads_began


os.register_at_fork(after_in_child=_in_child)
