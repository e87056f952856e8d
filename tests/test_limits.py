"""Hours, bytes, hooks and disk: each refuses with its key, and the day's account remembers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients.limits import ASK_S, Limits, Place, _ahead, taken
from umbel.clients.policy import Policy
from umbel.clients.usage import FILE, Usage, Used
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2030, 3, 1, 10, 30, tzinfo=UTC)
LOOPBACK = Place("127.0.0.1:9")


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


class Stand:
    """Limits with a clock of their own."""

    def __init__(self, place: Place = LOOPBACK, file: Path | None = None, **policy: Any) -> None:
        self.now, self.passed = NOW, 0.0
        usage = Usage(file, lambda: self.now)
        self.limits = Limits(Policy(**policy), usage, lambda: self.now, place, lambda: self.passed)

    def refused(self, key: str, model: int = 0) -> str:
        """Return what the device says, which names the key."""
        with pytest.raises(Refused) as caught:
            self.limits.check(model)
        assert (caught.value.reason, caught.value.key) == (pb.REASON_LIMITS, f"limits.{key}")
        return str(caught.value)


def test_hours_are_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(hours=("08:00-09:00", "10:30-11:00"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        stand.limits.check()
        monkeypatch.setenv("TZ", "UTC-3")  # POSIX: three hours ahead
        time.tzset()
        assert "it is 13:30, limits.hours is 08:00-09:00, 10:30-11:00" in stand.refused("hours")
        stand.now += timedelta(hours=19)
        stand.limits.check()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "never" in Stand(hours=()).refused("hours")


def test_bytes_of_a_day_are_counted_and_those_to_come(tmp_path: Path) -> None:
    file = tmp_path / FILE
    stand = Stand(file=file, bytes_per_day=1000)
    stand.limits.check(400)
    said = stand.refused("bytes_per_day", 501)
    assert "0 bytes in 24 hours, 1002 to come, limits.bytes_per_day is 1000" in said
    stand.limits.moved(600)
    stand.limits.moved(950)
    stand.limits.look()
    stand.limits.moved(1000)
    stand.refused("bytes_per_day")
    stand.limits.close()
    assert "1000 bytes in 24 hours" in Stand(file=file, bytes_per_day=1000).refused("bytes_per_day")
    Stand(file=file, bytes_per_day=1001).limits.check()
    stand.now += timedelta(hours=25)
    stand.limits.check()


def test_a_metered_link_has_a_cap_of_its_own() -> None:
    policy: dict[str, Any] = {"metered_bytes_per_day": 100, "metered_interfaces": ("lo",)}
    stand = Stand(**policy)
    stand.limits.moved(99)
    stand.limits.check()
    stand.limits.moved(100)
    assert "the link is metered: 100 bytes" in stand.refused("metered_bytes_per_day")
    free = Stand(metered_bytes_per_day=0, metered_interfaces=("wwan*",))
    free.limits.moved(10**9)
    free.limits.check()
    never = Stand(metered_bytes_per_day=0, metered_interfaces=("l?",))
    never.refused("metered_bytes_per_day")
    policy["metered_interfaces"] = ("wwan*",)
    unknown = Stand(Place(""), **policy)
    unknown.limits.moved(100)
    unknown.refused("metered_bytes_per_day")


@pytest.mark.parametrize(("status", "metered"), [(0, True), (1, False), (2, True)])
def test_a_hook_may_say_that_the_link_is_metered(
    tmp_path: Path, status: int, metered: bool
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\nexit {status}\n")
    hook.chmod(0o755)
    stand = Stand(metered_bytes_per_day=0, metered_hook=(str(hook),))
    if metered:  # a hook that fails counts as yes
        stand.refused("metered_bytes_per_day")
    else:
        stand.limits.check()


def test_a_cap_without_a_word_on_what_is_metered_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match="metered_interfaces or metered_hook beside it"):
        Policy(metered_bytes_per_day=5)


def test_the_ready_hook_decides_and_is_asked_once_a_minute(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\nexec test -e {tmp_path}/idle\n")
    hook.chmod(0o755)
    stand = Stand(ready_hook=(str(hook),))
    assert "limits.ready_hook says no: exit status 1" in stand.refused("ready_hook")
    (tmp_path / "idle").touch()
    stand.passed = ASK_S - 1
    stand.refused("ready_hook")
    stand.passed = ASK_S
    stand.limits.check()
    stand.limits.look()
    assert (tmp_path / "asked").read_text() == "\n\n"


def test_what_tasks_have_written_and_a_model_must_fit_the_disk(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    (tasks / "task" / "deep").mkdir(parents=True)
    (tasks / "task" / "deep" / "file").write_bytes(bytes(1 << 20))
    (tasks / "link").symlink_to("/usr")
    assert 1 << 20 <= taken(tasks) < 2 << 20
    stand = Stand(Place(tasks=tasks), disk=3 << 20)
    stand.limits.check(1 << 20)
    assert "limits.disk is 3145728" in stand.refused("disk", 2 << 20)
    assert taken(tmp_path / "absent") == 0


@pytest.mark.parametrize(
    ("policy", "ahead"),
    [
        ({}, (1 << 20, 1 << 20, 10)),
        ({"bytes_per_day": 5000, "rounds_per_day": 250}, (50, 50, 2)),
        ({"bytes_per_day": 10**12, "rounds_per_day": 7}, (1 << 20, 1 << 20, 0)),
        ({"metered_bytes_per_day": 0, "metered_interfaces": ()}, (0, 0, 10)),
    ],
)
def test_a_kill_costs_a_hundredth_of_a_bound_at_most(
    policy: dict[str, Any], ahead: tuple[int, int, int]
) -> None:
    assert _ahead(Policy(**policy)) == ahead


def test_a_round_is_on_the_account_before_it_moves_a_byte(tmp_path: Path) -> None:
    stand = Stand(file=tmp_path / FILE, metered_interfaces=("lo",), metered_bytes_per_day=10**9)
    stand.limits.begin(5_000_000)  # and then the device is switched off
    kept = Usage(tmp_path / FILE, lambda: NOW).day()
    assert kept[:2] == (10_000_000, 10_000_000)
    assert kept.rounds >= 1
    stand.limits.close()
    assert Usage(tmp_path / FILE, lambda: NOW).day() == Used(0, 0, 1)
    assert stand.limits.rounds() == 1
    stand.passed = 86_400.0
    assert stand.limits.rounds() == 0
