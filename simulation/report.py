"""What a person sees of a simulated run: a live line while it goes, a table when it is over.

One line per round; on a terminal the line of the running round is rewritten in place. No
colour is used, so NO_COLOR has nothing to switch off.
"""

from __future__ import annotations

import math
import os
import re
import time
from typing import TYPE_CHECKING, Self

from ..server import outcome, run_lines
from ..server.round_folder import MODEL_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

    from .federation import Result
    from .link import Link
    from ..server.ledger import RoundRecord

_CLEAR = "\r\x1b[2K"
_NAMED = 32
"""Clients of a round that a table names at most."""
_EVERY_S = 0.1
"""How often the line of a running round is rewritten at most."""


class Live:
    """The live line of a run; at the end of its block the cursor stands on a new line."""

    def __init__(self, rounds: int, out: TextIO, *, tests: bool = False) -> None:
        """Write nothing yet.

        Args:
            rounds: How many training rounds there will be.
            out: Where to.
            tests: Whether the server tests models after their rounds: then no other accuracy is
                shown.
        """
        self._tests, self._tested = tests, ""
        self._rounds = rounds
        self._out = out
        self._began = time.monotonic()
        self._terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._numbers = ""
        """What the last finished round said, beside the running round until that ends."""
        self._open, self._line = False, ""
        self._next = 0.0
        self._named: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Return this line."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line as it is and go to the next."""
        if self._open:
            self._out.write("\n")
            self._out.flush()

    def begin(self, text: str) -> None:
        """Say what starts: before the first round there may be seconds of imports."""
        self._write(text + "\n")

    def __call__(self, record: RoundRecord) -> None:
        """Show a committed record."""
        line = run_lines.describe(record, self._rounds, tests=self._tests)
        self._next = 0.0
        if self._terminal and record.phase == "train" and record.outcome == "finished":
            left = (time.monotonic() - self._began) / record.round * (self._rounds - record.round)
            self._numbers = f"{run_lines.said(record)}  ETA {left:.0f} s"
            last = record.round == self._rounds
            self._line = f"{line}  ETA {left:.0f} s"
            self._write(self._line + ("\n" if last else self._tested))
        else:
            self._write(line + "\n")

    def tested(self, record: RoundRecord) -> None:
        """Show what the server's test found of the model of a record that was shown before."""
        test = run_lines.own_test(record)
        found = "  ".join(f"{name} {value:.4f}" for name, value in test.items())
        number = f"{record.round:>{len(str(self._rounds))}}"
        if self._terminal and self._open:
            self._tested = f"  tested: round {number}  {found}"
            self._write(self._line + self._tested)
        else:
            self._write(run_lines.tested(record, self._rounds) + "\n")

    def watch(self, link: Link) -> None:
        """Say whom a phase waits for; show how far the running round is on a terminal only."""
        attempt, now = link.server.attempt, time.monotonic()
        if attempt is not None and attempt.clock.named is not self._named:
            self._named = attempt.clock.named
            names = [link.name(node) for node in self._named]
            if names:
                self.begin(run_lines.waits_for(link.server.round, attempt.phase.value, names))
        if not self._terminal or attempt is None or now < self._next:
            return
        self._next = now + _EVERY_S
        doing = f"{link.trained} of {len(attempt.plan.cohort)} trained"
        if attempt.roster:
            doing = f"{attempt.phase} {len(attempt.roster)} clients"
        phase = attempt.plan.terms.phase
        name = run_lines.title(link.server.round, phase, self._rounds)
        before = self._numbers if phase == "train" else ""
        self._write("  ".join(filter(None, (name, doing, before))))

    def _write(self, text: str) -> None:
        """Write a line that ends, or on a terminal one that is to be rewritten, if it fits."""
        self._open = not text.endswith("\n")
        if self._open:
            columns = os.get_terminal_size(self._out.fileno()).columns or 80
            text = text[: columns - 1]  # a line that wraps cannot be rewritten in place
        self._out.write((_CLEAR if self._terminal else "") + text)
        self._out.flush()


def summary(result: Result) -> str:
    """Return the closing table: survivors, numbers, time per phase, bytes, security, model."""
    done = [r for r in result.records if r.outcome == "finished"]
    lines = _table(done, result.names) if done else []
    lines += folded(result.refusals)
    lines += [f"warning: {line}" for line in folded(result.warnings)]
    if result.accuracy is not None:
        lines.append(f"test accuracy: {result.accuracy:.4f}")
    if result.trained_by:
        lines.append(f"trained by {result.trained_by}")
    lines.append(f"secure aggregation: {result.security}")
    lines.append(f"run: {result.run} ({result.path})")
    model = newest_model(result)
    if model:
        lines.append(f"model: {model}")
        lines.append(f"pictures: umbel runs report {result.run}")
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, object]:
    """Return the result for programs: run, model, security, accuracy, failure, rounds."""
    accuracy = result.accuracy
    return {
        "run": result.run,
        "path": str(result.path),
        "model": newest_model(result),
        "security": result.security,
        "accuracy": accuracy if accuracy is None or math.isfinite(accuracy) else None,
        "trained_by": result.trained_by or None,
        "failure": str(result.failure) if result.failure else None,
        "refusals": list(result.refusals),
        "warnings": list(result.warnings),
        "rounds": [outcome.as_json(record) for record in result.records],
    }


def newest_model(result: Result) -> str | None:
    """Return the path of the newest model on disk, if the run left one."""
    found = sorted(result.path.glob(f"rounds/*/{MODEL_FILE}"))
    return str(found[-1]) if found else None


def folded(lines: Iterable[str]) -> list[str]:
    """Return the lines, each once: `client 3: …` becomes `clients 0-4: …`.

    Lines that differ in numbers only count as the same; the first is shown, with how often.
    """
    groups: dict[str, list[str]] = {}
    who: dict[str, set[int]] = {}
    for line in lines:
        found = re.fullmatch(r"client (\d+): (.*)", line, re.DOTALL)
        text = found[2] if found else line
        key = re.sub(r"\d+", "0", text)
        groups.setdefault(key, []).append(text)
        who.setdefault(key, set()).update([int(found[1])] if found else [])
    return [_once(texts, sorted(who[key])) for key, texts in groups.items()]


def _once(texts: list[str], who: list[int]) -> str:
    name = f"client{'s' * (len(who) > 1)} {_ranges(who)}: " if who else ""
    times = f" ({len(texts)} times)" if len(texts) > max(1, len(who)) else ""
    return f"{name}{texts[0]}{times}"


def _table(done: list[RoundRecord], names: Mapping[str, int]) -> list[str]:
    """Return a row for each finished round, the seconds of every phase, and the bytes."""
    lines = [
        f"{'round':>5}  {'clients':>7}  {'loss':>7}  {'accuracy':>8}  {'seconds':>7}  survivors"
    ]
    phases: dict[str, float] = {}
    tests = any(map(run_lines.own_test, done))
    for record in done:
        lines.append(_row(record, names, tests=tests))
        for phase, seconds in record.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    lines += _legend(done)
    lines.append("time: " + ", ".join(f"{name} {value:.2f} s" for name, value in phases.items()))
    members = sum(len(record.roster) for record in done)
    total = sum(record.bytes_up for record in done)
    lines.append(f"bytes up: {run_lines.size(total / max(1, members))} a client and round")
    return lines


def _legend(done: list[RoundRecord]) -> list[str]:
    """Return whose examples the column `accuracy` is about, where that is not plain."""
    by_server = any("test.accuracy" in record.metrics for record in done)
    by_clients = [record for record in done if "eval.accuracy" in record.metrics]
    if not by_server and by_clients:
        return ["accuracy: on the clients' own data, of the model that a round began with"]
    said = ["accuracy: on the server's test set; in the row eval on the clients' own data"]
    lines = said if any(record.phase == "evaluate" for record in by_clients) else []
    trained = [record for record in done if record.phase == "train"]
    missing = sum("test.accuracy" not in record.metrics for record in trained) if by_server else 0
    tested = f"accuracy: {missing} of {len(trained)} models were not tested by the server"
    return lines + [tested] * bool(missing)


def _row(record: RoundRecord, names: Mapping[str, int], *, tests: bool) -> str:
    name = "eval" if record.phase == "evaluate" else str(record.round)
    loss = run_lines.loss(record)
    lost = "" if loss is None else f"{loss:.4f}"
    accuracy = run_lines.accuracy(record, tests=tests)
    shown = "" if accuracy is None else f"{accuracy:.4f}"
    who = sorted(names[node] for node in record.survivors) if len(record.roster) <= _NAMED else []
    counted = f"{len(record.survivors)} of {len(record.roster)}"
    seconds = sum(record.seconds.values())
    return f"{name:>5}  {counted:>7}  {lost:>7}  {shown:>8}  {seconds:7.3f}  {_ranges(who)}"


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers with runs folded: 0-3,5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
