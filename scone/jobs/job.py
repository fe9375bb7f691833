"""What a job asks of every text, and what it does about lines that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

from scone.options import Options, choice, integer, option

__all__ = ["Job"]


@dataclass(frozen=True, kw_only=True)
class Job(Options):
    """The options of a job.

    >>> Job(samples=2).replace(seed=3).seed
    3
    >>> Job(bad_lines="drop")
    Traceback (most recent call last):
    scone.errors.ConfigError: bad_lines must be one of 'stop', 'skip', got 'drop'
    """

    samples: int = option(1, integer(1), "texts for each prompt")
    max_new_tokens: int = option(25, integer(1), "length of a continuation")
    seed: int = option(0, integer(-(2**63), 2**63 - 1), "the same seed gives the same text")
    batch: int = option(16, integer(1), "texts written at once")
    bad_lines: str = option("stop", choice("stop", "skip"), "a line that cannot be used ends the job, or is left out")
    order: str = option("input", choice("input", "finished"), "of the output: that of the input, or as texts get done")

    @property
    def lines(self) -> int:
        """How many lines are written together."""
        return max(1, self.batch // self.samples)

    def facts(self) -> dict[str, int]:
        """What decides the texts."""
        return {name: getattr(self, name) for name in ("samples", "max_new_tokens", "seed", "batch")}
