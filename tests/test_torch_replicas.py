"""Replicas: the bits of one process for any number of them, and what a death or a failure costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.replicas import Costs, World, longest_first, world
from umbel.tests.replica_peer import Faulty, native, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = (sys.executable, "-m", "umbel.tests.replica_peer")


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def peers() -> Iterator[Any]:
    """Return what starts ranks; they are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(size: int, end: str) -> list[subprocess.Popen[str]]:
        meeting = port()
        for rank in range(size):
            env = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(meeting),
            }
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen([*PEER, end], env=env, text=True, **pipes))  # type: ignore[call-overload]
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def alone() -> list[dict[str, Any]]:
    with np.errstate(all="ignore"):
        return rounds(Loop(Faulty()))


def test_two_ranks_give_the_bits_of_one_and_go_on_after_a_failure(peers: Any) -> None:
    first, second = peers(2, "broken")
    out, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found["rounds"] == alone()
    failed, unmade = found["errors"]
    assert "replica 1: expected a share that is trained, got disk: expected room" in failed
    assert "replica 1" in unmade
    assert "a GPU" in unmade
    assert second.wait(30) == 0


def test_a_rank_that_dies_ends_the_run_in_one_line(peers: Any) -> None:
    first, second = peers(2, "killed")
    assert first.stdout.readline()
    second.send_signal(signal.SIGKILL)
    second.wait()
    first.stdin.write("\n")
    first.stdin.flush()
    message = json.loads(first.stdout.readline())
    assert message.startswith("replicas: expected every process of the group, got ")
    assert "umbel runs resume" in message
    assert "\n" not in message
    assert first.wait(30) == 3


@pytest.mark.slow
def test_two_ranks_with_native_kernels_give_the_bits_of_one(peers: Any) -> None:
    out, err = peers(2, "native")[0].communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])["rounds"] == rounds(native()), err


@pytest.mark.slow
def test_three_ranks_and_two_agents_of_torchrun_give_the_bits_of_one(peers: Any) -> None:
    expected = alone()
    out, err = peers(3, "well")[0].communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])["rounds"] == expected, err
    meeting = port()
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *("--nproc-per-node=1", f"--node-rank={rank}", "--rdzv-backend=static"),
                *("--master-addr=127.0.0.1", f"--master-port={meeting}"),
                *("-m", "umbel.tests.replica_peer", "well"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outs = [agent.communicate(timeout=240)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0]
    assert json.loads(outs[0].splitlines()[-1])["rounds"] == expected


def test_what_torchrun_says_is_read_strictly() -> None:
    assert world({}) is None
    assert world({"WORLD_SIZE": "1", "RANK": "0"}) is None
    given = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.1"}
    assert world(given) == World(2, 4, 0, "10.0.0.1")
    for name, value in (("RANK", "4"), ("RANK", "-1"), ("LOCAL_RANK", ""), ("WORLD_SIZE", "two")):
        with pytest.raises(SettingsError, match="torchrun"):
            world({**given, name: value})


def test_the_longest_go_first_each_to_who_is_free_first() -> None:
    shares = longest_first(np.array([1.0, 7, 3, 5, 4]), [1.0, 1.0])
    # 7 | 5, then 4 to the second: 9, 3 to the first: 10, 1 to the second: 10
    assert [share.tolist() for share in shares] == [[1, 2], [0, 3, 4]]
    fast, slow = longest_first(np.ones(30), [2.0, 1.0])
    assert (len(fast), len(slow)) == (20, 10)
    assert [len(share) for share in longest_first(np.ones(1), [1.0, 1.0, 1.0])] == [1, 0, 0]


def test_costs_are_learned() -> None:
    costs, rng = Costs(2), np.random.default_rng(0)
    sizes = rng.integers(5, 200, 60)
    for _ in range(30):
        clients = rng.choice(60, 20, replace=False)
        shares = longest_first(costs.of(clients), costs.speeds)
        seconds = [
            (0.002 * len(share) + 0.0001 * float(sizes[clients[share]].sum())) * slow
            for share, slow in zip(shares, (1.0, 2.0), strict=True)
        ]
        costs.learn(clients, sizes[clients], shares, seconds)
    assert max(seconds) / min(seconds) < 1.2
    cheap, dear = costs.of(np.array([int(sizes.argmin()), int(sizes.argmax())]))
    assert 2 < dear / cheap < sizes.max() / sizes.min() + 1
    assert 1.7 < costs.speeds[0] / costs.speeds[1] < 2.3
