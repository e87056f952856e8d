"""Sums over several hosts, real processes in a real gloo group on loopback: the bits of one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from umbel.protocol.digest import model_digest
from umbel.protocol.errors import PeerError, SettingsError, VoidRound
from umbel.server.core import torch_hosts
from umbel.server.core.run_model import RunModel
from umbel.server.core.spread_world import SpreadWorld
from umbel.server.core.world import World
from umbel.server.moment_file import STATE_FILE, write_moments
from umbel.server.stepping import StateFile, StepOrder
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAdam, FedAvg, FedAvgM
from umbel.tests.ranked import SIZE, SPLIT, embedded
from umbel.tests.rounds import Fixed, Stage
from umbel.tests.rounds import settings as run_settings
from umbel.tests.test_ranked_world import CODEC, LAYOUT, MANIFEST, MODEL, a_model, a_sum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.server.core.worlds import AnySum, AnyWorld
    from umbel.strategies.server_rules import Rule

SECRETS = [(bytes(range(32)), 1), (bytes(range(1, 33)), -1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rendezvous(rank: int, hosts: int, port: int) -> dict[str, str]:
    about = {"RANK": rank, "WORLD_SIZE": hosts, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in about.items()}


def a_wing(rank: int, hosts: int, port: int, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "umbel", "core", "wing", *flags]
    around = os.environ | rendezvous(rank, hosts, port)
    return subprocess.Popen(command, env=around, text=True, stderr=subprocess.PIPE)


class Hosts(NamedTuple):
    """A world and the processes of its wings."""

    world: SpreadWorld
    wings: list[subprocess.Popen[str]]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """This process is host 0; the others have two ranks each where the test is slow."""
    count, port = request.param, free_port()
    flags = ("--ranks", "2") if count > 2 else ()
    wings = [a_wing(rank, count, port, *flags) for rank in range(1, count)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (rendezvous(0, count, port) | {"GLOO_SOCKET_IFNAME": ""}).items():
            patch.setenv(name, value)
        assert torch_hosts.join(count) == 0
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    found = SpreadWorld(World(2), 4, count - 1)
    yield Hosts(found, wings)
    found.close()
    torch_hosts.leave()
    for wing in wings:
        _, errors = wing.communicate(timeout=30)
        assert wing.returncode == 0, errors


@pytest.fixture
def world(hosts: Hosts) -> SpreadWorld:
    """Host 0's."""
    return hosts.world


def fill(total: AnySum, node: str, message: bytes) -> None:
    slot = total.slot(node)
    assert slot is not None
    slot[:] = message


@pytest.mark.parametrize("streams", [[], SECRETS])
def test_the_bits_are_those_of_one_process(
    world: SpreadWorld, streams: list[tuple[bytes, int]]
) -> None:
    rng = np.random.default_rng(5)
    messages = [rng.bytes(SIZE) for _ in range(7)]
    total = world.open(SIZE, SPLIT)
    for index in (3, 0, 6, 2, 1, 5, 4):
        fill(total, str(index), messages[index])
        fill(total, "gone", rng.bytes(SIZE))
        total.discard("gone")
        total.fold(str(index))
    expected = embedded(messages, streams)
    assert bytes(total.numbers()) != bytes(SIZE - SPLIT)
    total.unmask(streams)
    assert bytes(total.result()) == expected
    assert bytes(total.numbers()) == expected[SPLIT:]
    assert total.survivors == tuple("3062154")
    again = world.open(SIZE, SPLIT)
    again.load(expected, ["a"])
    assert bytes(again.result()) == expected
    total.close()
    again.close()


def test_each_node_once_and_nothing_after_the_end(world: SpreadWorld) -> None:
    total = world.open(SIZE, SPLIT)
    fill(total, "a", b"\1" * SIZE)
    total.fold("a")
    for again in (total.fold, total.slot, total.discard):
        with pytest.raises(PeerError, match="a: "):
            again("a")
    with pytest.raises(PeerError, match="without a slot"):
        total.fold("b")
    assert bytes(total.result()) == b"\1" * SIZE
    with pytest.raises(PeerError, match="after the survivors were frozen"):
        total.slot("b")
    total.close()


@pytest.mark.parametrize("place", [0, SPLIT // 4 - 1])
def test_a_word_beyond_the_bound_voids_the_sum(world: SpreadWorld, place: int) -> None:
    message = bytearray(SIZE)
    message[4 * place : 4 * place + 4] = (101).to_bytes(4, "little")
    total = world.open(SIZE, SPLIT)
    fill(total, "a", bytes(message))
    total.fold("a")
    total.check(101)
    with pytest.raises(VoidRound, match="beyond 100"):
        total.check(100)
    total.close()


@pytest.mark.parametrize("rule", [FedAvg(), FedAdam()])
def test_steps_have_the_models_and_moments_of_one_process(world: SpreadWorld, rule: Rule) -> None:
    models: list[tuple[AnyWorld, RunModel]]
    models = [(World(), a_model(World())), (world, a_model(world))]
    for t in (1, 2, 3):
        order = StepOrder(rule, t, LAYOUT, CODEC, 3, 60)
        for where, model in models:
            total = a_sum(where, t)
            model.adopt(total.step(model, order))
            total.close()
        (_, one), (_, many) = models
        assert one.digest == many.digest == model_digest(many.packed)
        assert [bytes(m) for m in one.moments_packed.values()] == [
            bytes(m) for m in many.moments_packed.values()
        ]
    many.close()


def test_a_step_that_is_void_costs_the_wings_nothing(world: SpreadWorld) -> None:
    """Host 0's part is finite, the last one's is not: afterwards all begin at the old model."""
    w = MODEL["w"] * np.float32(0)
    w[-1000:] = 3.4e38
    packed = MANIFEST.pack(MODEL | {"w": w})
    models: list[tuple[AnyWorld, RunModel]] = [
        (where, RunModel(MANIFEST, model_digest(packed), packed, where.make))
        for where in (World(), world)
    ]
    digests = []
    for where, model in models:
        total = a_sum(where, 1)
        with pytest.raises(VoidRound):
            total.step(model, StepOrder(FedAvg(server_learning_rate=1e38), 1, LAYOUT, CODEC, 3, 60))
        assert model.next is None
        digests.append(
            total.step(model, StepOrder(FedAvg(server_learning_rate=1e-9), 1, LAYOUT, CODEC, 3, 60))
        )
        total.close()
    assert digests[0] == digests[1]


def test_a_wing_s_rank_killed_in_the_step_costs_no_round(tmp_path: Path, hosts: Hosts) -> None:
    """Killed before, in or after its part of it; without ranks nobody is, and bits are bits."""
    rule = FedAvgM(server_momentum=0.5)
    models: list[tuple[AnyWorld, RunModel]]
    models = [(World(), a_model(World())), (hosts.world, a_model(hosts.world))]
    for where, model in models:
        model.adopt(a_sum(where, 1).step(model, StepOrder(rule, 1, LAYOUT, CODEC, 3, 60)))
    (_, one), (_, many) = models
    path = tmp_path / STATE_FILE
    kept = StateFile(path, write_moments(path, MANIFEST, one.moments_packed))
    order = StepOrder(rule, 2, LAYOUT, CODEC, 3, 60, kept)
    total, digests = a_sum(hosts.world, 2), list[bytes]()
    total.numbers()
    ranks = psutil.Process(hosts.wings[-1].pid).children()
    for rank in ranks[:1]:
        rank.suspend()
    worker = threading.Thread(target=lambda: digests.append(total.step(many, order)))
    worker.start()
    for rank in ranks[:1]:
        time.sleep(1.0)
        rank.kill()
    worker.join()
    assert digests == [a_sum(World(), 2).step(one, order)]
    moments = [[bytes(m) for m in model.moments_packed.values()] for model in (one, many)]
    assert moments[0] == moments[1]
    total.close()


def test_secure_and_plain_runs_have_the_models_of_one_process(
    tmp_path: Path, world: SpreadWorld
) -> None:
    models = []
    worlds: list[AnyWorld] = [World(), world]
    for scheme in ("A", "plain"):
        for number, where in enumerate(worlds):
            home = tmp_path / f"{scheme}{number}"
            home.mkdir()
            run, trainer = run_settings(scheme=scheme, rounds=2), Fixed((60, 100))
            with Stage(home, 5, run, world=where, trainer=trainer) as stage:
                stage.play()
            assert [record.outcome for record in stage.records] == ["finished"] * 2
            models.append([record.model for record in stage.records])
    assert models == [models[0]] * 4


@pytest.mark.slow  # loads compiled kernels
def test_a_robust_rule_s_rounds_are_the_first_host_s(tmp_path: Path, world: SpreadWorld) -> None:
    models = []
    worlds: list[AnyWorld] = [World(), world]
    for number, where in enumerate(worlds):
        home = tmp_path / str(number)
        home.mkdir()
        rule = FedAvg(robust=Robust(rule="median"))
        run, trainer = run_settings(scheme="plain", rounds=2, rule=rule), Fixed((60, 100))
        with Stage(home, 5, run, world=where, trainer=trainer) as stage:
            stage.play()
        assert [record.outcome for record in stage.records] == ["finished"] * 2
        models.append([record.model for record in stage.records])
    assert models[0] == models[1]


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("WORLD_SIZE", "1"), ("RANK", "2")])
def test_what_torchrun_has_not_said_is_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for key, right in rendezvous(0, 2, 1).items():
        monkeypatch.setenv(key, right)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="torchrun"):
        torch_hosts.join(2)


def test_hosts_meet_in_private_networks_only() -> None:
    assert torch_hosts.private_interface("127.0.0.1", 1) == "lo"
    with pytest.raises(SettingsError, match="nothing is encrypted there"):
        torch_hosts.private_interface("8.8.8.8", 1, "lo")
    with pytest.raises(SettingsError, match="an interface of this host"):
        torch_hosts.private_interface("127.0.0.1", 1, "nonesuch0")
