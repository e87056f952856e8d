"""What a benchmark reports, and where the lines are kept.

A benchmark measures Umbel, a peer and a limit of the machine in one run. Its module has a function
`run(...)` whose parameters are the command's options (typer annotations, each with a default), and
which yields one `Measurement` a case; a measurement prints as one JSON object on one line:

    ratio     how many times better than the peer, so larger is better whatever the unit
    of_limit  the share of the limit that was reached; 1 is the limit
    umbel     the median over `runs`; null where nothing could be measured on this machine, which
              `absent` explains on stderr
    p95       19 of 20 runs were at least this good; null where there are fewer than 20
    worst     the worst run

This module measures nothing itself.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .. import __version__
from ..host.places import umbel_home
from ..host.reported import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Figure = TypeVar("Figure")

# Is more of this unit better? A unit that is not listed is refused, because `ratio` needs to know.
MORE_IS_BETTER = {
    "GB/s": True,
    "clients/s": True,
    "s": False,
    "B": False,
    "MiB": False,
    "models": False,
    "ratio": False,
}


_FOR_P95 = 20  # below it the 95th percentile is the worst run


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case of one benchmark; `peer` or `limit` is None where there is none."""

    bench: str
    case: str
    unit: str
    samples: Sequence[float] = ()
    peer: Sequence[float] = ()
    peer_name: str | None = None
    limit: float | None = None
    limit_name: str | None = None
    absent: str | None = None
    """Why there are no samples: what this machine lacks."""

    def __post_init__(self) -> None:
        """Refuse what could not be compared.

        Raises:
            ValueError: An unknown unit, a value that is not above zero, or no sample and no
                reason why.
        """
        if self.unit not in MORE_IS_BETTER:
            raise ValueError(f"unit: expected one of {', '.join(MORE_IS_BETTER)}, got {self.unit}")
        values = [*self.samples, *self.peer, *([] if self.limit is None else [self.limit])]
        if bool(self.samples) is (self.absent is not None) or min(values, default=1.0) <= 0:
            raise ValueError(f"{self.bench} {self.case}: expected values above zero, got {values}")

    def line(self) -> dict[str, object]:
        """Return the JSON object of this measurement, rounded to four significant digits."""
        more = MORE_IS_BETTER[self.unit]
        own = statistics.median(self.samples) if self.samples else None
        peer = statistics.median(self.peer) if self.peer else None
        return {
            "bench": self.bench,
            "case": self.case,
            "unit": self.unit,
            "umbel": _short(own),
            "p95": _short(_p95(self.samples, more)),
            "worst": _short((min if more else max)(self.samples, default=None)),
            "peer": _short(peer),
            "peer_name": self.peer_name,
            "limit": _short(self.limit),
            "limit_name": self.limit_name,
            "ratio": _better(own, peer, more),
            "of_limit": _better(own, self.limit, more),
            "runs": len(self.samples),
        }


def interleave(calls: Mapping[str, Callable[[], Figure]], runs: int = 5) -> dict[str, list[Figure]]:
    """Call each of `calls` once a round for `runs` rounds, so that a slow minute hits all alike.

    Args:
        calls: Name to a function that measures once and returns its figure, or several.
        runs: Rounds; a published figure needs five.
    """
    figures: dict[str, list[Figure]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            figures[name].append(call())
    return figures


def keep(measurement: Measurement) -> Path:
    """Append the line to the bench's file, with machine, load and commit; return the file."""
    folder = results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{measurement.bench}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(measurement.line() | _circumstances()) + "\n")
    return path


def results_folder() -> Path:
    """Return the checkout's own folder, or one in the state directory.

    `$UMBEL_HOME` goes before the checkout, which is told by its Makefile: no wheel ships it.
    """
    here = Path(__file__).resolve().parent
    if (here.parent / "Makefile").exists() and not os.environ.get("UMBEL_HOME"):
        return here / "results"
    return umbel_home() / "benchmarks"


def _circumstances() -> dict[str, object]:
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "umbel_version": __version__,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the checkout's commit, with `+` when files differ from it; None when installed."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command, cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _p95(samples: Sequence[float], more: bool) -> float | None:
    """Return the sample that 95 % are not worse than, by the nearest rank."""
    if len(samples) < _FOR_P95:
        return None
    return sorted(samples, reverse=more)[-(-19 * len(samples) // 20) - 1]


def _better(own: float | None, other: float | None, more: bool) -> float | None:
    """Return how many times better `own` is than `other`."""
    if own is None or other is None:
        return None
    return _short(own / other if more else other / own)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
