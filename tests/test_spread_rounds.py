"""Rounds over two hosts as an operator starts them: torchrun agents on loopback, real devices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from umbel.tests.federations import Run, addressed, made
from umbel.tests.test_grpc_session import Big, begun, finished
from umbel.tests.test_spread_world import free_port, rendezvous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BEGIN = 120.0
"""Seconds for two interpreters with torch, and their ranks, on a busy machine."""


def waited(what: Callable[[], object], processes: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + BEGIN
    while not what():
        assert time.monotonic() < until, "nothing came of it"
        assert all(one.poll() is None for one in processes), "a process has ended"
        time.sleep(0.05)


def agent(node: int, port: int, log: Path, *words: str) -> subprocess.Popen[str]:
    """Start torchrun as on host `node` of two."""
    about = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
    meet = ["--master-addr", "127.0.0.1", "--master-port", str(port), "--max-restarts", "0"]
    command = [sys.executable, "-m", "torch.distributed.run", *about, *meet, "-m", "umbel", *words]
    with log.open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, text=True)


def below(process: subprocess.Popen[str], module: str) -> list[psutil.Process]:
    """Return the processes that one has started, and that run a module."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [one for one in found if module in one.cmdline()]


@contextmanager
def hosts(federation: DevFederation, logs: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a core service and a wing with two ranks, each by an agent of its own."""
    port = free_port()
    up = ("core", "up", "--federation", str(federation.folder), "--hosts", "2", "--ranks", "1")
    agents = [
        agent(0, port, logs / "up.log", *up),
        agent(1, port, logs / "wing.log", "core", "wing", "--ranks", "2"),
    ]
    record = federation.folder / "core.json"
    try:
        waited(record.exists, agents)
        yield agents
    finally:
        for one in agents:
            one.send_signal(signal.SIGTERM)
        for one in agents:
            one.wait(60)


def test_rounds_over_two_hosts_and_a_killed_rank(tmp_path: Path) -> None:
    federation = made(tmp_path / "federation")
    with hosts(federation, tmp_path) as agents:
        gateway = f"127.0.0.1:{json.loads((federation.folder / 'core.json').read_text())['port']}"
        for number, scheme in enumerate(("A", "plain")):
            addressed(federation, gateway, secure=scheme == "A")
            run = Run(
                federation, tmp_path, f"run-{scheme}", trainer=Big(), scheme=scheme,
                final_evaluation=False,
            )  # fmt: skip
            devices = begun(run)
            ranks = below(agents[1], "umbel.server.core.rank")
            assert len(ranks) == 2
            ranks[number].kill()
            finished(run)
            assert [device.join().rounds for device in devices] == [2] * 3
            assert [record.outcome for record in run.records] == ["finished"] * 2
            model = run.coordinator.model["w"]
            np.testing.assert_allclose(model, np.full(1_000_000, 0.54), atol=1e-4)
            run.close()
        processes = [one for each in agents for one in psutil.Process(each.pid).children(True)]
    assert "it is started anew, the other ranks go on" in (tmp_path / "wing.log").read_text()
    gone, alive = psutil.wait_procs(processes, timeout=20)
    assert len(gone) >= 5
    assert not alive


@contextmanager
def two_processes(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Run a core service and a wing with a rank, as torchrun does, and without it."""
    federation, port = made(tmp_path / "federation"), free_port()
    up = ["core", "up", "--federation", str(federation.folder), "--hosts", "2"]
    first, second = (
        subprocess.Popen(
            [sys.executable, "-m", "umbel", *words], text=True, stderr=subprocess.PIPE,
            env=os.environ | rendezvous(rank, 2, port),
        )
        for rank, words in enumerate((up, ["core", "wing", "--ranks", "1"]))
    )  # fmt: skip
    try:
        waited((federation.folder / "core.json").exists, [first, second])
        ranks = psutil.Process(second.pid).children()
        yield first, second
        assert not (federation.folder / "core.json").exists() or first.returncode < 0
        assert not psutil.wait_procs(ranks, timeout=20)[1]
    finally:
        for one in (first, second):
            one.kill()
            one.wait()
            if one.stderr is not None:
                one.stderr.close()


@pytest.mark.parametrize(
    ("sign", "why"),
    [(signal.SIGKILL, "a connection that was closed"), (signal.SIGSTOP, "silence for 60 s")],
)
def test_a_lost_wing_ends_the_core_service_with_a_line(
    tmp_path: Path, sign: signal.Signals, why: str
) -> None:
    with two_processes(tmp_path) as (first, second):
        second.send_signal(sign)
        _, said = first.communicate(timeout=150)
        second.kill()
    assert first.returncode == 2
    assert said.strip().split("\n")[-1] == (
        f"umbel: host 1: expected a host that answers, got {why}; "
        "end torchrun and start it again on every host: runs go on from their last round"
    )


def test_a_wing_ends_with_its_core_service(tmp_path: Path) -> None:
    with two_processes(tmp_path) as (first, second):
        first.kill()
        first.wait()
        _, said = second.communicate(timeout=60)
    assert second.returncode == 2
    assert said.strip().split("\n")[-1] == (
        "umbel: host 0: expected a host that answers, got a connection that was closed"
    )
