"""A pause: what the owner says, what stands in the file, and until when it is in force."""

from __future__ import annotations

import json
import os
import stat
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.clients.pause import LEFT, PAUSED, Pause, has_left, moment, paused, span, write_pause
from umbel.protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return a directory that a command takes for a device's."""
    place = tmp_path / "home" / "devices" / "north"
    place.mkdir(parents=True)
    (place / "device.toml").write_text("")
    return place


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UMBEL_DEVICE", raising=False)


def test_without_a_file_nothing_is_paused(tmp_path: Path) -> None:
    assert paused(tmp_path) is None
    assert not has_left(tmp_path)


def test_a_pause_is_in_force_until_its_end(tmp_path: Path) -> None:
    write_pause(tmp_path, Pause(since=100.0, until=200.0))
    assert paused(tmp_path, 199.9) == Pause(since=100.0, until=200.0)
    assert paused(tmp_path, 200.0) is None


def test_a_pause_without_end_has_none(tmp_path: Path) -> None:
    write_pause(tmp_path, Pause(since=100.0, now=True))
    assert paused(tmp_path, 1e12) == Pause(since=100.0, now=True)
    assert stat.S_IMODE((tmp_path / PAUSED).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [PAUSED]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"since": 1, "until": 0}',
        '{"since": 1, "until": 0, "now": 1}',
        '{"since": 1, "until": -1, "now": true}',
        '{"since": 1, "until": true, "now": true}',
        '{"since": 1, "until": 0, "now": true, "more": 0}',
        '{"since": 1, "until": "18:00", "now": true}',
        " " * 70_000,
    ],
)
def test_a_file_that_cannot_be_read_is_a_pause_without_end(tmp_path: Path, content: str) -> None:
    (tmp_path / PAUSED).write_text(content)
    assert paused(tmp_path, 1e12) == Pause(since=0.0)


def test_a_link_or_a_pipe_in_its_place_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"since": 1, "until": 2, "now": false}')
    (tmp_path / PAUSED).symlink_to(tmp_path / "elsewhere")
    assert paused(tmp_path, 3.0) == Pause(since=0.0)
    (tmp_path / PAUSED).unlink()
    os.mkfifo(tmp_path / PAUSED)
    assert paused(tmp_path, 3.0) == Pause(since=0.0)


def test_who_left_has_left_whatever_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / LEFT).symlink_to(tmp_path / "nowhere")
    assert has_left(tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("2h", 7200), ("3d", 259_200), ("1w", 604_800)]
)
def test_spans(text: str, seconds: float) -> None:
    assert span(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "-2h", "2.5h", "2H", "2 h", "2hh", "99999w"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(SettingsError, match="--for: expected a time like 90m"):
        span(text)


def test_an_hour_is_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    now = datetime(2026, 12, 1, 17, 30, tzinfo=UTC)
    assert moment("18:00", now) == datetime(2026, 12, 1, 18, 0, tzinfo=UTC).timestamp()
    assert moment("17:30", now) == datetime(2026, 12, 2, 17, 30, tzinfo=UTC).timestamp()
    assert moment("8:05", now) == datetime(2026, 12, 2, 8, 5, tzinfo=UTC).timestamp()


def test_a_day_with_another_offset_keeps_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    # In Berlin the clocks went back on 25 October 2026, 03:00 CEST: the next 18:00 is 25 h away.
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    summer = timezone(timedelta(hours=2))
    now = datetime(2026, 10, 24, 18, 0, tzinfo=summer)
    assert moment("18:00", now) - now.timestamp() == 25 * 3600


@pytest.mark.parametrize(
    "text", ["", "25:00", "18:60", "18", "tomorrow", "2026-11-30", "2099-01-01", "1" * 300]
)
def test_what_is_no_time_to_come(text: str) -> None:
    with pytest.raises(SettingsError, match="--until: expected a time to come"):
        moment(text, datetime(2026, 12, 1, tzinfo=UTC))


def _client(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["client", *words, "--format", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_pause_and_resume_on_the_command_line(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _client(capsys, "pause", "--for", "2h", "--now")
    assert said["until"] - said["since"] == 7200
    assert said["now"] is True
    found = paused(device)
    assert found is not None
    assert found.until == said["until"]
    assert _client(capsys, "resume")["was"] is True
    assert paused(device) is None
    assert _client(capsys, "resume", "--device", str(device))["was"] is False


def test_a_time_and_a_span_are_one_too_many(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["client", "pause", "--for", "2h", "--until", "18:00"]) == 2
    assert (
        capsys.readouterr().err == "umbel: pause: expected --for or --until, got 'both'; say one\n"
    )
    assert paused(device) is None


def test_which_device_is_said_or_the_only_one(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = device.with_name("south")
    other.mkdir()
    (other / "device.toml").write_text("")
    assert cli.main(["client", "pause"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"name one: {device}, {other}" in line
    monkeypatch.setenv("UMBEL_DEVICE", str(other))
    assert cli.main(["client", "pause"]) == 0
    assert paused(other) is not None
    assert paused(device) is None
    assert cli.main(["client", "pause", "--device", str(device / "nothing")]) == 2
    assert "enrol the device first" in capsys.readouterr().err


def test_no_device_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["client", "resume"]) == 2
    assert "`umbel client enrol TOKEN` makes one" in capsys.readouterr().err
