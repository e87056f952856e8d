"""Reading a run's ledger while another process writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import StateError
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.simulation.run_feed import RunFeed

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
