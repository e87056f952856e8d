"""Processes for tests of the core: devices that die at a chosen moment, and a ServerApp.

`Host` starts one process that imports everything once; each device is a fork of it, hence a
process of its own within milliseconds. Orders go in as lines of JSON, process ids come back, and
what a process says is in its own log. A device's user code is the table of rounds.py.

A moment is where the device sends itself a signal, once, in the round that the order names:

| moment | the device |
|---|---|
| `train` | has the terms, and nothing of it is known yet: before keys |
| `masked` | has sent its shares, and has not written down that it masks |
| `upload` | has handed six tenths of its frames to the transport |
| `voted` | has uploaded, and has not written down its vote |
| `released` | has voted, and has not released a share |
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.clients import grpc_line, grpc_session, grpc_transfer
from umbel.clients.device_files import DeviceFiles
from umbel.clients.grpc_session import GatewaySession, Invitation
from umbel.clients.journal import FileJournal
from umbel.clients.update import Update
from umbel.protocol import frames
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import UmbelError
from umbel.protocol.journal import Masked, Released, Voted
from umbel.server.registry import Node
from umbel.simulation.dev_federation import DevFederation
from umbel.strategies.task import Site
from umbel.strategies.trainer import TrainResult
from umbel.tests import soak_client
from umbel.tests.federations import APP, Run
from umbel.tests.rounds import Fixed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from umbel.protocol.journal import History, Record
    from umbel.strategies.trainer import Settings

RECORDS: dict[str, type] = {"masked": Masked, "voted": Voted, "released": Released}


# ---- the test's side ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Child:
    """One process that a test may kill."""

    pid: int
    log: Path
    born: str
    """When it began, as /proc says it: another process may have its pid one day."""

    @property
    def alive(self) -> bool:
        """Tell whether it runs, or is stopped; one that does not holds no lock any more."""
        return self.born != "" and self.born == _born(self.pid)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def said(self, key: str, wait: float = 60.0) -> Any:
        """Return what it has said under a key, waiting for it."""
        end = time.monotonic() + wait
        while True:
            for line in self.log.read_text().splitlines():
                if line.startswith("{") and key in (found := json.loads(line)):
                    return found[key]
            assert time.monotonic() < end, f"no {key}: {self.log.read_text()}"
            time.sleep(0.02)

    def gone(self, wait: float = 60.0) -> None:
        """Wait until it has ended."""
        end = time.monotonic() + wait
        while self.alive:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)


def _born(pid: int) -> str:
    """Return when a process began, in the system's ticks; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


class Host:
    """The process that the others are forks of."""

    def __init__(self, folder: Path, within: Sequence[str] = ()) -> None:
        """Start it, by a command that runs others if one is given; logs go to `folder`."""
        self._folder, self._number = folder, itertools.count()
        self._children: list[Child] = []
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "umbel.tests.process_host"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True, process_group=0,
        )  # fmt: skip

    def device(self, directory: Path, run: str, ticket: bytes, index: int, **how: Any) -> Child:
        """Start a device's process.

        Args:
            directory: The device's.
            run: What it joins.
            ticket: Admits it.
            index: Its number in the table.
            how: `at`, `round` and `signal`: when it signals itself, and what; `gateway`: another
                address to dial; `away`: seconds without a gateway; `shape`: of the array `w`;
                `weight` and `scale`: other numbers than the table's; `share`: of the times after
                which it says or asks something.
        """
        return self.start("device", directory=str(directory), run=run, ticket=ticket.hex(),
                           index=index, **how)  # fmt: skip

    def server(self, federation: DevFederation, home: Path, run: str, **how: Any) -> Child:
        """Start a ServerApp's process; it says `tickets`, then `rounds` one by one, then `over`."""
        return self.start("server", federation=str(federation.folder), home=str(home), run=run,
                           **how)  # fmt: skip

    def start(self, what: str, **order: Any) -> Child:
        """Start a process of this kind: `device`, `server`, or `client` (soak_client.py)."""
        log = self._folder / f"{next(self._number)}-{what}.log"
        log.touch()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, "log": str(log), **order}) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        child = Child(pid, log, _born(pid))
        self._children.append(child)
        return child

    def end(self) -> None:
        """Kill every process that a test has left, and wait: the next ones take their locks."""
        left = [child for child in self._children if child.alive]
        for child in left:
            with suppress(ProcessLookupError):
                child.kill()
        for child in left:
            child.gone()
        self._children.clear()

    def close(self) -> None:
        """End all, and the host."""
        self.end()
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


# ---- the processes -----------------------------------------------------------------------------


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class _Moment:
    """Sends this process a signal, once."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._at, self._round = order.get("at"), order.get("round", 1)
        self._signal = order.get("signal", signal.SIGKILL)
        self.round = 0

    def reached(self, moment: str) -> None:
        if moment == self._at and self.round == self._round:
            self._at = None
            _say(reached=moment)
            os.kill(os.getpid(), self._signal)


class _Numbers(Fixed):
    """The table, and the moment before keys."""

    def __init__(self, moment: _Moment, order: Mapping[str, Any]) -> None:
        super().__init__(tuple(order.get("shape", (3, 5))))
        self._moment, self._order = moment, order

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        self._moment.round = settings.round
        self._moment.reached("train")
        found = super().train(arrays, site, settings)
        scale, weight = self._order.get("scale", 1), self._order.get("weight", found.weight)
        deltas = {name: (scale * d).astype(d.dtype) for name, d in found.deltas.items()}
        return TrainResult(deltas, weight, found.metrics | {"eval.examples": weight})


class _Journal:
    """The device's journal, and the moments before its records."""

    def __init__(self, path: Path, moment: _Moment) -> None:
        self._file, self._moment = FileJournal(path), moment

    @property
    def history(self) -> History:
        return self._file.history

    def write(self, record: Record) -> None:
        for name, kind in RECORDS.items():
            if isinstance(record, kind):
                self._moment.reached(name)
        self._file.write(record)

    def close(self) -> None:
        self._file.close()


def _sooner(share: float) -> None:
    """Let the line's beats and pings come after a share of their times."""
    grpc_line.BEAT_S *= share
    pings = {"grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms"}
    vars(grpc_line)["OPTIONS"] = tuple(
        (name, round(share * value) if name in pings else value)
        for name, value in grpc_line.OPTIONS
    )


def _device(order: Mapping[str, Any]) -> None:
    files = DeviceFiles.read(Path(order["directory"]))
    files = replace(files, gateway=order.get("gateway", files.gateway))
    grpc_session.AWAY_S = order.get("away", grpc_session.AWAY_S)
    _sooner(order.get("share", 1.0))
    moment = _Moment(order)
    whole = frames.frames

    def broken(*arguments: Any) -> Iterator[bytes]:
        found = list(whole(*arguments))
        for place, frame in enumerate(found):
            if place >= 0.6 * len(found):
                moment.reached("upload")
            yield frame

    vars(grpc_transfer)["frames"] = broken
    site = Site(partition=order["index"], partitions=12)
    trainer = _Numbers(moment, order)
    update = Update(trainer, site, files.policy, entropy=os_entropy, seed=0)
    journal = _Journal(files.journal, moment)
    device = files.device(update, journal, APP, lambda line: print(line, flush=True))
    invitation = Invitation(order["run"], bytes.fromhex(order["ticket"]))
    outcome = GatewaySession(files, device, invitation).serve()
    journal.close()
    _say(outcome=[int(outcome.reason), outcome.rounds, outcome.detail])


def _server(order: Mapping[str, Any]) -> None:
    folder = Path(order["federation"])
    nodes = [Node(**row) for row in json.loads((folder / "nodes.json").read_text())]
    federation = DevFederation(folder=folder, name="tested", nodes=tuple(nodes))
    shape = tuple(order.get("shape", (3, 5)))
    around = {"observe": lambda record: _say(**{f"round-{record.round}": record.outcome})}
    run = Run(federation, Path(order["home"]), order["run"], trainer=Fixed(shape),
              around=around, behind=True, **order.get("settings", {}))  # fmt: skip
    _say(tickets=[run.ticket(index).hex() for index in range(len(nodes))])
    run.joined(order["count"])
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    _say(over=True)


def _child(order: Mapping[str, Any]) -> None:
    """Be the process that the order asks for, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        {"device": _device, "server": _server, "client": soak_client.serve}[order["what"]](order)
    except UmbelError as error:
        _say(error=str(error))
    finally:
        sys.stdout.flush()
        os._exit(0)


def main(lines: Sequence[str] | Any) -> None:
    """Fork a process for each order."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a killed one leaves no zombie
    for line in lines:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.stdin)
