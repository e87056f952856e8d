"""Leaving: the CA is told, the keys are gone, whatever happens on the way and however often."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.clients import front_line, leave
from umbel.clients.enrol import enrol
from umbel.clients.history import History
from umbel.clients.history_file import read_history
from umbel.clients.journal import FileJournal
from umbel.clients.leave import KEYS, Left, read_left
from umbel.clients.pause import LEFT, Pause, paused, write_pause
from umbel.clients.policy import Policy
from umbel.protocol.errors import StateError
from umbel.tests.enrolling import Door
from umbel.tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """Return a federation's front."""
    found = Door(tmp_path / "federation")
    yield found
    found.close()


@pytest.fixture
def proxy(door: Door) -> Iterator[FaultProxy]:
    """Return what stands before the front, and can be shut."""
    found = FaultProxy(door.port)
    yield found
    found.close()


@pytest.fixture
def device(door: Door, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of an enrolled device, with a record."""
    monkeypatch.setattr(front_line, "TRIES", 1)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UMBEL_DEVICE", raising=False)
    door.front_is(f"127.0.0.1:{proxy.port}")
    place = tmp_path / "home" / "devices" / "wards"
    enrol(door.token(), place, Policy(), lambda _line: None)
    record = History(place, pytest.fail)
    record.refuse("policy", "k", "a reason")
    record.close()
    return place


def _leave(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["client", "leave", "--yes", "--format", "json", *words]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def _nodes(door: Door) -> list[str]:
    return [node["state"] for node in door.stage.issuer.nodes()]


def test_the_ca_removes_the_node_and_the_keys_are_gone(
    door: Door, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = {name: (device / name).read_bytes() for name in KEYS}
    for name in KEYS:
        os.link(device / name, device.parent / name)  # what the file's blocks hold afterwards
    said = _leave(capsys)
    assert (said["told"], said["wiped"], said["federation"]) == (True, True, "wards")
    assert "request" not in said
    assert door.seen[-1] == "/v1/leave"
    assert _nodes(door) == ["left"]
    assert not any((device / name).exists() for name in KEYS)
    for name, secret in secrets.items():
        left = (device.parent / name).read_bytes()
        assert len(left) == len(secret)
        assert not any(secret[at : at + 8] in left for at in range(len(secret) - 8))
    stays = {path.name for path in device.iterdir()}
    assert stays >= {"device.toml", "policy.toml", "ca.pem", "history.sqlite", LEFT}
    assert not stays & {"tls.pem", "signing.pem", "flower.pub", "members.list", "paused"}
    assert [e.reason for e in read_history(device)] == ["a reason"]
    asked = len(door.seen)
    assert _leave(capsys) == said
    assert len(door.seen) == asked


def test_a_server_that_is_away_is_told_later(
    door: Door, device: Path, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.refuse = True
    assert cli.main(["client", "leave", "--yes"]) == 0
    out = capsys.readouterr().out
    node = read_left(device)
    assert node is not None
    assert f"umbel server remove {node.node}" in out
    assert not any((device / name).exists() for name in KEYS)
    assert _nodes(door) == ["enrolled"]
    proxy.refuse = False
    assert _leave(capsys)["told"] is True
    assert _nodes(door) == ["left"]
    assert cli.main(["client", "leave"]) == 0
    assert "the server has removed the node" in capsys.readouterr().out


def test_a_node_that_the_operator_removed_is_told_of(
    door: Door, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    door.stage.issuer.remove("press-17")
    assert _leave(capsys)["told"] is True


class _Killed(BaseException):
    """Ends the process there and then."""


def _mortal(monkeypatch: pytest.MonkeyPatch, lives: int) -> Callable[[], bool]:
    """Let the process die at the step after so many; tell whether it did."""
    left = lives

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Killed
            found = work(*args, **kwargs)
            left -= 1
            if left < 0:
                raise _Killed
            return found

        return step

    for name in ("write_whole", "_overwrite", "_wipe", "remove_pause", "sync_directory"):
        monkeypatch.setattr(leave, name, dying(getattr(leave, name)))
    monkeypatch.setattr(leave, "write_pause", dying(write_pause))
    monkeypatch.setattr(front_line.Front, "post", dying(front_line.Front.post))
    return lambda: left < 0


def test_a_kill_at_any_step_and_another_call_is_the_same(
    door: Door, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    while True:
        place = device.with_name(f"device-{steps}")
        shutil.copytree(device, place)  # the same node: from the second on the CA says `removed`
        with monkeypatch.context() as patched:
            died = _mortal(patched, steps)
            try:
                leave.stop(place, lambda _line: None, now=False)
                leave.leave(place, lambda _line: None)
            except _Killed:
                pass
            dead = died()
        if (found := read_left(place)) is not None and found.wiped:
            assert not any((place / name).exists() for name in KEYS)
        leave.stop(place, lambda _line: None, now=False)
        done = leave.leave(place, lambda _line: None)
        assert (done.told, done.wiped) == (True, True)
        assert not any((place / name).exists() for name in KEYS)
        assert not any(path.name.startswith(".") for path in place.iterdir())
        if not dead:
            break
        steps += 1
    assert steps > 15
    assert _nodes(door) == ["left"]
    assert door.seen.count("/v1/leave") >= steps


def test_the_round_in_progress_ends_first_and_an_interrupt_takes_the_pause_back(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FileJournal(device / "journal")
    lines: list[str] = []
    waiting = threading.Thread(
        target=leave.stop, args=(device, lines.append), kwargs={"now": False}
    )
    waiting.start()
    while not lines:
        time.sleep(0.01)
    pause = paused(device)
    assert pause is not None
    assert (pause.until, pause.now) == (0.0, False)
    assert lines == ["waiting for the session in progress to end; --now does not"]
    assert waiting.is_alive()

    sleep = time.sleep

    def interrupted(seconds: float) -> None:
        if threading.current_thread() is not waiting:
            raise KeyboardInterrupt
        sleep(seconds)

    earlier = Pause(since=1.0, until=time.time() + 500)
    write_pause(device, earlier)
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            leave.stop(device, lines.append, now=True)
    assert paused(device) == earlier
    journal.close()
    waiting.join(60)
    assert not waiting.is_alive()


def test_an_agent_that_does_not_end_keeps_the_keys(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leave, "AGENT_S", 0.0)
    (device / "agent").mkdir()
    with open(device / "agent" / "agent.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cli.main(["client", "leave", "--yes"]) == 2
    assert "end `umbel client up`" in capsys.readouterr().err
    assert all((device / name).exists() for name in KEYS)
    assert (device / LEFT).exists()
    assert _leave(capsys)["told"] is True


def test_a_key_that_cannot_be_removed_is_named_and_the_others_are_gone(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wipe = leave._wipe

    def stuck(path: Path) -> None:
        if path.name == "tls.key":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        wipe(path)

    with monkeypatch.context() as patched:
        patched.setattr(leave, "_wipe", stuck)
        assert cli.main(["client", "leave", "--yes"]) == 2
    assert f"{device / 'tls.key'}: Operation not permitted" in capsys.readouterr().err
    assert [name for name in KEYS if (device / name).exists()] == ["tls.key"]
    assert _leave(capsys)["wiped"] is True


@pytest.mark.parametrize("broken", ["policy.toml", "signing.key", "device.toml"])
def test_a_broken_device_can_leave(
    door: Door, device: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (device / broken).write_text("= = =")
    said = _leave(capsys)
    assert said["wiped"] is True
    assert said["told"] is (broken == "policy.toml")
    assert not any((device / name).exists() for name in KEYS)


def test_who_is_asked_may_say_no_and_nobody_is_asked_without_a_terminal(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["client", "leave"]) == 2
    assert "expected --yes where nobody can be asked" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt: "n")
    assert cli.main(["client", "leave"]) == 130
    assert not (device / LEFT).exists()
    assert paused(device) is None


def test_forget_removes_the_rest(device: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (device / "agent").mkdir()
    (device / "agent" / "log").touch()
    assert _leave(capsys, "--forget")["forgotten"] is True
    assert not device.exists()
    assert cli.main(["client", "leave", "--yes"]) == 2
    assert "expected a device in" in capsys.readouterr().err


def test_a_link_in_a_keys_place_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"somebody's")
    (tmp_path / "tls.key").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "signing.key").symlink_to(tmp_path / "nowhere")
    leave.wipe(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"somebody's"
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere"}


def test_another_enrolment_finds_the_place_free_and_takes_the_journal_over(
    door: Door, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FileJournal(device / "journal").close()
    (device / "journal").write_text("remembered")
    first = _leave(capsys)["node"]
    done = enrol(door.token("press-18"), device, Policy(), lambda _line: None)
    assert done.id.hex() != first
    assert (device / "journal").read_text() == "remembered"
    assert read_left(device) is None
    aside = device.with_name(".wards.left-1")
    assert read_left(aside) is not None
    assert cli.main(["client", "history", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == str(device)


def test_a_device_that_has_not_left_yet_is_not_set_aside(tmp_path: Path) -> None:
    place = tmp_path / "north"
    place.mkdir()
    leave._write(place, Left(since=1.0))
    with pytest.raises(StateError, match="call `umbel client leave` again first"):
        leave.set_aside(place, tmp_path)
    assert place.exists()
