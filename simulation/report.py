"""What a person sees of a simulated run: a live line while it goes, a table when it is over.

One line per round; on a terminal the line of the running round is rewritten in place. No
colour is used, so NO_COLOR has nothing to switch off.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from .federation import Result
    from ..server.ledger import RoundRecord


class Live:
    """The live line of a run."""

    def __init__(self, rounds: int, out: TextIO) -> None:
        """Write to `out`; `rounds` is how many training rounds there will be."""
        self._rounds = rounds
        self._out = out
        self._began = time.monotonic()
        self._terminal = out.isatty()

    def __call__(self, record: RoundRecord) -> None:
        """Show a committed record."""
        line = describe(record, self._rounds)
        if self._terminal and record.phase == "train" and record.outcome == "finished":
            left = (time.monotonic() - self._began) / record.round * (self._rounds - record.round)
            self._out.write(f"\r\x1b[2K{line}  ETA {left:.0f} s")
            if record.round == self._rounds:
                self._out.write("\n")
        else:
            self._out.write(("\r\x1b[2K" if self._terminal else "") + line + "\n")
        self._out.flush()


def describe(record: RoundRecord, rounds: int) -> str:
    """Return one record as a line."""
    name = f"round {record.round:>{len(str(rounds))}}/{rounds}"
    if record.phase == "evaluate":
        name = "evaluation of the last model"
    if record.outcome != "finished":
        return f"{name}  {record.outcome}: {record.cause}"
    used = f"{len(record.survivors)} of {len(record.roster)} clients"
    return f"{name}  {used}  {_numbers(record.metrics)}  {_size(record.bytes_up)} up"


def _numbers(metrics: Mapping[str, float]) -> str:
    shown = {
        "loss": metrics.get("train.loss", metrics.get("eval.loss")),
        "accuracy": metrics.get("test.accuracy", metrics.get("eval.accuracy")),
    }
    return "  ".join(f"{name} {value:.4f}" for name, value in shown.items() if value is not None)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:  # noqa: PLR2004 - decimal units
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def summary(result: Result) -> str:
    """Return the closing table: survivors, numbers, time per phase, bytes, security, model."""
    lines = [
        f"{'round':>5}  {'clients':>7}  {'loss':>7}  {'accuracy':>8}  {'seconds':>7}  survivors"
    ]
    for record in result.records:
        if record.outcome == "finished":
            lines.append(_row(record, result.names))
    done = [r for r in result.records if r.outcome == "finished"]
    phases: dict[str, float] = {}
    for record in done:
        for phase, seconds in record.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    lines.append("time: " + ", ".join(f"{name} {value:.2f} s" for name, value in phases.items()))
    members = sum(len(record.roster) for record in done)
    if members:
        total = sum(record.bytes_up for record in done)
        lines.append(f"bytes up: {_size(total / members)} a client and round")
    lines += [f"refused: {line}" for line in result.refusals]
    if result.accuracy is not None:
        lines.append(f"test accuracy: {result.accuracy:.4f}")
    lines.append(f"secure aggregation: {result.security}")
    lines.append(f"run: {result.run} ({result.path})")
    model = newest_model(result)
    if model:
        lines.append(f"model: {model}")
    return "\n".join(lines)


def newest_model(result: Result) -> str | None:
    """Return the path of the newest model on disk, if the run left one."""
    found = sorted(result.path.glob("rounds/*/*.safetensors"))
    return str(found[-1]) if found else None


def _row(record: RoundRecord, names: Mapping[str, int]) -> str:
    name = "eval" if record.phase == "evaluate" else str(record.round)
    loss = record.metrics.get("train.loss", record.metrics.get("eval.loss", float("nan")))
    accuracy = record.metrics.get("test.accuracy", record.metrics.get("eval.accuracy"))
    shown = "" if accuracy is None else f"{accuracy:.4f}"
    who = sorted(names[node] for node in record.survivors)
    counted = f"{len(record.survivors)} of {len(record.roster)}"
    seconds = sum(record.seconds.values())
    return f"{name:>5}  {counted:>7}  {loss:7.4f}  {shown:>8}  {seconds:7.3f}  {_ranges(who)}"


def _ranges(numbers: list[int]) -> str:
    """Return sorted numbers with runs folded: 0-3,5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
