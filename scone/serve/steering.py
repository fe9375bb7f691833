"""Engines by what is asked of them: models are loaded once, and an engine is made for each set of wishes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

from scone.cli.attributes import SHORT_NAMES
from scone.config import SconeConfig
from scone.decode import Scone
from scone.errors import InputError
from scone.loading import EMBEDDED, load_classifier
from scone.verifier import Expression, Verifier

if TYPE_CHECKING:
    from scone.serve.orders import Order

__all__ = ["Steering"]

_ENGINES = 16  # sets of wishes whose engine is kept


class _Wish(NamedTuple):
    name: str
    strength: float | None  # None: the request's, or the configuration's
    avoid: bool


class Steering:
    """The models of a server, and what clients may ask of them: a short name of the command line, or one of `verifiers`.

    A client names no model of its own, so that nothing is loaded on its behalf. `particles` play no part: a text that is
    shown while it is written is written once.

    >>> steering = Steering.from_pretrained(verifiers={"short": Verifier.from_callable(lambda texts: [0.5] * len(texts))})
    >>> "short" in steering.names and "positive" in steering.names
    True
    """

    def __init__(
        self,
        engine: Scone,
        *,
        verifiers: Mapping[str, Expression] | None = None,
        default: Sequence[str] = ("positive",),
        avoid: Sequence[str] = (),
        name: str = "scone",
        **options: Any,
    ) -> None:
        self.engine, self.name, self._options = engine, name, options
        self._verifiers = dict(verifiers or {})
        self.names = [*SHORT_NAMES, *self._verifiers]
        self._engines: OrderedDict[object, Scone] = OrderedDict()
        self._default = self._read("default", default, avoid=False) + self._read("avoid", avoid, avoid=True)
        if not self._default:
            raise InputError("default must name at least one wish where avoid names none, got none")

    @classmethod
    def from_pretrained(
        cls, lm: Any = EMBEDDED, masked_lm: Any = EMBEDDED, *, config: SconeConfig | None = None, **given: Any
    ) -> Steering:
        """Load the models by name; options beside those of `Steering` say where and how they run."""
        own = {name: given.pop(name) for name in ("verifiers", "default", "avoid", "name") if name in given}
        own.setdefault("name", lm if isinstance(lm, str) else "scone")
        return cls(Scone.from_pretrained(lm, masked_lm, config=config, **given), **own, **given)

    def read(self, order: Order) -> list[_Wish]:
        """What an order wishes for; a name that nobody knows raises InputError."""
        control = order.control
        asked = self._read("scone.attribute", control.attribute, avoid=False)
        return asked + self._read("scone.avoid", control.avoid, avoid=True) or self._default

    def wishes(self, order: Order) -> dict[str, Expression]:
        """The verifiers of an order by name, each with its strength."""
        own = order.control.strength
        strength, found = self.engine.config.strength if own is None else own, {}
        for wish in self.read(order):
            verifier = self._verifier(wish.name)
            wanted = (~verifier if wish.avoid else verifier).with_strength(wish.strength or strength)
            found[f"not {wish.name}" if wish.avoid else wish.name] = wanted
        return found

    def engine_for(self, order: Order) -> tuple[Scone, dict[str, Expression]]:
        """The engine for an order, and its wishes; orders that ask for the same share one."""
        wishes = self.wishes(order)
        asked = {"top_k": order.control.top_k, "top_p": order.top_p, "temperature": order.temperature or None}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        key = tuple((name, wish.strength) for name, wish in wishes.items()), tuple(changes.items())
        if key not in self._engines:
            steered = self.engine.with_verifier(reduce(and_, wishes.values()))
            self._engines[key] = steered.with_config(strength=1.0, particles=1, **changes)
        self._engines.move_to_end(key)
        while len(self._engines) > _ENGINES:
            self._engines.popitem(last=False)
        return self._engines[key], wishes

    def _verifier(self, name: str) -> Expression:
        if name not in self._verifiers:
            classifier = load_classifier(f"{EMBEDDED}:{SHORT_NAMES[name]}", **self._options)
            self._verifiers[name] = Verifier(*classifier, target=name)
        return self._verifiers[name]

    def _read(self, field: str, given: str | Sequence[str] | None, *, avoid: bool) -> list[_Wish]:
        """Wishes written as NAME or NAME=STRENGTH."""
        wishes = []
        for text in [given] if isinstance(given, str) else given or ():
            name, equals, strength = text.rpartition("=") if "=" in text else (text, "", "")
            if name not in self.names:
                raise InputError(f"{field} must be one of {', '.join(self.names)}, got {text!r}")
            try:
                value = float(strength) if equals else None
            except ValueError:
                value = -1.0
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{field} must have a strength above 0, got {text!r}")
            wishes.append(_Wish(name, value, avoid))
        return wishes
