"""What a run watches: what it says of it, and what it refuses to wait for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from umbel.cli import main
from umbel.protocol.errors import SettingsError
from umbel.server import reviews
from umbel.server.alarms import false_pause, limit
from umbel.server.history import History
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.run_plan import RunPlan
from umbel.server.watch_terms import Go
from umbel.server.watching import Watching, introduction
from umbel.tests.actors import NOW
from umbel.tests.deciders import deciding
from umbel.tests.rounds import settings
from umbel.tests.test_watched_runs import EXAMPLE, LOST, fleet, ledger, planned, run

if TYPE_CHECKING:
    from pathlib import Path

AT = "2026-01-02T03:04:05.000+00:00"


def test_a_run_does_not_wait_for_what_its_plan_does_not_know(tmp_path: Path) -> None:
    blind = str(planned(tmp_path, expect={"duration": None}))
    said = {**LOST, "fleet": str(fleet(tmp_path)), "plan": blind, "pause-on": "site,duration"}
    with pytest.raises(SettingsError) as caught:
        run(tmp_path, said)
    assert str(caught.value) == (
        "pause-on: expected signals of which the plan says what to expect, got 'duration'; "
        "leave it out: it cannot pause"
    )
    assert not ledger(tmp_path).exists()


def test_a_simulation_in_which_no_time_passes_does_not_pause_on_it(tmp_path: Path) -> None:
    timeless = str(planned(tmp_path))
    said = {"clients": 20, "cohort": 12, "rounds": 3, "plan": timeless, "pause-on": "duration"}
    with pytest.raises(SettingsError, match=r"pause-on: .*, got 'duration'; no time passes"):
        run(tmp_path, said)


def test_a_run_says_what_it_watches_and_how_often_in_vain() -> None:
    plan = RunPlan.read(EXAMPLE)
    # Half of 5 % for two sides of a duration, half for two sites; a try of 1,000 misses its quorum.
    chance = 4 * false_pause(1002, limit(1002, 0.05 / 2 / 2))
    assert introduction(plan, ("duration", "site"), 1000) == (
        "watched: duration, participation, site, rejections, accuracy, quorum, retries, bytes; "
        f"pauses on duration, site, by chance with at most {chance:.2%} in 1000 rounds; "
        "any other signal is raised by chance with 70.8%"
    )
    assert introduction(None, ("accuracy",), 10) == "watched: accuracy; pauses on accuracy"
    assert introduction(None, (), 10) == ""


def test_a_copy_of_a_run_is_neither_taken_up_nor_decided_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was the run that it is a copy of which went on, and a decision that nobody heard."""
    said = {**LOST, "fleet": str(fleet(tmp_path)), "pause-on": "site"}
    with deciding(ledger(tmp_path), False):
        assert run(tmp_path, said).failure is not None
    runs = tmp_path / "runs"
    shutil.copytree(runs / "r", runs / "copied")
    before = ledger(tmp_path).read_bytes(), (runs / "copied" / "ledger.sqlite").read_bytes()
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    for words in (["resume", "copied"], ["review", "copied", "--approve", "1", "--why", "a copy"]):
        assert main(["runs", *words]) == 2
        assert capsys.readouterr().err == (
            f"umbel: {runs}/copied: expected the name of its run, r, got another; "
            "rename it, or name the run\n"
        )
    assert before == (
        ledger(tmp_path).read_bytes(), (runs / "copied" / "ledger.sqlite").read_bytes()
    )  # fmt: skip
    assert main(["runs", "review", "copied"]) == 0  # it may be looked at


def test_an_asynchronous_run_does_not_pause_on_a_site(tmp_path: Path) -> None:
    """Its devices answer in other rounds than they are asked in."""
    said = {**LOST, "fleet": str(fleet(tmp_path)), "buffer": 6, "dropout": 0.0}
    with pytest.raises(SettingsError, match=r"got 'site'; no round asks its devices"):
        run(tmp_path, {**said, "pause-on": "accuracy,site"})
    assert run(tmp_path / "other", {**said, "pause-on": "rejections"}).failure is None


def test_an_item_that_was_lost_with_its_process_is_raised_by_the_next(tmp_path: Path) -> None:
    """A test's own event is there, and the server was killed before the item that it raises."""
    asked = settings(run="r", rounds=9, pause_on=("accuracy",))
    with RunDirectory.create(tmp_path, "r") as directory:
        ledger = directory.ledger
        ledger.create_run("r", AT, asked.described(), "on")
        for n, accuracy in enumerate([0.9, 0.6, 0.6, 0.6], 1):
            model = f"{n:02d}" * 32
            ledger.commit_round(
                RoundRecord(round=n, attempt=0, phase="train", outcome="finished", model=model)
            )
            detail = {"test.accuracy": accuracy}
            ledger.event("tested", round=n, attempt=0, code=model, detail=detail, at=AT)
        for _ in range(2):  # the second one finds it there
            past = History.of(ledger.rounds(), ledger.events(), bytes(32))
            watch = Watching.of(asked, directory, past, wall=lambda: NOW, say=lambda _line: None)
            assert [(i.signal, i.round, i.pauses) for i in reviews.items(ledger)] == [
                ("accuracy", 4, True)
            ]
            assert watch.verdict(0.0).go is Go.WAIT
