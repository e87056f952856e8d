"""Replicas: the bits of one process for any number of them, and what a death or a failure costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from umbel.protocol.errors import SettingsError
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.replicas import Costs, World, longest_first, world
from umbel.simulation.run import Options, plan
from umbel.tests.replica_peer import Faulty, native, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIGITS = Path(__file__).parents[1] / "examples" / "digits"
PEER = "umbel.tests.replica_peer"


def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def peers() -> Iterator[Any]:
    """Return what starts ranks; they are killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(
        size: int, command: Sequence[str], home: Path | None = None
    ) -> list[subprocess.Popen[str]]:
        meeting = port()
        for rank in range(size):
            env = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(meeting),
            }
            if home is not None:
                env["UMBEL_HOME"] = str(home)
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            words = (sys.executable, "-m", *command)
            started.append(subprocess.Popen(words, env=env, text=True, **pipes))  # type: ignore[call-overload]
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


def alone() -> list[dict[str, Any]]:
    with np.errstate(all="ignore"):
        return rounds(Loop(Faulty()))


def test_two_ranks_give_the_bits_of_one_and_go_on_after_a_failure(peers: Any) -> None:
    first, second = peers(2, (PEER, "broken"))
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
    first, second = peers(2, (PEER, "killed"))
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
    out, err = peers(2, (PEER, "native"))[0].communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])["rounds"] == rounds(native()), err


def torchrun(*command: str, rank: int, meeting: int, home: Path) -> subprocess.Popen[str]:
    """Start one agent of two, with one process each."""
    agent = (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *(f"--node-rank={rank}", "--rdzv-backend=static", "--master-addr=127.0.0.1"),
        *(f"--master-port={meeting}", "--no-python", "--", sys.executable, "-m", "umbel"),
    )
    env = os.environ | {"UMBEL_HOME": str(home)}
    return subprocess.Popen(
        [*agent, *command],
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_a_machine_is_lost_and_the_run_goes_on_to_the_bits_of_one(
    peers: Any, tmp_path: Path
) -> None:
    given = ("simulate", str(DIGITS), "--secure", "off", "--clients", "20", "--tier", "T3")
    command = (*given, "--rounds", "200", "--run", "two")
    first, second = peers(2, ("umbel", *command), home=tmp_path)
    wait_for_round(tmp_path / "runs" / "two" / "rounds", 5)
    second.kill()
    _, said = first.communicate(timeout=120)
    assert first.returncode
    assert "replicas: expected every process of the group" in said
    assert "umbel runs resume" in said
    second.communicate()
    assert not (tmp_path / "runs" / "two" / "rounds" / "000200").exists()

    meeting = port()
    again = [
        torchrun(*words, rank=rank, meeting=meeting, home=tmp_path)
        for rank, words in enumerate((("runs", "resume", "two"), command))
    ]
    outs = [agent.communicate(timeout=240) for agent in again]
    assert [agent.returncode for agent in again] == [0, 0], outs
    assert "2 processes, over loopback" in outs[0][0]
    simulated = plan(
        DIGITS,
        Options(
            clients=20, rounds=200, secure=False, settings={"tier": "T3"}, home=tmp_path / "one"
        ),
    )
    alone = simulated.run().model
    found = load_file(tmp_path / "runs/two/rounds/000200/00000-of-00001.safetensors")
    assert all(np.array_equal(alone[name], array) for name, array in found.items())


def wait_for_round(folder: Path, number: int) -> None:
    end = time.monotonic() + 120
    while not any(int(one.name) >= number for one in folder.glob("[0-9]*")):
        assert time.monotonic() < end, folder
        time.sleep(0.02)


@pytest.mark.slow
def test_three_ranks_give_the_bits_of_one(peers: Any) -> None:
    expected = alone()
    out, err = peers(3, (PEER, "well"))[0].communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])["rounds"] == expected, err


def test_what_torchrun_says_is_read_strictly() -> None:
    assert world({}) is None
    assert world({"WORLD_SIZE": "1", "RANK": "0"}) is None
    given = {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert world({**given, "MASTER_ADDR": "10.0.0.1"}) == World(2, 4, 0, 2, "10.0.0.1")
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
