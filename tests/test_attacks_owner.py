"""What an owner said, and may see, against a server and a machine that do not care."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

import umbel
from umbel.clients import flower_client_app, leave, options
from umbel.clients.device_files import DeviceFiles
from umbel.clients.history import History
from umbel.clients.history_file import CONTRIBUTED, REFUSED, Entry, read_history
from umbel.clients.leave import KEYS, Left
from umbel.clients.pause import LEFT, PAUSED, Pause, halted, write_pause
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import SettingsError, StateError
from umbel.tests.federations import Run, addressed, core, made
from umbel.tests.gateway import Gateway

if TYPE_CHECKING:
    from pathlib import Path


def test_a_server_that_asks_again_and_again_does_not_push_the_record_out(tmp_path: Path) -> None:
    record = History(tmp_path, pytest.fail)
    first = Entry(kind="attempt", at=1.0, until=1.0, run="r", round=1, outcome=CONTRIBUTED)
    record.add(first)
    asked = Entry(kind="attempt", at=2.0, until=2.0, run="r", round=2)
    for number in range(200):
        row = record.add(asked)
        record.change(row, until=2.0 + number, outcome=REFUSED, code="policy", reason="no")
    record.close()
    entries = read_history(tmp_path)
    assert [(entry.outcome, entry.times) for entry in entries] == [(CONTRIBUTED, 1), (REFUSED, 200)]


def test_a_pause_that_somebody_damaged_is_one_still(tmp_path: Path) -> None:
    write_pause(tmp_path, Pause(since=1.0, until=5.0))
    (tmp_path / PAUSED).write_bytes(b"\0" * 40)
    assert halted(tmp_path, 1e12) is not None


def test_a_device_that_left_stays_out_whatever_else_its_files_say(tmp_path: Path) -> None:
    write_pause(tmp_path, Pause(since=1.0, until=5.0))
    (tmp_path / LEFT).write_bytes(b"\0")
    halt = halted(tmp_path, 1e12)
    assert halt is not None
    assert halt.now


def test_a_server_that_invites_a_paused_device_gets_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = made(tmp_path / "federation", 1).device("edge-0")
    monkeypatch.setenv("UMBEL_DEVICE", str(device))
    monkeypatch.setenv("UMBEL_APP_SHA256", bytes(range(32)).hex())
    opened = []
    monkeypatch.setattr(flower_client_app, "_check_invitation", lambda *_: opened.append(1))
    write_pause(device, Pause(since=1.0))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    record = ConfigRecord(
        {"run": "r", "gateway": "127.0.0.1:9", "ticket": b"t", "lease": 60,
         "ca-sha256": DeviceFiles.read(device).ca().hex()}
    )  # fmt: skip
    asked = Message(RecordDict({"umbel.invite": record}), dst_node_id=1, message_type="train")
    answer = umbel.secure(ClientApp())(asked, Context(2, 3, {}, RecordDict(), {}))
    assert answer.content["umbel.session"]["code"] == pb.REASON_PAUSED
    assert not opened


def test_a_server_gets_no_further_round_of_a_device_that_is_paused(tmp_path: Path) -> None:
    federation = made(tmp_path / "federation")
    with core(federation) as port, ExitStack() as opened:
        addressed(federation, f"127.0.0.1:{port}")
        run = opened.enter_context(closing(Run(federation, tmp_path, "paused")))
        devices = [d.start(run.name, run.ticket(i)) for i, d in enumerate(run.devices())]
        run.joined(3)
        write_pause(devices[0].files.directory, Pause(since=time.time()))
        assert devices[0].join().reason == pb.REASON_PAUSED
        run.core.goodbye()
        assert [d.join().reason for d in devices[1:]] == [pb.REASON_GOODBYE] * 2


def test_what_is_broken_off_says_so_and_no_more(tmp_path: Path) -> None:
    gate = Gateway(3, tmp_path)
    session = gate.sessions[0]
    session.halted = "paused by its owner until then, because of the visitors"
    (sent,) = session._guarded(lambda: session._secure(pb.ToClient()))
    refusal = pb.ToServer.FromString(sent.data).refusal  # type: ignore[union-attr]
    assert (refusal.reason, refusal.key) == (pb.REASON_PAUSED, "")
    assert b"visitors" not in sent.data  # type: ignore[union-attr]
    gate.close()


def test_who_finds_the_disk_of_a_device_that_left_finds_no_key(tmp_path: Path) -> None:
    for name in KEYS:
        (tmp_path / name).write_bytes(b"-- secret --" * 20)
        os.link(tmp_path / name, tmp_path / f"{name}.block")
    leave.wipe(tmp_path)
    for name in KEYS:
        assert not (tmp_path / name).exists()
        assert b"secret" not in (tmp_path / f"{name}.block").read_bytes()


def test_a_link_in_the_place_of_a_key_makes_nobody_elses_file_garbage(tmp_path: Path) -> None:
    (tmp_path / "somebodys").write_bytes(b"precious")
    (tmp_path / "tls.key").symlink_to(tmp_path / "somebodys")
    leave.wipe(tmp_path)
    assert (tmp_path / "somebodys").read_bytes() == b"precious"


def test_keys_are_not_taken_from_under_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave, "AGENT_S", 0.0)
    leave._write(tmp_path, Left(since=1.0, request="{}", told=True))
    (tmp_path / "tls.key").write_bytes(b"key")
    with open(tmp_path / "journal", "w") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="no process of this device"):
            leave.leave(tmp_path, lambda _line: None)
    assert (tmp_path / "tls.key").exists()


def test_a_new_name_does_not_forget_what_the_old_one_voted_for(tmp_path: Path) -> None:
    old, heir = tmp_path / "north", tmp_path / ".north.enrolling"
    for place in (old, heir):
        place.mkdir()
    leave._write(old, Left(since=1.0, told=True, wiped=True))
    (old / "journal").write_bytes(b"voted")
    leave.set_aside(old, heir)
    assert (heir / "journal").exists()
    assert (heir / "journal").read_bytes() == b"voted"


def test_another_user_writes_nothing_that_the_agent_could_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device.toml").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SettingsError, match="sudo -u"):
        options.own_place(tmp_path)
