"""The signals of a run, against numbers counted by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from umbel.cli import main
from umbel.server.ledger import Event, RunRecord
from umbel.server.signals import SIGNALS, duration, reasons, signals
from umbel.server.signals_text import as_text
from umbel.tests.recorded_runs import begin, commit, entry, full, node

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCS = Path(__file__).resolve().parents[1] / "docs" / "signals.md"


def run(config: Mapping[str, object] | None = None) -> RunRecord:
    return RunRecord(run="r", created="", security="on (development CA)", config=config or {})


def event(kind: str, number: int, client: int, code: str = "", attempt: int = 0) -> Event:
    return Event(kind=kind, round=number, attempt=attempt, node=node(client), code=code)


def test_every_signal_is_defined_in_the_documents() -> None:
    section = DOCS.read_text("utf-8").split("\n## 1.")[1].split("\n## 2.")[0]
    listed = re.findall(r"^\| `([a-z.0-9]+)` \| (\w*) ?\|", section, re.MULTILINE)
    assert listed == [(name, signal.unit) for name, signal in SIGNALS.items()]


def test_participation_and_rejections_are_of_the_attempt_that_finished() -> None:
    """Ten are asked: six are used, one is late, one refuses, two are taken out by name."""
    events = [
        event("late", 1, 6, "summing", attempt=1),
        event("refused", 1, 7, "REASON_POLICY", attempt=1),
        event("expelled", 1, 8, "is not finite", attempt=1),
        event("expelled", 1, 9, "is not finite", attempt=1),
        event("lost", 1, 5, "inviting", attempt=0),
    ]
    roster = [node(i) for i in (*range(7), 8, 9)]
    records = [
        entry(1, outcome="aborted", roster=roster, survivors=()),
        entry(1, attempt=1, roster=roster, survivors=roster[:6]),
    ]
    found = signals(run(), records, events)
    (first,) = found.rounds
    assert (first.asked, first.used) == (10, 6)
    assert first.values["participation"] == 6 / 10
    assert first.values["rejections"] == 3 / 9
    assert first.values["attempts"] == 2
    assert (first.values["bytes.up"], first.values["bytes.down"]) == (2000, 4000)
    assert (dict(found.attempts), found.retried) == ({"aborted": 1, "finished": 1}, 0.5)


def test_a_simulated_round_counts_whom_no_event_names() -> None:
    metrics = {"clients.invited": 20.0, "clients.late": 6.0, "clients.refused": 2.0}
    four = [node(i) for i in range(4)]
    (first,) = signals(run(), [entry(1, metrics=metrics, roster=four)], []).rounds
    assert first.values["participation"] == 4 / 20
    assert first.values["rejections"] == 2 / 6


def test_a_duration_is_virtual_where_time_is() -> None:
    seconds = {"inviting": 2.0, "summing": 0.5, "odd": float("inf")}
    assert duration(entry(1, seconds=seconds)) == 2.5
    clock = {"clock.opened": 100.0, "clock.closed": 431.5}
    assert duration(entry(1, seconds=seconds, metrics=clock)) == 331.5


def test_gaps_are_of_one_model() -> None:
    """What clients find of model 1 stands in round 2; what it was trained to stands in round 1."""
    records = [
        entry(1, metrics={"train.loss": 1.0, "test.loss": 1.25, "test.accuracy": 0.5}),
        entry(2, metrics={"train.loss": 0.5, "eval.accuracy": 0.75, "test.accuracy": float("nan")}),
        entry(2, phase="evaluate", metrics={"eval.accuracy": 0.9}),
    ]
    one, two = signals(run(), records, []).rounds
    assert one.values["gap.loss"] == 0.25
    assert one.values["gap.accuracy"] == 0.25
    assert "gap.loss" not in two.values
    assert "gap.accuracy" not in two.values


def test_a_round_that_was_lost_is_none() -> None:
    records = [entry(1, roster=[node(1)]), entry(2, roster=[node(2)]), entry(2, outcome="lost")]
    found = signals(run({"clients": 4}), records, [])
    assert [each.number for each in found.rounds] == [1]
    assert found.skew is not None
    assert (found.skew.clients, found.skew.never, found.skew.gini) == (4, 3, 0.75)


def test_reasons_are_counted_by_kind_and_code() -> None:
    events = [event("refused", n, n % 2, "REASON_LIMITS") for n in (3, 1, 2)]
    events += [event("late", 4, 1, "summing"), event("warning", 5, 1), event("waiting", 5, 1)]
    one, two = reasons(events)
    assert (one.kind, one.code, one.times, one.clients) == ("refused", "REASON_LIMITS", 3, 2)
    assert (one.first, one.last) == (1, 3)
    assert (two.kind, two.times) == ("late", 1)


def test_the_summary_is_over_the_rounds_that_have_a_signal() -> None:
    records = [entry(n, metrics={"saturation": n / 10} if n > 1 else {}) for n in range(1, 13)]
    found = signals(run(), records, []).summary()
    assert found["saturation"]["rounds"] == 11
    assert found["saturation"]["p50"] == pytest.approx(0.7)
    assert found["saturation"]["p10"] == pytest.approx(0.3)
    assert found["saturation"]["last"] == pytest.approx(1.2)
    assert "staleness.mean" not in found


def test_a_run_that_has_not_begun_says_so() -> None:
    said = as_text(signals(run(), [], []))
    assert said.splitlines()[0] == "run r: 0 training rounds finished"
    assert "nothing to say yet" in said


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full(tmp_path)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    assert main(["runs", "signals", "fleet-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "run fleet-1: 60 training rounds finished; 4.76 % of 63 attempts did not (3 aborted)"
    )
    assert lines[1] == "secure aggregation: off"
    assert lines[2].split()[:5] == ["signal", "last", "p10", "p50", "p90"]
    assert any(line.startswith("staleness.mean ") for line in lines)
    assert any("x lost training: " in line for line in lines)
    assert main(["runs", "signals", "fleet-1", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rounds"]) == 60
    assert set(told["summary"]) <= set(told["signals"])


def test_a_secure_run_says_nothing_of_one_client_but_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    with begin(tmp_path, "ward", {"clients": 3}) as directory:
        commit(directory, 1, roster=[node(i) for i in range(3)], metrics={"train.loss": 1.0})
        detail: dict[str, float | str] = {"milliseconds": 12.0, "reason": "disk"}
        directory.ledger.event("lost", round=1, attempt=0, node=node(9), code="x", detail=detail)
    assert main(["runs", "signals", "ward", "--format", "json"]) == 0
    told = capsys.readouterr().out
    for i in (0, 1, 2, 9):
        assert node(i) not in told
    assert "disk" not in told
