"""A run's rounds as lines for people: one a committed record, one a phase that waits in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .evaluators import NO_DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ledger import RoundRecord

_GONE = ("late", "lost", "offline", "crashed", "refused")
_NAMES = 8
"""Names in a line about those who are waited for."""


def title(number: int, phase: str, rounds: int) -> str:
    """Return how a round of a phase is called."""
    if phase == "evaluate":
        return "evaluation of the last model"
    return f"round {number:>{len(str(rounds))}}/{rounds}"


def waits_for(number: int, phase: str, names: Sequence[str]) -> str:
    """Return the line about a phase in which nobody answers any more."""
    shown = ", ".join(sorted(names)[:_NAMES])
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"round {number}: no answer for long; {phase} waits for {shown}{more}"


def untested(number: int, why: str) -> str:
    """Return the line about a model that could not be tested."""
    if why == NO_DATA:
        return "the server has no test data"
    return f"round {number}: the server's test {why}; the ServerApp's log says more"


def tested(record: RoundRecord, rounds: int) -> str:
    """Return the line about the test of a round that has been told of."""
    found = "  ".join(f"{name} {value:.4f}" for name, value in own_test(record).items())
    return f"round {record.round:>{len(str(rounds))}}/{rounds}  tested  {found}"


def describe(record: RoundRecord, rounds: int, *, tests: bool = False) -> str:
    """Return one record as a line.

    Args:
        record: Committed.
        rounds: How many training rounds there will be.
        tests: Whether the server tests models after their rounds: then no other accuracy is said.
    """
    name = title(record.round, record.phase, rounds)
    if record.outcome != "finished":
        return f"{name}  {record.outcome}: {record.cause}"
    used = f"{len(record.survivors)} of {len(record.roster)} clients"
    return f"{name}  {used}  {said(record, tests=tests)}"


def said(record: RoundRecord, *, tests: bool = False) -> str:
    """Return loss, accuracy and bytes of a finished round."""
    shown = {
        "loss": loss(record),
        "accuracy": accuracy(record, tests=tests),
    }
    parts = [f"{name} {value:.4f}" for name, value in shown.items() if value is not None]
    return "  ".join([*parts, f"{size(record.bytes_up)} up", *simulated(record)])


def simulated(record: RoundRecord) -> list[str]:
    """Return how fast a simulated round went, when it ended, and how many were not used."""
    metrics, train = record.metrics, record.seconds.get("train", 0.0)
    parts = []
    if metrics.get("clients.used") and train:
        parts.append(f"{metrics['clients.used'] / train:,.0f} clients/s")
    if "clock.closed" in metrics:
        parts.append(f"at {virtual(metrics['clock.closed'])}")
    gone = {name: metrics.get(f"clients.{name}", 0.0) for name in _GONE}
    return [*parts, *(f"{count:.0f} {name}" for name, count in gone.items() if count)]


def virtual(seconds: float) -> str:
    """Return a time on the virtual clock: days, hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d " * bool(days) + f"{hours:02}:{minutes:02}:{rest:02}"


def loss(record: RoundRecord) -> float | None:
    """Return the loss in training, else of a test; of an app's own names the first that ends so."""
    metrics = record.metrics
    own = (name for name in sorted(metrics) if name.endswith("_loss") and name[:5] != "test.")
    return next(
        (metrics[name] for name in ("train.loss", "eval.loss", *own) if name in metrics), None
    )


def accuracy(record: RoundRecord, *, tests: bool) -> float | None:
    """Return the server's own; the clients' where there is none, or is to be none."""
    clients = None if tests and record.phase == "train" else record.metrics.get("eval.accuracy")
    return record.metrics.get("test.accuracy", clients)


def own_test(record: RoundRecord) -> dict[str, float]:
    """Return what the server's own test found, by name."""
    named = {k.removeprefix("test."): v for k, v in record.metrics.items() if k[:5] == "test."}
    return dict(sorted(named.items()))


def size(count: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:  # noqa: PLR2004 - decimal units
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
