"""A real federation in the hands of a test: rounds step by step, processes killed at a moment.

The app is staged_app.py. A round goes on when the test lets it, and a thread of the test watches
the programs as `umbel up` does, so that what was killed is started again.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from umbel.host import process_tree
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import UmbelError
from umbel.server.run_directory import RunDirectory, list_runs
from umbel.simulation.flower_up import FlowerUp, Wanted
from umbel.tests.staged_app import STEP, WEIGHTS, staged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from umbel.server.ledger import Event, RoundRecord

NAMES = tuple(f"edge-{i}" for i in range(len(WEIGHTS)))
PROGRAMS = {"ClientApp": "flower_launcher", "child": "umbel.clients.worker"}
"""What the command line of a device's process holds."""


@dataclass
class Seen:
    """What happened to a program, and when."""

    at: float
    name: str
    what: str


class UpStage:
    """The federation, its run and its hooks."""

    def __init__(self, folder: Path) -> None:
        """Bring up five clients; `folder` needs a short path, for a socket's name."""
        self.stage = folder / "stage"
        app = staged(folder, self.stage)
        self.home = folder / "home"
        wanted = Wanted(
            app=app, edge=len(NAMES), gpu=0, home=self.home, settings={"clients": len(NAMES)}
        )
        self.up = FlowerUp(wanted)
        self.seen: list[Seen] = []
        self.trouble: list[UmbelError] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.run, self.flower_run = "", 0
        self.runs: list[int] = []
        """Flower's ids of every run."""
        self.round = 0

    def start(self) -> None:
        """Start every program; the run is begun by `submit`."""
        self.up.start_servers()
        self.up.start_nodes()
        self.up.wait_online()
        self.ids = {node.id: node.name for node in self.up.federation.nodes}
        self._thread.start()

    def submit(self) -> None:
        """Submit the app."""
        self.flower_run = self.up.submit({})
        self.runs.append(self.flower_run)

    def ca(self) -> str:
        """Return the SHA-256 of the federation's root, hex."""
        record = json.loads((self.up.wanted.folder / "core.json").read_text())
        return str(record["ca_sha256"])

    def sent_bytes(self, name: str, what: str) -> list[bytes]:
        """Return what a device's process sent: messages, frames, or requests."""
        data = (self.stage / f"sent-{name}-{what}").read_bytes()
        found = []
        while data:
            size = int.from_bytes(data[:4], "little")
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def sent(self, name: str, what: str) -> list[pb.Up]:
        """Return the same as messages of a session."""
        return [pb.Up.FromString(data) for data in self.sent_bytes(name, what)]

    def left(self) -> list[str]:
        """Return the command lines of processes that belong to this federation."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get("UMBEL_DEVICE", "").startswith(str(self.home)):
                    found.append(" ".join(process.cmdline()))
        return found

    def over(self, run: int) -> Any:
        """Wait until Flower's run is over and return what became of it."""

        def found() -> Any:
            state = self.up.control.run(run)
            return state if state.over else None

        return self.until(found, 150, "the run's end")

    def answers(self, bundle: bytes, gateway: str, ca: str) -> list[dict[str, Any]]:
        """Invite every node by a ServerApp of its own; return what the nodes answered."""
        before = len(self.trace(op="answer"))
        config = {"rogue": f"{gateway} {ca}"}
        self.runs.append(self.up.control.start_run(bundle, sha256(bundle).hexdigest(), config))
        self.over(self.runs[-1])
        return self.trace(op="answer")[before:]

    def logs(self) -> dict[str, str]:
        """Return every log by its program's name."""
        return {
            file.stem: file.read_text("utf-8", "replace")
            for file in (self.up.wanted.folder / "logs").glob("*.log")
        }

    def close(self) -> None:
        """End everything."""
        self.go(10**6)
        self.release()
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.up.close()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            try:
                for item in self.up.watch():
                    self.seen.append(Seen(time.time(), item.name, item.what))
            except UmbelError as error:
                self.trouble.append(error)
                return

    # -- what is seen -------------------------------------------------------------------------

    def trace(self, **wanted: object) -> list[dict[str, Any]]:
        """Return the lines of the trace that say this; nodes by their names."""
        try:
            lines = (self.stage / "trace").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        for line in found:
            line["node"] = self.ids.get(line.get("node", ""), line.get("node", ""))
        return [line for line in found if wanted.items() <= line.items()]

    def until(self, holds: Callable[[], Any], seconds: float = 60.0, what: str = "it") -> Any:
        """Return what `holds` gives once it is true."""
        end = time.monotonic() + seconds * patience()
        while not (found := holds()):
            assert not self.trouble, self.trouble
            assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
            time.sleep(0.02)
        return found

    def begun(self) -> str:
        """Return the id of the newest run, once its first round trains."""
        self.until(lambda: len(self.trace(op="training")) >= len(NAMES), 90, "the first training")
        (self.run,) = set(list_runs(self.home)) - {self.run}
        return self.run

    def records(self) -> list[RoundRecord]:
        """Return the ledger's rounds."""
        with RunDirectory.open(self.home, self.run) as directory:
            return list(directory.ledger.rounds())

    def events(self, number: int) -> list[Event]:
        """Return the ledger's events of a round, nodes by their names."""
        with RunDirectory.open(self.home, self.run) as directory:
            return [e for e in directory.ledger.events() if e.round == number]

    def moved(self, number: int) -> float:
        """Return how far a round moved the model's parameters, all by the same."""
        with RunDirectory.open(self.home, self.run) as directory:
            before, after = (directory.read_round(n)["0"] for n in (number - 1, number))
        step = np.unique(after - before)
        assert np.ptp(step) < STEP * 1e-3
        return float(step.mean())

    # -- what is done -------------------------------------------------------------------------

    def go(self, number: int, names: tuple[str, ...] = NAMES) -> None:
        """Let clients train up to a round."""
        for name in names:
            _write(self.stage / f"go-{name.rpartition('-')[2]}", str(number))

    def full_round(self) -> int:
        """Return the number of a round in which all five are training, and wait."""
        while True:
            number = self.round + 1
            trained = self._training(number)
            if trained == set(NAMES):
                self.round = number
                return number
            if self.until(lambda: self._joined() == set(NAMES), 60, "all sessions"):
                self.go(number)  # this one without the late joiner
                self.finished(number)

    def _training(self, number: int) -> set[str]:
        """Return who trains in a round, once nobody more has begun for a while."""
        known: set[str] = set()
        self.until(lambda: self.trace(op="training", round=number), 60, f"round {number}")
        while True:
            found = {line["node"] for line in self.trace(op="training", round=number)}
            if found == known or found == set(NAMES):
                return found
            known = found
            time.sleep(1.5)

    def _joined(self) -> set[str]:
        state = {line["node"]: line["op"] for line in self.trace() if line["op"] in _SESSION}
        return {name for name, op in state.items() if op == "joined"}

    def finished(self, number: int) -> RoundRecord:
        """Return a round's record, once it is there."""

        def found() -> list[RoundRecord]:
            return [r for r in self.records() if r.round == number]

        record: RoundRecord = self.until(found, 60, f"the record of round {number}")[0]
        self.round = number
        return record

    def hold(self, **event: str) -> None:
        """Stop the ServerApp at an event."""
        names = {name: node for node, name in self.ids.items()}
        event["node"] = names[event["node"]]
        _write(self.stage / "hold", json.dumps(event))

    def release(self) -> None:
        """Let whatever was stopped go on."""
        for file in [self.stage / "hold", *self.stage.glob("stall-*")]:
            file.unlink(missing_ok=True)

    def pids(self, name: str, kind: str) -> list[int]:
        """Return the pids of a device's ClientApp or training child."""
        state = json.loads((self.up.wanted.folder / "up.json").read_text())
        found = []
        for owner, process in process_tree.marked(state["mark"]):
            try:
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if owner == name and PROGRAMS[kind] in command:
                found.append(process.pid)
        return found

    def kill(self, name: str, kind: str) -> float:
        """Kill one process of a device with SIGKILL; return when, after it has taken effect."""
        if kind == "SuperNode":
            pids = [self.up.supervisor.pid(name)]
            gone = self.pids(name, "ClientApp")
        else:
            pids = gone = self.pids(name, kind)
        assert len(pids) == 1
        at = time.time()
        os.kill(pids[0], signal.SIGKILL)
        self.until(lambda: not any(map(_alive, [*pids, *gone])), 10, "its end")
        return at


class Listener:
    """A port that counts who calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()
                self.calls += 1


_SESSION = ("joined", "left")


def patience() -> float:
    """Return by how much times are stretched where others use this machine's cores, too."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def expected_step(names: set[str]) -> float:
    """Return how far these clients' round moves every parameter: the weighted mean."""
    parts = [int(name.rpartition("-")[2]) for name in names]
    total = sum(WEIGHTS[p] for p in parts)
    return sum(WEIGHTS[p] * (p + 1) * STEP for p in parts) / total


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.replace(path)
