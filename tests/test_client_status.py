"""`umbel client status`: the picture of a device, whatever of it is broken."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.clients import status
from umbel.clients.history import History
from umbel.clients.history_file import CONTRIBUTED, ENDED, FILE, OPEN, REFUSED, Entry
from umbel.clients.leave import Left, _write
from umbel.clients.pause import Pause, write_pause
from umbel.clients.status import gathered, lines
from umbel.clients.status_file import AgentStatus, SessionStatus, write_agent, write_session
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDLE = SessionStatus(state="idle", run="r-1", gateway="fl.example.org:443", up=True, since=1.0)
UP = AgentStatus(state="up", program=1)
NOTHING_BUT_AGENT = ["no agent runs: `umbel client up`, or `umbel client install` for good"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of an enrolled device, not to be changed."""
    return made(tmp_path_factory.mktemp("federation"), 1).device("edge-0")


@pytest.fixture
def device(federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of it."""
    place = tmp_path / "edge-0"
    place.mkdir(mode=0o700)
    for file in federation.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
        (place / file.name).chmod(0o600)
    monkeypatch.setenv("UMBEL_DEVICE", str(place))
    return place


def _row(device: Path, **values: Any) -> None:
    now = time.time()
    record = History(device, pytest.fail)
    base = Entry(kind="attempt", at=now, until=now, run="r-1", round=3, phase="train", members=20)
    record.add(replace(base, **values))
    record.close()


def _broken_index(device: Path) -> None:
    (device / "apps").mkdir()
    (device / "apps" / "index.json").write_text("{")


def test_a_device_whose_agent_does_not_run(device: Path) -> None:
    found = gathered(device)
    assert found.doing == "nothing: no agent runs"
    assert found.todo == NOTHING_BUT_AGENT
    assert (found.federation, len(found.node)) == ("tested", 32)
    assert 5 * 86400 < found.certificates_end - time.time() < 8 * 86400
    assert found.free_bytes > 0


@pytest.mark.parametrize(
    ("session", "words"),
    [
        ({"state": "joining"}, "joining run r-1"),
        ({"state": "idle"}, "waiting for the next round of run r-1"),
        ({"state": "loading", "round": 4}, "receiving the model for round 4 of run r-1"),
        ({"state": "computing", "round": 4}, "training for round 4 of run r-1"),
        ({"state": "computing", "phase": "evaluate"}, "testing for round 0 of run r-1"),
        ({"state": "exchanging", "round": 4}, "handing in its part of round 4 of run r-1"),
        ({"state": "away", "up": False}, "in run r-1, whose server does not answer"),
    ],
)
def test_what_a_session_does(device: Path, session: dict[str, Any], words: str) -> None:
    write_session(device, replace(IDLE, **session))
    write_agent(device, UP)
    found = gathered(device)
    assert (found.doing, found.todo) == (words, [])
    shown = "\n".join(lines(found))
    word = "answers" if session.get("up", True) else "does not answer"
    assert f"the server at fl.example.org:443 {word}" in shown
    assert shown.endswith("nothing to do")


def test_a_session_of_a_process_that_is_gone_is_none(device: Path) -> None:
    write_session(device, replace(IDLE, mark="another boot/1"))
    write_agent(device, UP)
    found = gathered(device)
    assert found.doing == "waiting to be asked by the server"
    _row(device)
    found = gathered(device)
    assert found.last is not None
    assert found.last.outcome == "interrupted"


def test_what_the_agent_says(device: Path) -> None:
    now = time.time()
    fault: dict[str, Any] = {
        "error": "front: expected an answer, got none; check it",
        "error_at": now,
    }
    write_agent(device, replace(UP, state="waiting", until=now + 60, **fault))
    found = gathered(device)
    assert found.doing.startswith("its SuperNode does not stay up; the next try is at ")
    assert found.todo[0].startswith("front: expected an answer, got none; check it (at ")
    write_agent(device, replace(UP, renewed=now + 1, **fault))
    assert gathered(device).todo == []  # it went well since
    write_agent(device, replace(UP, state="resting", detail="limits.hours"))
    assert gathered(device).doing == "resting: limits.hours"


def test_a_pause_is_the_first_thing_to_know(device: Path) -> None:
    write_session(device, IDLE)
    write_pause(device, Pause(since=5.0))
    found = gathered(device)
    assert found.doing == (
        "paused by its owner until `umbel client resume`; the round in progress ends first"
    )
    assert found.since == 5.0


def test_who_has_left_has_nothing_to_do_but_to_say_so(device: Path) -> None:
    _write(device, Left(since=5.0, node="ab" * 16, request="{}", wiped=True))
    found = gathered(device)
    assert found.doing == "it has left tested"
    assert found.todo == [
        "the server does not know yet that this device left: call `umbel client leave` again, or "
        f"tell its operator: umbel server remove {'ab' * 16}"
    ]
    assert "request" not in found.described()["left"]
    _write(device, Left(since=5.0, told=True, wiped=True))
    assert gathered(device).todo == []
    _write(device, Left(since=5.0))
    assert gathered(device).todo == ["leaving was broken off: call `umbel client leave` again"]


def test_a_refusal_is_shown_with_its_reason_until_a_round_went_well(device: Path) -> None:
    write_agent(device, UP)
    _row(device, outcome=CONTRIBUTED, bytes_up=1_500_000)
    for _ in range(2):
        _row(device, outcome=REFUSED, code="policy", reason="policy: the run has 40, max is 39")
    (line,) = gathered(device).todo
    assert re.fullmatch(r"refused at .*: policy: the run has 40, max is 39 \(2 times\)", line)
    shown = "\n".join(lines(gathered(device)))
    assert "1 contribution, 2 refusals, 1.5 MB up, 0 B down" in shown
    _row(device, outcome=CONTRIBUTED)
    assert gathered(device).todo == []
    _row(device, kind="session", outcome=ENDED, code="goodbye")
    _row(device, outcome=REFUSED, code="paused", reason="paused: by its owner")
    assert gathered(device).todo == []
    _row(device, kind="refusal", outcome=REFUSED, code="limits", reason="limits: it is 12:00")
    assert gathered(device).todo == []  # what the owner's own hours are for
    assert "limits: it is 12:00" in "\n".join(lines(gathered(device)))
    old = time.time() - 2 * 86400
    _row(device, outcome=REFUSED, code="policy", reason="old", at=old, until=old)
    assert gathered(device).todo == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: (d / "agent.json").write_text("{"), "agent.json: expected JSON"),
        (lambda d: (d / "session.json").mkdir(), "session.json: expected a re"),
        (lambda d: (d / "left").write_text("{"), "what `umbel client leave` wrote"),
        (lambda d: (d / FILE).write_text("x" * 5000), "expected a record that can be read"),
        (lambda d: (d / "tls.pem").write_text("x"), "is no certificate; `umbel client renew`"),
        (lambda d: (d / "signing.pem").unlink(), "signing.pem: expected a readable file"),
        (lambda d: (d / "policy.toml").write_text("x = 1"), "policy.toml:1: x: expected"),
        (lambda d: (d / "device.toml").write_text("x = 1"), "device.toml:1: x: expected"),
        (lambda d: (d / "members.list").write_bytes(b"x"), "members.list: expected a member list"),
        (_broken_index, "index.json: expected an index of bundles"),
    ],
)
def test_what_is_broken_is_said_and_hides_nothing_else(
    device: Path, spoil: Callable[[Path], object], words: str
) -> None:
    _row(device, outcome=CONTRIBUTED)
    before = gathered(device)
    spoil(device)
    found = gathered(device)
    assert any(words in line for line in found.todo), found.todo
    assert found.free_bytes > 0
    if words not in {"expected a record that can be read", "what `umbel client leave` wrote"}:
        assert found.last == before.last
    assert cli.main(["client", "status"]) == 0


def test_certificates_that_end_soon_or_have_ended(device: Path) -> None:
    write_agent(device, UP)
    end = gathered(device).certificates_end
    for at, words in ((end - 86400, "end soon and were not renewed"), (end + 1, "have ended")):
        found = gathered(device, at)
        assert any(f"its certificates {words}" in line for line in found.todo)
    assert "that is past" in "\n".join(lines(gathered(device, end + 1)))


def test_a_disk_that_is_nearly_full(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "free_bytes", lambda _: 150_000_000)
    write_agent(device, UP)
    assert gathered(device).todo == ["150.0 MB are free on its disk; free some"]


def test_as_json_it_is_whole(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_session(device, replace(IDLE, state="computing", round=4))
    write_agent(device, UP)
    _row(device, outcome=OPEN)
    assert cli.main(["client", "status", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["doing"] == "training for round 4 of run r-1"
    assert (said["agent_alive"], said["session"]["round"], said["last"]["round"]) == (True, 4, 3)
    assert datetime.fromtimestamp(said["at"], UTC) > datetime(2026, 1, 1, tzinfo=UTC)


def test_watching_shows_what_changes_and_ends_by_an_interrupt(device: Path) -> None:
    near, far = pty.openpty()
    command = [sys.executable, "-m", "umbel", "client", "status", "--watch"]
    process = subprocess.Popen(command, stdout=far, stderr=far, start_new_session=True)
    os.close(far)
    shown = b""
    while b"no agent runs" not in shown:
        shown += os.read(near, 65536)
    write_agent(device, UP)
    while b"waiting to be asked by the server" not in shown:
        shown += os.read(near, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    os.close(near)
    assert shown.count(b"\x1b[H") >= 2
    assert b"Traceback" not in shown
