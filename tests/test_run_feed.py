"""Reading a run's ledger while another process writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import StateError
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.run_feed import RunFeed

if TYPE_CHECKING:
    from pathlib import Path


def _record(number: int) -> RoundRecord:
    return RoundRecord(round=number, attempt=0, phase="train", outcome="finished")


def _create(home: Path, name: str, flower_run: str | None) -> RunDirectory:
    made = RunDirectory.create(home, name)
    config = {} if flower_run is None else {"flower-run": flower_run}
    made.ledger.create_run(name, "2026-01-01T00:00:00+00:00", config, "off")
    return made


def test_the_run_is_the_one_that_names_flowers(tmp_path: Path) -> None:
    with RunFeed(tmp_path, 42) as feed:
        assert feed.poll() == []
        with _create(tmp_path, "other", "43"), _create(tmp_path, "simulated", None):
            assert feed.poll() == []
            assert feed.run is None
            with pytest.raises(StateError, match="the record of this run"):
                _ = feed.path
        with _create(tmp_path, "mine", "42"):
            assert feed.poll() == []
            assert feed.run is not None
            assert feed.path == tmp_path / "runs" / "mine"


def test_each_record_comes_once(tmp_path: Path) -> None:
    with _create(tmp_path, "mine", "42") as run, RunFeed(tmp_path, 42) as feed:
        run.ledger.commit_round(_record(1))
        run.ledger.commit_round(_record(2))
        assert [r.round for r in feed.poll()] == [1, 2]
        assert feed.poll() == []
        run.ledger.event("warning", round=3, attempt=0)
        assert feed.poll() == []
        run.ledger.commit_round(_record(3))
        assert [r.round for r in feed.poll()] == [3]
        assert [r.round for r in feed.records] == [1, 2, 3]


def test_a_ledger_without_its_first_row_is_looked_at_again(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "mine") as run, RunFeed(tmp_path, 42) as feed:
        feed.poll()
        assert feed.run is None
        run.ledger.create_run("mine", "now", {"flower-run": "42"}, "off")
        feed.poll()
        assert feed.run is not None


def test_who_is_waited_for_is_told_once_by_phase(tmp_path: Path) -> None:
    with _create(tmp_path, "mine", "42") as run, RunFeed(tmp_path, 42) as feed:
        run.ledger.event("late", round=1, attempt=0, node="aa", code="sharing")
        for node in ("aa", "bb"):
            run.ledger.event("waiting", round=1, attempt=0, node=node, code="sharing")
        run.ledger.event("waiting", round=1, attempt=1, node="aa", code="inviting")
        feed.poll()
        assert feed.waiting == [(1, "sharing", ["aa", "bb"]), (1, "inviting", ["aa"])]
        feed.poll()
        assert feed.waiting == []
        run.ledger.event("waiting", round=2, attempt=0, node="bb", code="voting")
        run.ledger.commit_round(_record(1))
        assert [record.round for record in feed.poll()] == [1]
        assert feed.waiting == [(2, "voting", ["bb"])]


def _tested(run: RunDirectory, number: int, accuracy: float) -> None:
    detail = {"test.accuracy": accuracy}
    run.ledger.event("tested", round=number, attempt=0, code="ab", detail=detail)


def test_a_test_that_comes_later_shows_its_record_again(tmp_path: Path) -> None:
    with _create(tmp_path, "mine", "42") as run, RunFeed(tmp_path, 42) as feed:
        for n in (1, 2, 3):
            run.ledger.commit_round(replace(_record(n), model="ab"))
        _tested(run, 3, 0.75)
        assert [dict(r.metrics) for r in feed.poll()] == [{}, {}, {"test.accuracy": 0.75}]
        assert feed.tested == []
        _tested(run, 1, 0.5)
        run.ledger.event("not tested", round=2, attempt=0, code="raised")
        assert feed.poll() == []
        assert [(r.round, dict(r.metrics)) for r in feed.tested] == [(1, {"test.accuracy": 0.5})]
        assert feed.untested == [(2, "raised")]
        assert [len(r.metrics) for r in feed.records] == [1, 0, 1]
        feed.poll()
        assert (feed.tested, feed.untested) == ([], [])


@pytest.mark.parametrize(
    ("tests", "event", "over"),
    [
        (False, None, True),
        (True, None, False),
        (True, ("tested", 1, "ab"), False),
        (True, ("tested", 2, "ab"), True),
        (True, ("not tested", 2, "died"), True),
        (True, ("not tested", 1, "no test data"), True),
    ],
)
def test_a_run_is_over_when_its_last_model_was_tested(
    tmp_path: Path, tests: bool, event: tuple[str, int, str] | None, over: bool
) -> None:
    with RunDirectory.create(tmp_path, "mine") as run:
        run.ledger.create_run("mine", "now", {"flower-run": "42", "server-test": tests}, "off")
        with RunFeed.of(tmp_path, "mine") as feed:
            assert not feed.over
            for record in (_record(1), _record(2), replace(_record(2), phase="evaluate")):
                assert not feed.over
                run.ledger.commit_round(record)
                feed.poll()
            if event is not None:
                kind, number, code = event
                run.ledger.event(kind, round=number, attempt=0, code=code)
                feed.poll()
            assert feed.over is over
