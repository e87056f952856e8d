"""ServerApps and cores that die, two runs on one core, and what a core's socket carries."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import StateError
from umbel.server import core_wire
from umbel.server.core_client import CoreClient
from umbel.server.run_directory import RunDirectory
from umbel.tests.core_stage import CoreStage
from umbel.tests.federations import Run, addressed, made
from umbel.tests.integers import message, update
from umbel.tests.process_host import Host
from umbel.tests.quick_core import SOONER, core_up
from umbel.tests.rounds import Fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.dev_federation import DevFederation

THREE = (0, 1, 2)
MANY = 32 << 20
"""Bytes of a sum that no socket's buffer holds."""


def waited(holds: Callable[[], bool]) -> None:
    """Wait for something."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


class Core:
    """A core service in a process whose log is kept."""

    def __init__(
        self, federation: DevFederation, log: Path, times: Mapping[str, float] | None = None
    ) -> None:
        """Start it and tell the devices where it listens."""
        command = core_up(federation.folder, times)
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, process_group=0, stdout=out, stderr=out)
        end = time.monotonic() + 60
        while (record := self._record(federation)).get("pid") != self.process.pid:
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < end, "the core service does not listen"
            time.sleep(0.05)
        addressed(federation, f"127.0.0.1:{record['port']}")

    def _record(self, federation: DevFederation) -> dict[str, Any]:
        """Return core.json, which a killed one has left, or none."""
        file = federation.folder / "core.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def files(self) -> int:
        """Return how many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def down_to(self, count: int) -> None:
        """Wait until no more files and sockets are open than so many."""
        waited(lambda: self.files() <= count)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(20)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> DevFederation:
    """Six devices."""
    return made(tmp_path_factory.mktemp("federation"), 6)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """What starts processes."""
    found = Host(tmp_path_factory.mktemp("host"))
    yield found
    found.close()


@pytest.fixture
def core(federation: DevFederation, host: Host, tmp_path: Path) -> Iterator[Core]:
    """A core of the test's own; what the test has started ends before it."""
    found = Core(federation, tmp_path / "core.log", SOONER)
    yield found
    host.end()
    found.end()


# ---- deaths ------------------------------------------------------------------------------------


class Elsewhere(Fixed):
    """The table, with another initial model."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return {name: array + 1 for name, array in super().arrays(seed).items()}


def test_a_killed_server_app_leaves_whole_rounds_and_sessions_that_its_successor_gets(
    federation: DevFederation, host: Host, core: Core, tmp_path: Path
) -> None:
    settings = {"rounds": 10_000, "final_evaluation": False, "deadline": 30.0, "trip": 5.0}
    server = host.server(federation, tmp_path, "killed", count=3, settings=settings)
    tickets = server.said("tickets")
    devices = [
        host.device(federation.device(f"edge-{i}"), "killed", bytes.fromhex(tickets[i]), i)
        for i in THREE
    ]
    assert server.said("round-3") == "finished"
    server.kill()
    server.gone()
    waited(lambda: "3 sessions wait for the next" in core.log.read_text())
    time.sleep(SOONER["GRACE"] + 0.5)
    assert all(device.alive for device in devices)
    with RunDirectory.resume(tmp_path, "killed") as found:  # verifies the ledger, too
        rows = found.ledger.rounds()
        finished = [r.round for r in rows if r.outcome == "finished"]
        assert finished == list(range(1, len(rows) + 1))
        latest = found.latest()
        assert latest == finished[-1] >= 2  # the third was on its way to the disk
        assert found.read_round(latest)["steps"] == 7
        assert sorted(p.name for p in (found.path / "rounds").iterdir())[-1] == f"{latest:06}"
        whole = {"manifest.json", "00000-of-00001.safetensors"}
        for folder in (found.path / "rounds").iterdir():
            assert {p.name for p in folder.iterdir()} == whole
    given = {**settings, "rounds": 2, "trainer": Elsewhere()}
    successor = Run(federation, tmp_path / "next", "killed", **given)
    successor.joined(3)  # nobody had to dial again
    successor.coordinator.begin(time.monotonic())
    successor.pump(lambda: successor.coordinator.done)
    successor.core.goodbye()
    assert [(r.outcome, len(r.survivors)) for r in successor.records] == [("finished", 3)] * 2
    assert [device.said("outcome")[2] for device in devices] == ["goodbye"] * 3
    assert "trying again" not in "".join(device.log.read_text() for device in devices)
    successor.close()


def test_a_killed_core_ends_the_run_with_one_line_and_devices_within_their_lease(
    federation: DevFederation, host: Host, core: Core, tmp_path: Path
) -> None:
    how = {i: {"away": 1.0} for i in THREE}
    stage = CoreStage(federation, host, tmp_path, "core", members=THREE, how=how, rounds=10_000)
    stage.rounds(2)
    core.end(signal.SIGKILL)
    with pytest.raises(StateError) as caught:
        stage.play()
    line = str(caught.value)
    assert line.startswith("core.sock: expected the core service, got ")
    assert line.endswith("; start the core service: `umbel core up`, or `umbel up`")
    assert "\n" not in line
    ends = [child.said("outcome") for child in stage.children.values()]
    assert all(detail.startswith("no gateway for ") for _, _, detail in ends)
    stage.run.close()


def test_a_server_app_that_dies_while_its_sum_is_looked_through_is_noticed(
    federation: DevFederation, core: Core
) -> None:
    before = core.files()
    for number in range(3):
        client = CoreClient.open(federation.folder, f"big-{number}", "A")
        client.command("sum", ctx="00" * 32, total=MANY, split=MANY, stall=1.0, plain=None)
        client.command("read", bound=1)
        client.close()
    core.down_to(before)
    waited(lambda: core.log.read_text().count("its ServerApp left; 0 sessions wait") == 3)


# ---- two runs ----------------------------------------------------------------------------------


def test_two_runs_on_one_core_do_not_meet(
    federation: DevFederation, host: Host, core: Core, tmp_path: Path
) -> None:
    before = core.files()
    given: dict[str, Any] = {"rounds": 6, "final_evaluation": True}
    first = CoreStage(federation, host, tmp_path, "first", members=THREE, **given)
    second = CoreStage(federation, host, tmp_path, "second", members=(3, 4, 5), **given)
    both = (first, second)
    for stage in both:
        stage.rounds(0)
    while not all(stage.run.coordinator.done for stage in both):
        for stage in both:
            count = len(stage.records)
            if not stage.run.coordinator.done:
                stage.rounds(count + 1)
    for stage, members in zip(both, (THREE, (3, 4, 5)), strict=True):
        assert [r.outcome for r in stage.records] == ["finished"] * 7
        for number in range(1, 7):
            stage.exact(number, members, 3)
        assert [outcome[1:] for outcome in stage.over()] == [[7, "goodbye"]] * 3
        assert stage.told() == []
    for child in (*first.children.values(), *second.children.values()):
        child.gone()
    for stage in both:
        stage.run.close()
    core.down_to(before)


# ---- what travels ------------------------------------------------------------------------------


class Tap:
    """A federation directory whose core.sock leads to the real one and keeps what passes."""

    def __init__(self, federation: DevFederation, folder: Path) -> None:
        """Listen in `folder`."""
        folder.mkdir()
        for name in ("ca.pem", "core.json", "nodes", "nodes.json"):
            (folder / name).symlink_to(federation.folder / name)
        self.federation = replace(federation, folder=folder)
        self.seen: dict[str, bytearray] = {"command": bytearray(), "event": bytearray()}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "core.sock"))
        self._listener.listen()
        self._listener.settimeout(60)
        self._target = str(federation.folder / "core.sock")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        near.settimeout(None)
        self._listener.close()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._target)
        back = threading.Thread(target=self._copy, args=(far, near, "event"), daemon=True)
        back.start()
        self._copy(near, far, "command")
        back.join(60)
        near.close()
        far.close()

    def _copy(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):  # an end that closes with something unread resets the other
            while data := source.recv(1 << 16):
                self.seen[name] += data
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def events(self) -> list[str]:
        """Return the names of the events that have passed."""
        return [op for op, _, _ in self.messages("event", core_wire.EVENTS)]

    def messages(self, name: str, known: Any) -> list[core_wire.Message]:
        """Return what passed, message by message."""
        reader, data, found = core_wire.Reader(known, name), bytes(self.seen[name]), []
        while data:
            room = reader.room()
            count = min(len(room), len(data))
            room[:count], data = data[:count], data[count:]
            message = reader.filled(count)
            if message is not None:
                found.append(message)
        return found


def form(value: Any) -> tuple[Any, ...]:
    """Return a message with the length of each field of bytes in place of its bytes."""
    if hasattr(value, "ListFields"):
        return tuple((field.name, form(value)) for field, value in value.ListFields())
    if isinstance(value, bytes | bytearray):
        return ("bytes", len(value))
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{32}|[0-9a-f]{64}", value):
        return ("hex", len(value))
    if isinstance(value, dict):
        return tuple(sorted((key, form(value)) for key, value in value.items()))
    if isinstance(value, int | float | str | None):
        return ("value", value)
    return tuple(sorted((form(item) for item in value), key=repr))  # in the order of coming


def clear(tap: Tap) -> Counter[tuple[Any, ...]]:
    """Return how often each form of message passed; what is a time differs from run to run."""
    found: Counter[tuple[Any, ...]] = Counter()
    for name, known in (("command", core_wire.COMMANDS), ("event", core_wire.EVENTS)):
        for op, fields, payload in tap.messages(name, known):
            kind = {"message": pb.ToServer, "post": pb.ToClient}.get(op)
            body = kind.FromString(bytes(payload)) if kind else payload
            # `budget` is what is left of the server's own deadline.
            shown = {k: v for k, v in fields.items() if k not in {"bytes", "tickets", "budget"}}
            if op == "progress":  # comes while an upload takes long, with a time
                continue
            found[(name, op, form(shown), form(body))] += 1
    return found


def ledger(path: Path) -> list[tuple[Any, ...]]:
    """Return what the ledger says of one round, but times, hashes and what the sum opens to.

    Of the times of single devices, which stand beside a round, there are the keys.
    """
    base = sqlite3.connect(f"file:{path / 'ledger.sqlite'}?mode=ro", uri=True)
    try:
        rounds = base.execute(
            "SELECT round, attempt, phase, outcome, cause, roster, survivors, bytes_up FROM round"
        ).fetchall()
        rows = base.execute(  # on a busy machine everybody is waited for now and then
            "SELECT kind, round, node, code, detail FROM event WHERE kind != 'waiting'"
        ).fetchall()
    finally:
        base.close()
    events = [(*row[:4], sorted(json.loads(row[4])) if row[0] == "clients" else row[4])
              for row in rows]  # fmt: skip
    return [
        (*row[:5], *(sorted(json.loads(ids)) for ids in row[5:7]), row[7]) for row in rounds
    ] + events


def test_the_socket_the_ledger_and_the_log_say_nothing_of_one_devices_numbers(
    federation: DevFederation, host: Host, core: Core, tmp_path: Path
) -> None:
    forms, ledgers, taps = [], [], []
    for name, numbers in (("run-a", {}), ("run-b", {"weight": 39, "scale": 0.25})):
        tap = Tap(federation, tmp_path / f"tap-{name}")
        stage = CoreStage(
            tap.federation, host, tmp_path, name, members=THREE, how={1: numbers}, rounds=2
        )
        stage.hold = 2
        stage.rounds(1)
        _linger(stage)
        ledgers.append(ledger(stage.directory.path))
        stage.over()
        waited(lambda tap=tap: tap.events().count("left") == len(THREE))  # type: ignore[misc]
        stage.close()
        forms.append(Counter({_unnamed(key): n for key, n in clear(tap).items()}))
        taps.append(bytes(tap.seen["command"] + tap.seen["event"]))
    assert forms[0] == forms[1]
    assert ledgers[0] == ledgers[1]
    ours = update(1, 1, (3, 5))
    needles = [struct.pack("<d", v) for v in ours["w"].reshape(-1).tolist()]
    needles += [struct.pack("<f", v) for v in ours["b"].tolist()]
    needles += [struct.pack("<4i", *message(1, 3).codes["w"][:4])]
    assert not any(needle in taps[0] for needle in needles)
    told = core.log.read_text().replace("run-a", "run-b").splitlines()
    once = ("listening", "member list", "accumulators")  # of the start; sizes alone, of all devices
    told = [line for line in told if not any(word in line for word in once)]
    assert told
    assert Counter(told) == Counter({line: 2 for line in told})
    assert not any(digit in line for line in told for digit in "0123456789")


def _linger(stage: CoreStage) -> None:
    """Take what still comes after a round."""
    end = time.monotonic() + 0.5
    stage.play(lambda: time.monotonic() > end)


def _unnamed(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a form without names of run and memory, and the weights of all devices together."""
    form = re.sub(r"run-[ab]|umbel-model-[\d-]+", "name", json.dumps(key))
    return (re.sub(r'\["weight", \["value", \d+\]\]', '["weight"]', form),)
