"""The account of a day survives restarts and kills, and never says less than was used."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from umbel.clients.usage import AHEAD, Usage, Used
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = datetime(2030, 3, 1, 10, 30, tzinfo=UTC)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> datetime:
        """Return what the test has set."""
        return self.now

    def wait(self, hours: float) -> None:
        """Let time pass; it may go back."""
        self.now += timedelta(hours=hours)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "usage.json"


def test_what_was_used_is_there_after_a_restart(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    usage.add(Used(5000, 300, 1))
    usage.add(Used(bytes=7))
    assert usage.day() == (5007, 300, 1)
    usage.close()
    again = Usage(file, clock)
    assert again.day() == again.earlier() == (5007, 300, 1)
    again.add(Used(rounds=2))
    assert again.day() == (5007, 300, 3)
    assert again.earlier() == (5007, 300, 1)


def test_a_killed_process_leaves_more_on_the_account_never_less(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    usage.add(Used(10, 0, 1))  # and then it is killed
    kept = Usage(file, clock).day()
    assert kept == (10 + AHEAD.bytes, 0, 1 + AHEAD.rounds)
    usage.about_to_use(Used(bytes=50_000_000, metered=50_000_000))
    kept = Usage(file, clock).day()
    assert kept == (10 + 50_000_000, 50_000_000, 1 + AHEAD.rounds)
    usage.close()
    assert Usage(file, clock).day() == (10, 0, 1)


def test_the_disk_is_asked_only_when_the_account_is_used_up(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    usage.add(Used(1, 0, 1))
    before = file.stat().st_mtime_ns
    for _ in range(AHEAD.rounds):
        usage.add(Used(AHEAD.bytes // AHEAD.rounds, 0, 1))
    assert file.stat().st_mtime_ns == before
    usage.add(Used(rounds=1))
    assert file.stat().st_mtime_ns > before


def test_an_hour_counts_until_all_of_it_is_a_day_past(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    usage.add(Used(bytes=100))
    clock.wait(24)
    usage.add(Used(bytes=10))
    assert usage.day().bytes == 110
    clock.wait(0.6)  # 11:06: what was used at 10:30 is more than a day past
    assert usage.day().bytes == 10
    usage.close()
    assert len(json.loads(file.read_text())["hours"]) == 2  # and this hour, with nothing
    clock.wait(-3)  # a clock that is set back forgets nothing of the day
    assert Usage(file, clock).day().bytes == 10


def test_what_is_ahead_is_of_the_hour_in_which_it_will_be_used(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    usage.add(Used(bytes=1))
    clock.wait(1)
    usage.add(Used(bytes=1))  # and then it is killed
    rows = json.loads(file.read_text())["hours"]
    assert [row[0] for row in rows.values()] == [1, 1 + AHEAD.bytes]


def test_days_leave_no_more_than_a_few_lines(file: Path, clock: Clock) -> None:
    usage = Usage(file, clock)
    for _ in range(60):
        usage.add(Used(bytes=2 * AHEAD.bytes))
        clock.wait(1)
    usage.close()
    assert len(json.loads(file.read_text())["hours"]) <= 26


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"version":1}', '{"version":2,"hours":{}}', '{"version":1,"hours":[]}',
        '{"version":1,"hours":{"now":[1,1,1]}}', '{"version":1,"hours":{"1":[1,1]}}',
        '{"version":1,"hours":{"1":[1,1,-1]}}', '{"version":1,"hours":{"1":[1,1,true]}}',
        '{"version":1,"hours":{"1":[1,1,1.5]}}',
    ],
)  # fmt: skip
def test_a_damaged_account_stops_the_device(file: Path, clock: Clock, text: str) -> None:
    file.write_text(text)
    with pytest.raises(StateError, match="the day's account begins anew"):
        Usage(file, clock)


def test_an_account_that_others_could_have_written_stops_the_device(
    file: Path, clock: Clock
) -> None:
    Usage(file, clock).add(Used(1))
    file.chmod(0o666)
    with pytest.raises(StateError, match="no write permission but the owner's"):
        Usage(file, clock)


def test_an_account_that_cannot_be_written_stops_the_device(tmp_path: Path, clock: Clock) -> None:
    usage = Usage(tmp_path / "gone" / "usage.json", clock)
    with pytest.raises(StateError, match="can be written"):
        usage.add(Used(1))
