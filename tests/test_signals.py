"""The signals of a run, against numbers counted by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.cli import main
from umbel.server.ledger import Event, RunRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.signals import SIGNALS, duration, reasons, signals
from umbel.server.signals_text import as_text
from umbel.simulation.engine.figures import of_clients
from umbel.simulation.engine.work import Report
from umbel.simulation.fleet.toml import read
from umbel.simulation.pages.figures import Figures
from umbel.simulation.pages.report import report
from umbel.tests import simulated_runs
from umbel.tests.recorded_plans import example
from umbel.tests.recorded_runs import begin, commit, entry, full, node, planned

if TYPE_CHECKING:
    from collections.abc import Mapping

FLEET = """
seed = 5
[cohorts.phones]
share = 0.6
samples = 50
speed = { lognormal = { median = 0.5, sigma = 1 } }
bandwidth = 1e5
[cohorts.boxes]
share = 0.4
samples = 200
speed = 0.01
bandwidth = 1e6
"""
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


def test_a_reason_of_one_round_names_that_round() -> None:
    lost = event("lost", 3, 1, "inviting")
    said = as_text(signals(run(), [entry(3, roster=[node(1)])], [lost]))
    assert said.endswith("1 x lost inviting: 1 client, round 3")


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


def test_a_run_with_a_plan_says_how_the_plan_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    planned(tmp_path, example())
    assert main(["runs", "signals", "planned"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^plan: The plan was too hopeful: \d+ of 62 rounds were slower", said, re.M)
    assert re.search(r"^  \d+ of 62 rounds within its p50, 60 s; ", said, re.M)
    assert main(["runs", "signals", "planned", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["plan"]
    assert sum(told["histogram"]) == pytest.approx(62)
    assert [c["level"] for c in told["coverage"]] == [0.5, 0.9, 0.99]
    assert told["verdict"] in said


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


def test_a_simulated_fleet_tells_its_cohorts_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the devices themselves: who is in which cohort, counted over the rosters."""
    (tmp_path / "fleet.toml").write_text(FLEET, "utf-8")
    given = {
        "rounds": 3,
        "cohort": 8,
        "client-test-every": 2,
        "fleet": str(tmp_path / "fleet.toml"),
    }
    simulated_runs.run(tmp_path / "home", given)
    fleet = read(tmp_path / "fleet.toml").fleet(simulated_runs.CLIENTS, 0)
    sizes = np.bincount(fleet.cohort_of(np.arange(simulated_runs.CLIENTS)), minlength=2)
    with RunDirectory.open(tmp_path / "home", "r") as directory:
        ledger = directory.ledger
        found = signals(ledger.run(), ledger.rounds(), ledger.events())
        used = sum(len(record.survivors) for record in ledger.rounds())
        invited = sum(record.metrics["clients.invited"] for record in ledger.rounds())
        tested = ledger.rounds()[1].metrics
    assert [group.name for group in found.groups] == ["boxes", "phones"]
    by_name = {group.name: group for group in found.groups}
    for name, size in zip(("phones", "boxes"), sizes, strict=True):
        assert by_name[name].fleet == size / simulated_runs.CLIENTS
        beginning = f"clients.{name}.accuracy."
        own = {k.removeprefix(beginning): v for k, v in tested.items() if k.startswith(beginning)}
        assert by_name[name].accuracy == own
        assert set(own) == {"p10", "p50", "p90"}
    assert sum(group.used for group in found.groups) == used
    assert sum(group.asked for group in found.groups) == invited
    boxes = by_name["boxes"]
    assert boxes.representation == pytest.approx(boxes.used / used / (sizes[1] / sizes.sum()))
    capsys.readouterr()
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    assert main(["runs", "signals", "r"]) == 0
    assert "  phones: " in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "report", "r"]) == 0
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "<h2>By cohort</h2>" in page
    assert "Accuracy of the clients, newest test" in page


def test_a_run_of_sessions_is_told_by_site(tmp_path: Path) -> None:
    detail = {"names": '["a","b"]', "asked": "3 2", "sites": "0 1", "ready": "1 1", "sent": "1 1"}
    with begin(tmp_path, "ward", {"clients": 5}) as directory:
        directory.ledger.event("clients", round=1, attempt=0, code="train", detail=detail)
        commit(directory, 1, roster=[node(1), node(2)])
        page = report(Figures.of(directory)).decode()
    assert "<h2>By site</h2>" in page
    assert "By cohort" not in page


def test_quantiles_of_a_cohort_are_over_its_own_clients() -> None:
    report = Report(
        verdicts=np.array([0, 0, 0, 0, 1], np.uint8),
        weights=np.full(5, 10),
        examples=np.full(5, 10),
        losses=np.zeros(5),
        metrics={"correct": np.array([1.0, 3.0, 5.0, 9.0, 0.0])},
    )
    found = of_clients(report, [0, 1, 0, 1, 0], ["phones", "boxes"])
    assert found["clients.phones.accuracy.p50"] == pytest.approx(0.3)
    assert found["clients.boxes.accuracy.p50"] == pytest.approx(0.6)
    assert found["clients.boxes.accuracy.p10"] == pytest.approx(0.36)
    assert not any("phones" in name for name in of_clients(report, [0] * 5, ["phones"]))


def test_sites_of_devices_are_counted_over_those_who_are_in_the_sum() -> None:
    """Three of ward a and two of ward b are asked; one of each is not in the sum."""
    roster = [node(i) for i in range(4)]
    detail = {"names": '["a","b"]', "asked": "3 2", "sites": "0 0 1 1"}
    detail |= {"ready": "1 1 1 1", "sent": "1 - 1 -"}
    clients = Event(kind="clients", round=1, attempt=0, code="train", detail=detail)
    record = entry(1, roster=roster, survivors=[roster[0], roster[2]])
    found = signals(run(), [record], [clients])
    assert [(g.name, g.asked, g.used) for g in found.groups] == [("a", 3, 1), ("b", 2, 1)]
    assert found.rounds[0].values["participation"] == 2 / 5
    assert found.groups[0].fleet is None
    odd = Event(kind="clients", round=1, attempt=0, code="train", detail={"names": "5"})
    assert not signals(run(), [record], [odd]).groups


def test_the_version_mix_is_of_the_newest_round_that_says_one() -> None:
    mixed = {"version.0.1.0": 4.0, "version.?": 1.0}
    records = [entry(1, metrics={"version.0.0.9": 5.0}), entry(2, metrics=mixed), entry(3)]
    found = signals(run(), records, [])
    assert found.versions == {"0.1.0": 4, "?": 1}
    assert [each.values.get("versions") for each in found.rounds] == [1, 2, None]
    assert "versions of the newest round: 4 of 0.1.0, 1 of ?" in as_text(found)
