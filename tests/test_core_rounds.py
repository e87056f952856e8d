"""Rounds over the real core with real mTLS and a process for each device: bits, deaths, breaks."""

from __future__ import annotations

import json
import math
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from umbel import __version__
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.digest import model_digest
from umbel.protocol.frames import PAYLOAD
from umbel.protocol.journal import Masked, parse
from umbel.server.sessions import GRACE, SILENCE
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAvg
from umbel.tests.core_stage import FIVE, CoreStage
from umbel.tests.fault_proxy import FaultProxy
from umbel.tests.federations import addressed, core, made, taken
from umbel.tests.process_host import Host
from umbel.tests.quick_core import SOONER
from umbel.tests.rounds import Stage, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

OTHERS = (0, 2, 3, 4)
DEADLINE = 10.0
"""Of the training, in seconds; each of the four trips after it has five."""
BIG = (700, 1000)
"""Shape of an array whose vector is 2.8 MB."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """Five devices, and a core for all tests of this file."""
    found = made(tmp_path_factory.mktemp("federation"), 5)
    with core(found, times=SOONER) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """What starts the devices."""
    found = Host(tmp_path_factory.mktemp("host"))
    yield found
    found.close()


@pytest.fixture
def stage(
    federation: DevFederation, host: Host, tmp_path: Path
) -> Iterator[Callable[..., CoreStage]]:
    """Return what makes a stage; it is closed after the test."""
    stages: list[CoreStage] = []

    def make(name: str, **how: object) -> CoreStage:
        stages.append(CoreStage(federation, host, tmp_path, name, **how))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for made_one in stages:
        made_one.close()


# ---- bits --------------------------------------------------------------------------------------


def test_plain_and_secure_rounds_and_the_link_publish_the_same_bits(
    federation: DevFederation, stage: Callable[..., CoreStage], tmp_path: Path
) -> None:
    gateway = f"127.0.0.1:{_port(federation)}"
    models = []
    addressed(federation, gateway, secure=False)
    for scheme in ("A", "plain"):
        run = stage(f"bits-{scheme}", members=(0, 1, 2, 3), scheme=scheme, rounds=3)
        run.play()
        assert [outcome[1:] for outcome in run.over()] == [[3, "goodbye"]] * 4
        models.append([record.model for record in run.records])
        assert {r.metrics[f"version.{__version__}"] for r in run.records} == {4}
        for number in (1, 2, 3):
            run.exact(number, (0, 1, 2, 3), 4)
        assert run.told() == []
    addressed(federation, gateway)
    with Stage(tmp_path, 4, settings(rounds=3)) as linked:
        linked.play()
        models.append([record.model for record in linked.records])
    assert models[0] == models[1] == models[2]
    assert len(set(models[0])) == 3


def test_a_trimmed_mean_over_the_core_has_the_bits_of_the_link(
    federation: DevFederation, stage: Callable[..., CoreStage], tmp_path: Path
) -> None:
    """It streams there: 2k + 2 vectors of five, in whatever order they come."""
    rule = FedAvg(robust=Robust(rule="trimmed-mean", cut=0.2))
    how: dict[str, Any] = {"scheme": "plain", "rule": rule, "rounds": 2}
    addressed(federation, f"127.0.0.1:{_port(federation)}", secure=False)
    run = stage("trimmed", **how)
    run.play()
    addressed(federation, f"127.0.0.1:{_port(federation)}")
    with Stage(tmp_path, 5, settings(**how)) as linked:
        linked.play()
        assert [record.model for record in run.records] == [r.model for r in linked.records]
    assert [len(record.survivors) for record in run.records] == [5, 5]


def _port(federation: DevFederation) -> int:
    return int(json.loads((federation.folder / "core.json").read_text())["port"])


# ---- deaths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "phase"), [("train", "inviting"), ("masked", "summing"), ("upload", "summing")]
)
def test_a_killed_device_is_lost_by_name_and_is_in_the_next_round(
    stage: Callable[..., CoreStage], moment: str, phase: str
) -> None:
    shape = BIG if moment == "upload" else (3, 5)
    run = stage(moment, how={1: {"at": moment, "round": 2}}, rounds=3, shape=shape)
    run.hold = 3
    run.rounds(1)
    took = run.rounds(2)
    run.children[1].gone()
    assert SOONER["GRACE"] <= took < DEADLINE
    assert run.survivors(2) == OTHERS
    assert run.told() == [("lost", 1, phase)]
    run.back(1)
    run.hold = 4
    run.play()
    assert run.survivors(3) == FIVE
    if shape == (3, 5):
        run.exact(2, OTHERS, 4 if moment == "train" else 5)
        run.exact(3, FIVE, 5)


@pytest.mark.parametrize("moment", ["voted", "released"])
def test_a_device_that_dies_after_its_upload_is_in_the_sum_and_nobody_waits_for_it(
    stage: Callable[..., CoreStage], moment: str
) -> None:
    run = stage(moment, how={1: {"at": moment, "round": 2}}, rounds=3)
    run.hold = 3
    run.rounds(1)
    run.rounds(2)
    run.children[1].gone()
    assert run.survivors(2) == FIVE
    assert run.told() == []  # it was not even missed
    run.back(1)
    run.hold = 4
    run.play()
    assert run.survivors(3) == FIVE
    for number in (1, 2, 3):
        run.exact(number, FIVE, 5)


def test_a_device_that_stands_still_is_passed_over_and_goes_on_later(
    stage: Callable[..., CoreStage],
) -> None:
    how = {1: {"at": "masked", "round": 1, "signal": signal.SIGSTOP}}
    run = stage("still", how=how, rounds=3, deadline=15.0, trip=3.0)
    run.hold = 3
    assert run.rounds(2) > SOONER["GRACE"]
    assert run.survivors(1) == run.survivors(2) == OTHERS
    assert [record.seconds["summing"] >= 3.0 for record in run.records] == [True, False]
    run.children[1].kill(signal.SIGCONT)
    deadlines = run.run.coordinator._planner.deadlines
    run.play(lambda: not deadlines._silent)  # until it is heard again nobody would wait for it
    run.hold = 4
    run.play()
    assert run.survivors(3) == FIVE
    # Named in both rounds that waited for it; its late answers are nobody's.
    assert run.told() == [("late", 1, "summing"), ("late", 1, "inviting")]
    run.exact(1, OTHERS, 5)
    run.exact(2, OTHERS, 4)
    run.exact(3, FIVE, 5)


@pytest.mark.slow
def test_a_device_that_stands_still_for_long_is_given_up_and_joins_anew(
    stage: Callable[..., CoreStage],
) -> None:
    run = stage("long", rounds=2)
    run.hold = 2
    run.rounds(1)
    run.children[1].kill(signal.SIGSTOP)
    took = run.play(lambda: len(run.run.coordinator.nodes) < 5)
    assert took < SILENCE + GRACE + 2.0
    run.children[1].kill(signal.SIGCONT)
    run.play(lambda: run.joins[1] == 2)
    run.hold = 3
    run.play()
    assert run.survivors(2) == FIVE
    assert "joins anew" in run.children[1].log.read_text()


# ---- breaks ------------------------------------------------------------------------------------


def test_an_upload_that_is_cut_at_sixty_percent_is_one_vector(
    federation: DevFederation, stage: Callable[..., CoreStage]
) -> None:
    total = 4 * BIG[0] * BIG[1]
    proxy = FaultProxy(_port(federation))
    run = stage("cut", how={1: {"gateway": f"127.0.0.1:{proxy.port}"}}, rounds=1, shape=BIG)
    proxy.up_to, before = proxy.up + 0.6 * total, taken(federation, 1)
    whole = 0.6 * total - PAYLOAD  # at least: the rest is a frame that has not come to its end
    run.play(lambda: taken(federation, 1) - before > whole)
    proxy.up_to = math.inf
    proxy.cut()
    assert run.play() < DEADLINE
    proxy.close()
    assert len(proxy.connections) == 2
    assert run.survivors(1) == FIVE
    assert proxy.up < 1.5 * total  # from the start again would be 1.6 times
    assert run.told() == []
    assert len(_masked(federation, 1, "cut")) == 1  # the core took it: it hashes to what was signed


def _masked(federation: DevFederation, index: int, run: str) -> list[Masked]:
    data = (federation.device(f"edge-{index}") / "journal").read_bytes()
    return [r for r in parse(data)[0] if isinstance(r, Masked) and r.run == run]


def test_a_device_that_comes_back_in_the_same_round_sends_no_second_vector(
    federation: DevFederation, stage: Callable[..., CoreStage]
) -> None:
    run = stage("again", how={1: {"at": "upload"}}, rounds=2, shape=BIG)
    run.hold = 2
    run.play(lambda: not run.children[1].alive)
    run.back(1)
    run.rounds(1)  # which ends without it: its earlier session is gone
    assert run.survivors(1) == OTHERS
    assert run.told() == [("lost", 1, "summing")]
    (first,) = _masked(federation, 1, "again")
    before = run.run.core.traffic()[0]
    sent = [data for index, data in run.posts if index == 1]
    kinds = [pb.ToClient.FromString(data).WhichOneof("body") for data in sent]
    assert kinds[:3] == ["start", "roster", "inbox"]
    reasons, manifest = [], run.run.coordinator.manifest
    packed = manifest.pack(run.models[0])
    run.run.core.put(manifest, model_digest(packed), packed)
    for data in sent[:3]:  # a server that asks again, for what it was sent already
        run.run.core.post(run.node(1), data)
        reasons.append(_answer(run, 1).refusal.reason)
    assert reasons == [pb.REASON_NEW_PROCESS, pb.REASON_CTX_DIFFERS, pb.REASON_CTX_DIFFERS]
    assert _masked(federation, 1, "again") == [first]
    assert run.run.core.traffic()[0] - before < 1000


def _answer(run: CoreStage, index: int) -> pb.ToServer:
    """Return the next message of a device, past the coordinator."""
    end = time.monotonic() + 60
    while True:
        assert time.monotonic() < end, run.children[index].log.read_text()
        for event in run.run.core.events(0.1):
            if event.message.op == "message" and event.message.fields["node"] == run.node(index):
                return pb.ToServer.FromString(bytes(event.message.payload))
