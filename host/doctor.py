"""What both doctors share: findings, running probes, printing what they found.

A `Probe` is a function that yields findings, in a thread of its own: independent ones look at once,
and none is waited for longer than its bound, for what is looked at may never answer (a name server,
a dead network disk). What a probe has found before its bound is kept. A fault of a probe's own is a
finding too, and its traceback is printed: the doctor is needed when much is broken.

A finding's id is in a `Table` with its one severity and what it means, which docs/operations.md
lists. Nothing here knows a device or a server: clients/doctor.py and server/doctor.py do.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import typer

from ..protocol.errors import LONGEST, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
_ORDER = (PROBLEM, WARNING, NOTE, OK)
BOUND_S = 20.0
"""Seconds that a probe may take, unless it says another number."""
_TOLD_S = 2.0
"""Pause before a line says what is still looked at, and between two such lines."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    id: str
    severity: str
    line: str
    """What is so, in one line without a secret."""
    fix: str = ""
    """The command that mends it, or what to do where there is none."""


class Kind(NamedTuple):
    """What is known of a finding before it is made."""

    severity: str
    meaning: str


class Table:
    """The findings that one file can make."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        """Take ids and what they mean."""
        self.kinds = kinds

    def __call__(self, name: str, line: str, fix: str = "") -> Finding:
        """Return a finding of this table."""
        return Finding(name, self.kinds[name].severity, one_line(line[:LONGEST]), one_line(fix))


class Probe(NamedTuple):
    """Something to look at."""

    name: str
    """What is said while it is waited for."""
    look: Callable[[], Iterable[Finding]]
    bound: float = BOUND_S
    """Seconds."""


RUNNER = Table({
    "doctor.timeout": Kind(PROBLEM, "a probe had not ended at its bound; what it found is shown"),
    "doctor.fault": Kind(PROBLEM, "a probe ended by a fault of its own, whose traceback is shown"),
})  # fmt: skip


@dataclass
class _Looking:
    """A probe on its way."""

    probe: Probe
    findings: list[Finding] = field(default_factory=list)
    done: bool = False

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._look, name=self.probe.name, daemon=True)
        self.until = time.monotonic() + self.probe.bound
        self.thread.start()

    def _look(self) -> None:
        for finding in self.probe.look():
            self.findings.append(finding)
        self.done = True

    def result(self) -> list[Finding]:
        """Return what it found until now, with what became of it."""
        name, bound = self.probe.name, self.probe.bound
        kept = list(self.findings)
        if self.done:
            return kept
        if self.thread.is_alive():
            line = f"{name}: not done within {bound:g} s"
            return [*kept, RUNNER("doctor.timeout", line, "see what it waits for, and look again")]
        line = f"{name}: the doctor itself failed here"
        return [*kept, RUNNER("doctor.fault", line, "report the traceback on stderr")]


def run(probes: Sequence[Probe], told: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Run probes at once and return what they found, the worst first.

    Args:
        probes: In the order in which findings of equal severity are returned.
        told: Takes a line when it takes longer than two seconds, about what is waited for.
    """
    looking = [_Looking(probe) for probe in probes]
    say_at = time.monotonic() + _TOLD_S
    while waited := [one for one in looking if one.thread.is_alive() and _left(one) > 0]:
        waited[0].thread.join(min(_left(waited[0]), 0.1))
        if time.monotonic() >= say_at:
            say_at += _TOLD_S
            told("looking at " + ", ".join(one.probe.name for one in waited))
    found = [finding for one in looking for finding in one.result()]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def _left(one: _Looking) -> float:
    return one.until - time.monotonic()


def told_on_stderr(line: str) -> None:
    """Print a line of progress."""
    print(f"doctor: {line}", file=sys.stderr, flush=True)


def show(findings: Sequence[Finding], form: str) -> None:
    """Print findings as lines or as JSON, and end with status 2 if there is a problem.

    Raises:
        typer.Exit: Always, with the status.
    """
    counts = {severity: 0 for severity in _ORDER}
    for finding in findings:
        counts[finding.severity] += 1
    if form == "json":
        print(json.dumps({"findings": [asdict(one) for one in findings], "count": counts}))
    else:
        for line in lines(findings):
            print(line)
        print(", ".join(_counted(severity, counts[severity]) for severity in _ORDER))
    raise typer.Exit(2 if counts[PROBLEM] else 0)


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as text: a line each, and one more for what mends it."""
    width = max((len(finding.id) for finding in findings), default=0)
    made = []
    for finding in findings:
        made.append(f"{finding.severity:7}  {finding.id:{width}}  {finding.line}")
        if finding.fix:
            made.append(f"{'':7}  {'':{width}}  fix: {finding.fix}")
    return made


def _counted(severity: str, count: int) -> str:
    plural = "s" if severity != OK and count != 1 else ""
    return f"{count} {severity}{plural}"
