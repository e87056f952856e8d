"""The server step: how a model moves by the mean update of a round, as pure frozen values.

A rule moves a piece of one flat array at a time, element by element, so that any cut of a model
into shards gives the same bits. delta: mean update, x: model, t: the round, from 1.

    fedavg      x <- x + lr delta                                  McMahan et al. 2017, alg. 1
    fedavgm     b <- mu b + delta;  x <- x + lr b                  Hsu et al. 2019
    fedadagrad  v <- v + delta^2;   x <- x + eta delta / (sqrt v + tau)
    fedadam     m <- b1 m + (1 - b1) delta;  v <- b2 v + (1 - b2) delta^2
                x <- x + eta c_t m / (sqrt v + tau)
    fedadamw    x <- (1 - eta weight_decay) x, then as fedadam     Loshchilov and Hutter 2019
    fedyogi     m as fedadam's;  v <- v - (1 - b2) delta^2 sign(v - delta^2)
                x <- x + eta m / (sqrt v + tau)

The adaptive ones are algorithm 2 of Reddi et al. 2021 in the form of Flower's strategies of these
names: moments begin at 0 and FedAdam corrects their bias, c_t = sqrt(1 - b2^(t+1)) / (1 -
b1^(t+1)). `form="paper"` is the paper's: v begins at tau^2 and c_t = 1. Moments have the dtype of
the array they belong to.

Everything is computed in float64, a tile at a time, and rounded once into the dtype of the array
(float32 models stay float32); one_pass.py does the same, bit for bit, where it can. How the mean is
made is `robust`: None for the weighted mean.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .fedavg import TILE, tiles
from .one_pass import in_one_pass, not_finite
from .robust_rules import Robust
from ..protocol.errors import RoundFailed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Wide = NDArray[np.float64]

FORMS = ("flower", "paper")


class Rule(Protocol):
    """What the core steps with: a pure value, safe to send as JSON and to use in any rank."""

    @property
    def name(self) -> str:
        """The rule's key in settings and in the ledger."""

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of its state vectors: one array each for every float array of a model."""

    @property
    def robust(self) -> Robust | None:
        """How updates become one; None for their weighted mean."""

    def initial(self, moment: str) -> float:
        """Return what every element of a state vector holds before the first round."""

    def move(
        self,
        name: str,
        old: NDArray[Any],
        delta: NDArray[Any],
        new: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        t: int,
    ) -> None:
        """Write the moved piece into `new` and the moments into `state`, in place.

        Args:
            name: Of the array, for the error.
            old: A piece of a flat float array.
            delta: The mean update of the same piece, of any float dtype; it is kept.
            new: Where the result goes, in the dtype of `old`; it may be `old`.
            state: The same piece of each of `moments`.
            t: The round, 1 or more.

        Raises:
            RoundFailed: The pieces differ in length.
            VoidRound: A result is not finite; `new` and `state` are then worth nothing, and the
                caller goes back to what it had.
        """

    def described(self) -> dict[str, Any]:
        """Return the rule as JSON can hold it; `rule_of` reads it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Elementwise:
    """What the rules share; each gives `_tile`."""

    robust: Robust | None = None

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def moments(self) -> tuple[str, ...]:
        return ()

    def initial(self, _moment: str) -> float:
        return 0.0

    def described(self) -> dict[str, Any]:
        return {"rule": self.name, **asdict(self)}

    def move(
        self,
        name: str,
        old: NDArray[Any],
        delta: NDArray[Any],
        new: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        t: int,
    ) -> None:
        own = [state[moment] for moment in self.moments]
        if any(a.shape != old.shape for a in (delta, new, *own)):
            got = [a.shape for a in (delta, new, *own)]
            raise RoundFailed(f"server step: pieces of {name} have shapes {got}, not {old.shape}")
        if in_one_pass(self, name, (old, delta, new, *own), t):
            return
        scratch = np.empty((2 + len(own), min(TILE, old.size)))
        for tile in tiles(old.size):
            x, d, *wide = scratch[:, : tile.stop - tile.start]
            for target, source in zip((x, d, *wide), (old, delta, *own), strict=True):
                np.copyto(target, source[tile])
            with np.errstate(over="ignore", invalid="ignore"):  # told below, by name
                self._tile(x, d, wide, t)
                for target, source in zip((new, *own), (x, *wide), strict=True):
                    np.copyto(target[tile], source, casting="same_kind")
                finite = all(np.isfinite(kept[tile]).all() for kept in (new, *own))
            if not finite:
                raise not_finite(name)

    def _tile(self, x: Wide, d: Wide, state: Sequence[Wide], t: int) -> None:
        """Move x and the moments in place; d may be written over."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvg(_Elementwise):
    """Federated averaging."""

    server_learning_rate: float = 1.0
    """Factor of the mean update, finite and above 0; 1 makes the step McMahan's."""

    def __post_init__(self) -> None:
        """Check the range that the type cannot say."""
        _positive("server-learning-rate", self.server_learning_rate)

    def move(
        self,
        name: str,
        old: NDArray[Any],
        delta: NDArray[Any],
        new: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        t: int,
    ) -> None:
        """As every rule's; the commonest step needs no wide copy.

        A sum of two float32 that is rounded to float64 and then to float32 is the sum rounded to
        float32 at once (53 >= 2 * 24 + 2): this has the bits of the long way.
        """
        alike = old.dtype == delta.dtype == new.dtype and old.shape == delta.shape == new.shape
        plain = self.server_learning_rate == 1.0 and old.dtype in (np.float32, np.float64)
        if not (plain and alike):
            _Elementwise.move(self, name, old, delta, new, state, t)
            return
        for tile in tiles(old.size):
            with np.errstate(over="ignore", invalid="ignore"):
                np.add(old[tile], delta[tile], out=new[tile])
            if not np.isfinite(new[tile]).all():
                raise not_finite(name)

    def _tile(self, x: Wide, d: Wide, _state: Sequence[Wide], _t: int) -> None:
        d *= self.server_learning_rate
        x += d


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvgM(_Elementwise):
    """Federated averaging with momentum on the server."""

    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    """0 or more and below 1; 0 keeps no moment."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        _positive("server-learning-rate", self.server_learning_rate)
        _fraction("server-momentum", self.server_momentum)

    @property
    def moments(self) -> tuple[str, ...]:
        """`momentum`, unless it is 0."""
        return ("momentum",) if self.server_momentum else ()

    def _tile(self, x: Wide, d: Wide, state: Sequence[Wide], _t: int) -> None:
        if state:
            momentum = state[0]
            momentum *= self.server_momentum
            momentum += d
            np.copyto(d, momentum)
        d *= self.server_learning_rate
        x += d


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAdagrad(_Elementwise):
    """Adagrad on the server."""

    eta: float = 1e-1
    """Step length."""
    tau: float = 1e-3
    """What keeps the divisor above 0."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        _positive("server-eta", self.eta)
        _positive("server-tau", self.tau)

    @property
    def moments(self) -> tuple[str, ...]:
        """The sum of squares."""
        return ("v",)

    def _tile(self, x: Wide, d: Wide, state: Sequence[Wide], _t: int) -> None:
        v = state[0]
        v += d * d
        d *= self.eta
        d /= np.sqrt(v) + self.tau
        x += d


@dataclass(frozen=True, kw_only=True, slots=True)
class _TwoMoments(_Elementwise):
    """What Adam and Yogi share."""

    eta: float = 1e-1
    """Step length."""
    beta_1: float = 0.9
    """How much of the first moment is kept."""
    beta_2: float = 0.99
    """How much of the second moment is kept."""
    tau: float = 1e-3
    """What keeps the divisor above 0."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        _positive("server-eta", self.eta)
        _positive("server-tau", self.tau)
        _fraction("server-beta-1", self.beta_1)
        _fraction("server-beta-2", self.beta_2)

    @property
    def moments(self) -> tuple[str, ...]:
        """The means of the updates and of their squares."""
        return ("m", "v")

    def _first(self, m: Wide, d: Wide) -> None:
        m *= self.beta_1
        m += (1.0 - self.beta_1) * d

    def _shift(self, x: Wide, m: Wide, v: Wide, factor: float) -> None:
        step = factor * m
        step /= np.sqrt(v) + self.tau
        x += step


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAdam(_TwoMoments):
    """Adam on the server, in Flower's form or the paper's."""

    form: str = "flower"

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        _TwoMoments.__post_init__(self)
        if self.form not in FORMS:
            raise SettingsError("server-form", " or ".join(FORMS), self.form)

    def factors(self, t: int) -> tuple[float, float]:
        """Return the step length of a round, and what shrinks the model first."""
        if self.form == "paper":
            return self.eta, 1.0
        correction = math.sqrt(1.0 - self.beta_2 ** (t + 1)) / (1.0 - self.beta_1 ** (t + 1))
        return self.eta * correction, 1.0

    def initial(self, moment: str) -> float:
        """Return tau^2 for the paper's v, else 0."""
        return self.tau**2 if self.form == "paper" and moment == "v" else 0.0

    def _tile(self, x: Wide, d: Wide, state: Sequence[Wide], t: int) -> None:
        m, v = state
        factor, shrink = self.factors(t)
        x *= shrink
        self._first(m, d)
        d *= d
        v *= self.beta_2
        v += (1.0 - self.beta_2) * d
        self._shift(x, m, v, factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAdamW(FedAdam):
    """Adam whose model shrinks by itself a little in every round."""

    weight_decay: float = 1e-2
    """Share of `eta` by which x shrinks."""

    def __post_init__(self) -> None:
        """Check the ranges that the types cannot say."""
        FedAdam.__post_init__(self)
        if not 0.0 <= self.weight_decay * self.eta < 1.0:
            raise SettingsError(
                "server-weight-decay", "0 or more, and below 1 / server-eta", self.weight_decay
            )

    def factors(self, t: int) -> tuple[float, float]:
        """As FedAdam's, with the decay."""
        return FedAdam.factors(self, t)[0], 1.0 - self.eta * self.weight_decay


@dataclass(frozen=True, kw_only=True, slots=True)
class FedYogi(_TwoMoments):
    """Yogi on the server."""

    eta: float = 1e-2

    def _tile(self, x: Wide, d: Wide, state: Sequence[Wide], _t: int) -> None:
        m, v = state
        self._first(m, d)
        d *= d
        d *= (1.0 - self.beta_2) * np.sign(v - d)
        v -= d
        self._shift(x, m, v, self.eta)


RULES: dict[str, type[_Elementwise]] = {
    kind.__name__.lower(): kind
    for kind in (FedAvg, FedAvgM, FedAdam, FedAdamW, FedYogi, FedAdagrad)
}


def rule_of(said: Mapping[str, Any]) -> Rule:
    """Return the rule that `described` said.

    Raises:
        SettingsError: It names no rule, lacks a number, has one too many or one out of its range.
    """
    kind = RULES.get(name) if isinstance(name := said.get("rule"), str) else None
    if kind is None:
        raise SettingsError("strategy", f"one of {', '.join(RULES)}", said.get("rule"))
    given = _fields(kind, {key: value for key, value in said.items() if key != "rule"})
    if given["robust"] is not None:
        given["robust"] = Robust(**_fields(Robust, given["robust"]))
    return kind(**given)


def _fields(kind: type[_Elementwise | Robust], said: object) -> dict[str, Any]:
    """Return what a rule is made of, each value in its field's type."""
    known = {field.name: str(field.type) for field in fields(kind)}
    if not isinstance(said, dict) or set(said) != set(known):
        got = sorted(said) if isinstance(said, dict) else said
        raise SettingsError(kind.__name__.lower(), f"the keys {sorted(known)}", got)
    return {key: _typed(f"{kind.__name__.lower()}: {key}", known[key], said[key]) for key in known}


def _typed(where: str, kind: str, value: object) -> object:
    """Return a value of JSON in the type that a field's annotation names."""
    if (value is None and kind.endswith("| None")) or kind.startswith("Robust"):
        return value
    if kind.startswith("float") and type(value) is int:
        return float(value)
    if type(value).__name__ != kind.partition(" ")[0]:
        raise SettingsError(where, f"a {kind}", value)
    return value


def _positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise SettingsError(name, "a finite number above 0", value)


def _fraction(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise SettingsError(name, "0 or more and below 1", value)
