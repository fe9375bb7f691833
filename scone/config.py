"""The options that every lookahead shares, and the presets; each lookahead has those that act in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from scone.lookahead import Expectation, Gibbs, Lookahead, Rollout, Taylor
from scone.options import Options, choice, integer, number, one_of, option, words
from scone.reweigh import RULES

__all__ = ["SconeConfig"]


@dataclass(frozen=True, kw_only=True)
class SconeConfig(Options):
    """Options of the method; `docs/options.md` says what each does and what it was measured to do.

    >>> config = SconeConfig(strength=4, lookahead=Expectation(tokens=2))
    >>> config.replace(top_k=20).top_k
    20
    >>> SconeConfig(top_k=0)
    Traceback (most recent call last):
    scone.errors.ConfigError: top_k must be an integer of at least 1, got 0
    >>> SconeConfig(chains=2)
    Traceback (most recent call last):
    scone.errors.ConfigError: chains is no option of SconeConfig: write lookahead=Gibbs(chains=...)
    """

    retired: ClassVar[dict[str, str]] = {
        "init": "write lookahead=Expectation(...), Masked(...), or Gibbs(start=Rollout(), Masks() or Carried())",
        "expand": "write lookahead=Expectation(...) or Gibbs(estimate=AtMean(), AtSample() or Taylor())",
        "blend": "write lookahead=Mix(Expectation(...), Nothing(), weights=(...))",
        "lm_lookahead": "write lookahead=Gibbs(start=Rollout(tokens=...))",
        "lookahead_top_p": "write lookahead=Gibbs(start=Rollout(top_p=...))",
        "lookahead_min_p": "write lookahead=Paths(min_p=...) or Gibbs(start=Rollout(min_p=...))",
        "mlm_temperature": "write lookahead=Gibbs(temperature=...)",
        "warmup": "write lookahead=Gibbs(start=Masks(warmup=...))",
        "coupled": "write lookahead=Gibbs(coupled=...) or Paths(coupled=...)",
        "marginals": "write lookahead=Gibbs(estimate=Taylor(marginals=...))",
        "taylor": "write lookahead=Gibbs(estimate=Taylor(form=...))",
        "linearise": "write lookahead=Gibbs(estimate=Taylor(linearise=...))",
        "taylor_scale": "write lookahead=Gibbs(estimate=Taylor(scale=...)), or AtSample() for none",
        **{
            name: f"write lookahead=Gibbs({name}=...)"
            for name in ("schedule", "block", "iterations", "thin", "chains", "workers", "sync_every")
        },
    }

    top_k: int = option(10, integer(1), "candidates for the next token: the k likeliest")
    top_p: float = option(1.0, number(0, 1, above=True), "keep only the likeliest candidates that reach this mass")
    min_p: float = option(0.0, number(0, 1), "drop candidates below this share of the likeliest one's probability")
    min_mass: float = option(0.03, number(0, 1), "a candidate less probable than this gets no lookahead of its own")
    safe: float = option(0.95, number(0, 1), "a text whose q is above this is written without a look for `rest` tokens")
    rest: int = option(2, integer(0), "tokens that a safe text is written without a look; 0: every token is looked at")
    temperature: float = option(1.0, number(0, above=True), "of the language model's distribution")
    context_window: int | None = option(
        64, integer(1, optional=True), "tokens of the LM, the last ones, that are judged; none: all that fit"
    )
    verdict: str = option(
        "text", choice("text", "continuation"), "what is judged: prompt and continuation, or the continuation alone"
    )
    after: str = option("", words(), "control begins behind this marker, and what stands before it is not judged")
    lookahead: Lookahead = option(Expectation(tokens=1), one_of(Lookahead), "who looks ahead")
    reweigh: str = option("odds", choice(*RULES), "how q changes the next-token distribution")
    strength: float = option(8.0, number(0), "how strongly q counts, for attributes without a strength of their own")
    epsilon: float = option(
        1e-4, number(0, 0.5, above=True), "q is clamped to at least this: no estimate alone rules a candidate out"
    )

    particles: int = option(4, integer(1), "texts written side by side for each that is asked for; one is kept")
    keep: str = option("best", choice("best", "sample"), "keep the best particle by φ, or one drawn by its weight")
    resample: float = option(
        0.9, number(0, 1), "particles are resampled where their effective number falls below this share; 0: never"
    )

    @classmethod
    def paper(cls, **changes: Any) -> SconeConfig:
        """The paper to the letter: 10 candidates, 2 chains of 20 single-site updates, thinned by 5, softmax of sums.

        >>> SconeConfig.paper().lookahead.iterations
        20
        """
        lookahead = Gibbs(
            tokens=25,
            start=Rollout(top_p=0.9, min_p=0.1),
            schedule="uniform",
            block=1,
            iterations=20,
            thin=5,
            chains=2,
            coupled=False,
            estimate=Taylor(form="mean", linearise="prob", marginals="unmasked", clamp=False),
        )
        paper = cls(
            top_k=10,
            min_mass=0.0,
            rest=0,
            context_window=None,
            reweigh="softmax",
            strength=1.0,
            particles=1,
            lookahead=lookahead,
        )
        return paper.replace(**changes)

    @classmethod
    def fast(cls, **changes: Any) -> SconeConfig:
        """Half of the default's work: two particles, and fewer candidates with a lookahead of their own.

        >>> SconeConfig.fast() == SconeConfig(particles=2, min_mass=0.05)
        True
        """
        return cls(particles=2, min_mass=0.05).replace(**changes)

    @classmethod
    def quality(cls, **changes: Any) -> SconeConfig:
        """Three times the default's work: twelve particles to choose from.

        >>> SconeConfig.quality() == SconeConfig(particles=12)
        True
        """
        return cls(particles=12).replace(**changes)

    @classmethod
    def plain(cls, **changes: Any) -> SconeConfig:
        """No control: one text, sampled from the candidates as the LM has them.

        >>> SconeConfig.plain() == SconeConfig(strength=0, particles=1)
        True
        """
        return cls(strength=0.0, particles=1).replace(**changes)
