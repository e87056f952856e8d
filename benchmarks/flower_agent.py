"""An idle device as it is for months: its agent, SuperNode and SuperExec, before a real server.

The server is `umbel up`'s: SuperLink behind a front, TLS, node authentication. The device polls it
as it would anywhere, and no run is there. What is counted is every process that the agent's own
command has started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from .process_memory import proportional
from ..host.spawned import reap
from ..protocol.errors import StateError
from ..simulation.flower_up import FlowerUp, Wanted
from ..simulation.new import Kind, create

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLE_S, WATCH_S = 10.0, 30.0
"""After the node is online until it is looked at, and how long its processor time is watched."""
_ONLINE_S = 60.0
_STEP_S = 0.25
_HOUR_S = 3600


class Idle(NamedTuple):
    """One look at an idle device."""

    total: int
    """PSS of all its processes, bytes."""
    own: int
    """PSS of the agent alone, bytes."""
    cpu: float
    """Processor time that all of them take in an hour, seconds."""


@contextmanager
def server() -> Iterator[tuple[FlowerUp, Path]]:
    """Run a federation's server; gives it and the directory of its one device."""
    with tempfile.TemporaryDirectory(prefix="um") as where:
        home = Path(where)
        app = create("device", Kind.NUMPY, home)
        up = FlowerUp(Wanted(app=app, edge=1, gpu=0, home=home / "home", settings={"clients": 1}))
        try:
            up.start_servers()
            yield up, up.federation.device(up.federation.nodes[0].name)
        finally:
            up.close()


def idle_agent(up: FlowerUp, device: Path) -> Idle:
    """Start the device's agent, wait until it is idle, look at it, and end it.

    Raises:
        StateError: Its node does not come online.
    """
    command = [sys.executable, "-P", "-m", "umbel", "client", "up", "--device", str(device)]
    with open(device / "bench.log", "ab") as log:
        agent = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"UMBEL_HOME": str(device)},
        )  # fmt: skip
    try:
        until = time.monotonic() + _ONLINE_S
        while up.offline():
            if time.monotonic() > until or agent.poll() is not None:
                said = (device / "bench.log").read_text(errors="replace")
                raise StateError("agent", "a node that comes online", said[-500:])
            time.sleep(_STEP_S)
        time.sleep(SETTLE_S)
        family = _family(agent.pid)
        before = _seconds(family)
        time.sleep(WATCH_S)
        cpu = _HOUR_S * (_seconds(family) - before) / WATCH_S
        return Idle(sum(proportional(p.pid) for p in family), proportional(agent.pid), cpu)
    finally:
        agent.terminate()
        reap(agent, 20.0)


def _family(pid: int) -> list[Any]:
    """Return the agent and what it has started: its programs are in sessions of their own."""
    agent = psutil.Process(pid)
    return [agent, *agent.children(recursive=True)]


def _seconds(family: list[Any]) -> float:
    """Return the processor time that they have taken so far."""
    times = [process.cpu_times() for process in family]
    return float(sum(one.user + one.system for one in times))
