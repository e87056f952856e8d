"""What a simulated round says of itself in the ledger: the names that reports read.

    metrics   train.loss, train.examples      of those whose updates count, as in every run
              test.*                          the server's own test, where the round was tested
              clients.invited used late lost offline crashed     what became of those asked
              clients.refused                 who trained and is in no sum: diverged, too long …
              clock.opened clock.closed       virtual seconds since the run's beginning
              clock.work                      virtual seconds of all devices together
              staleness.0 staleness.1 …       how many updates were so many versions old
              eval.*                          of the received model on the clients' own examples,
              clients.accuracy.p10 p50 p90    and its spread over them, where the round asked; also
              clients.loss.p10 p50 p90        of the loss; and of each cohort of a fleet
              clients.COHORT.accuracy.p10 …
    seconds   decide train aggregate evaluate idle               of this machine
    bytes     up and down, as the clock counts them

`clock.*` stands where time passes, `staleness.*` in asynchronous runs.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from .work import Verdict
from ...protocol import messages_pb2 as pb
from ...server.signal_groups import QUANTILES
from ...strategies.counted import of_many
from ...strategies.metrics import LOSS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .work import Report
    from ..clock.decision import Decision, Ids

LEVELS = (10, 50, 90)
"""Per cent of the clients of a round whose accuracy is at most the figure."""
_CODES = {
    Verdict.NOT_FINITE: pb.REASON_NOT_FINITE,
    Verdict.TOO_LONG: pb.REASON_LIMITS,
    Verdict.TOO_LARGE: pb.REASON_LIMITS,
    Verdict.FAILED: pb.REASON_TASK_FAILED,
}


def of_clock(decision: Decision) -> dict[str, float]:
    """Return who was asked and what became of them, and when."""
    told = decision.described()
    found = {
        f"clients.{name}": float(told[name])
        for name in ("invited", "used", "late", "lost", "offline", "crashed")
    }
    if decision.closed or decision.opened:
        found |= {f"clock.{name}": float(told[name]) for name in ("opened", "closed", "work")}
    if decision.models is not None:
        ages, counts = np.unique(decision.staleness, return_counts=True)
        found |= {f"staleness.{age}": float(n) for age, n in zip(ages, counts, strict=True)}
    return found


def of_clients(
    report: Report, groups: Sequence[int] | Ids = (), names: Sequence[str] = ("",)
) -> dict[str, float]:
    """Return how many updates were refused, and how the received model did over the clients.

    Args:
        report: Of the clients that trained.
        groups: For each of them the place of its cohort.
        names: Of the cohorts; of one alone nothing is told beside the whole.
    """
    counted = report.counted
    found = {"clients.refused": float(len(counted) - np.count_nonzero(counted))}
    examples = report.metrics.get("examples", report.examples)
    of = np.asarray(groups)[counted] if len(names) > 1 else None
    for name, metric in (("accuracy", "correct"), ("loss", "loss")):
        if metric in report.metrics and counted.any():
            means = report.metrics[metric][counted] / np.maximum(examples[counted], 1)
            found |= _quantiles(f"clients.{name}.", means)
            if of is not None and name == "accuracy":
                for place in np.unique(of):
                    found |= _quantiles(QUANTILES.format(names[place]), means[of == place])
    return found


def _quantiles(beginning: str, means: NDArray[np.float64]) -> dict[str, float]:
    levels = np.percentile(means, LEVELS)
    return {f"{beginning}p{q}": float(v) for q, v in zip(LEVELS, levels, strict=True)}


def sums(
    report: Report, epochs: int, config: Mapping[str, object] = MappingProxyType({})
) -> dict[str, float | int]:
    """Return what the counted clients' metrics add up to, under the names of a device's.

    `config` is the round's: what else is counted.
    """
    counted = report.counted
    found: dict[str, float | int] = {
        "train.examples": int(report.examples[counted].sum()) * epochs,
        "train.loss": float(report.losses[counted].sum()),
    }
    if report.metrics:
        found["eval.examples"] = int(report.examples[counted].sum())
        found |= {f"eval.{name}": float(v[counted].sum()) for name, v in report.metrics.items()}
    correct = report.metrics["correct"][counted] if "correct" in report.metrics else None
    examples = report.metrics.get("examples", report.examples)[counted]
    return found | of_many(config, correct, examples)


def unsendable(report: Report) -> str:
    """Return a warning where devices could not have sent the loss of their training; else nothing.

    Its word of a message has a bound (strategies/metrics.py), and a device ends its round there;
    here nothing is sent, and the client counts.
    """
    over = report.counted & ~(np.abs(report.losses) <= LOSS.bound)  # NaN too
    if not over.any():
        return ""
    return (
        f"the loss of {np.count_nonzero(over)} of {np.count_nonzero(report.counted)} clients, "
        f"summed over their examples, is not finite or above {LOSS.bound:g}: devices refuse to "
        "train so; scale the targets"
    )


def refusals(report: Report, nodes: Sequence[str]) -> dict[str, str]:
    """Return why the update of each client that does not count does not, by node."""
    return {
        nodes[int(i)]: pb.Reason.Name(_CODES[Verdict(report.verdicts[i])])
        for i in np.flatnonzero(~report.counted)
    }
