"""The windows of a device's day: over midnight, over a change of the clocks, and from its file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from umbel.clients.hours import Hours, opens, within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Central European time, whose clocks went forward on 31 March 2030 at 01:00 UTC."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(day: int, hour: int, minute: int = 0) -> datetime:
    """Return a time of March 2030, UTC."""
    return datetime(2030, 3, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("08:00-18:00", ["08:00", "17:59"], ["07:59", "18:00"]),
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "21:59"]),
        ("00:00-24:00", ["00:00", "23:59"], []),
        ("18:00-24:00", ["18:00", "23:59"], ["00:00", "17:59"]),
    ],
)
def test_a_window_may_go_over_midnight(window: str, inside: list[str], outside: list[str]) -> None:
    assert all(within(now, window) for now in inside)
    assert not any(within(now, window) for now in outside)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("hours", "now", "begins"),
    [
        (("22:00-06:00",), at(1, 12), at(1, 21)),
        (("22:00-06:00", "13:30-14:00"), at(1, 12), at(1, 12, 30)),
        (("08:00-09:00",), at(30, 12), at(31, 6)),  # one hour sooner: the clocks went forward
        (("08:00-09:00",), at(30, 7, 0), at(31, 6)),
    ],
)
def test_the_next_window_begins_in_local_time(
    hours: tuple[str, ...], now: datetime, begins: datetime
) -> None:
    assert opens(hours, now.astimezone()) == begins.timestamp()


def test_without_a_window_there_is_no_next_one() -> None:
    assert opens((), datetime.now().astimezone()) == 0.0


@pytest.mark.usefixtures("berlin")
def test_a_device_rests_outside_of_the_hours_of_its_policy(tmp_path: Path) -> None:
    hours, file = Hours(tmp_path), tmp_path / "policy.toml"
    assert hours.rest(at(1, 12)) is None  # no policy
    file.write_text('[limits]\nhours = ["22:00-06:00"]\n')
    rest = hours.rest(at(1, 12))
    assert rest is not None
    assert rest.until == at(1, 21).timestamp()
    assert str(rest).startswith("outside limits.hours of this device's policy, 22:00-06:00; the ne")
    assert hours.rest(at(1, 22)) is None
    file.unlink()
    file.write_text("[limits]\nhours = []\n")
    never = hours.rest(at(1, 22))
    assert never is not None
    assert (never.until, str(never)) == (0.0, "outside limits.hours of this device's policy, never")


@pytest.mark.parametrize(
    "text",
    ["", "[limits]\n", "[limits]\nhours = ['now']\n", "limits = 1\n", "[", "[limits]\nhours=1"],
)
def test_a_policy_without_good_hours_stops_no_supernode(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    assert Hours(tmp_path).rest(at(1, 12)) is None


def test_hours_cost_an_agent_nothing_heavy() -> None:
    program = (
        "import sys, umbel.clients.hours; heavy = {'numpy', 'flwr', 'grpc', 'cryptography'}"
        " & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
