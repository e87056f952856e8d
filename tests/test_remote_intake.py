"""The intake at a core elsewhere: what it asks, and what it makes of the answers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.errors import Malformed, PeerError, StateError, VoidRound
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server import core_wire
from umbel.server.core.segments import Segment
from umbel.server.core_client import CoreClient
from umbel.server.stepping import StepOrder
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAvg, FedAvgM, rule_of
from umbel.tests.core_peer import CTX, Peer, intake, opened
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

NODE, OTHER = "0a" * 16, "0b" * 16


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> DevFederation:
    """Certificates; no core."""
    return made(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def peer(federation: DevFederation, tmp_path: Path) -> Iterator[Peer]:
    """A peer that answers `open` well."""
    found = Peer(federation, tmp_path)
    found.answers["open"] = [opened(federation)]
    yield found
    found.close()


@pytest.fixture
def client(peer: Peer) -> Iterator[CoreClient]:
    """A connection to the peer."""
    with CoreClient.open(peer.folder, "run-1", "A") as found:
        yield found


def test_the_intake_speaks_the_commands_of_the_page(peer: Peer, client: CoreClient) -> None:
    total = struct.pack("<8Q", 2, 7, 1, 30, 0, 0, 0, 2)
    peer.answers["read"] = [core_wire.head("working"), core_wire.head("numbers", 64), total]
    found = intake(client)
    keys = [bytearray(b"k" * 32), bytearray(b"l" * 32)]
    found.expect(NODE, b"h" * 32)
    assert found.expected(NODE) == found.digest(NODE) == b"h" * 32
    assert found.wants(NODE, 0.0) is None
    found.fold(NODE)
    found.discard(NODE)  # what is folded stays
    found.discard(OTHER)
    assert found.folded == (NODE,)
    found.unmask([(keys[0], 1), (keys[1], -1)])
    layout = MessageLayout(Manifest.of({}), dict.fromkeys("abcd", 0), "train")
    sums = found.read(layout, 2, Codec(3, 0.5, 40))
    assert sums == (7, 1, {"a": 30, "b": 0, "c": 0, "d": 0})
    found.close()
    said = [(m.op, dict(m.fields), bytes(m.payload)) for m in peer.commands(7)]
    assert said == [
        (
            "sum",
            {
                "ctx": CTX.hex(), "total": 64, "split": 0, "stall": 2.5,
                "budget": 9.5, "members": 5, "plain": None,
            },
            b"",
        ),
        ("expect", {"node": NODE, "y_hash": (b"h" * 32).hex()}, b""),
        ("fold", {"node": NODE}, b""),
        ("discard", {"node": OTHER}, b""),
        ("unmask", {"signs": [1, -1]}, b"k" * 32 + b"l" * 32),
        ("read", {"bound": 2 * (2**29 - 1)}, b""),
        ("close_sum", {}, b""),
    ]  # fmt: skip
    assert keys == [b"k" * 32, b"l" * 32]  # their owner wipes them


def test_frames_do_not_go_to_the_coordinator(client: CoreClient) -> None:
    with pytest.raises(PeerError, match="instead of the gateway"):
        intake(client).accept(NODE, b"frame", 0.0)


def test_a_plain_sum_tells_the_core_what_its_firewall_needs(peer: Peer, client: CoreClient) -> None:
    intake(client, secure=False)
    assert peer.commands(1)[0].fields["plain"] == {
        "manifest": "[]", "metrics": {"eval.loss": 24}, "phase": "train", "members": 5,
        "value_range": 0.5, "weight_cap": 40, "max_norm": None, "rule": None,
    }  # fmt: skip


def test_a_robust_rule_is_told_with_the_sum_whose_messages_it_needs(
    peer: Peer, client: CoreClient
) -> None:
    median = Robust(rule="median", byzantine=1)
    intake(client, secure=False, robust=median)
    said = peer.commands(1)[0].fields["plain"]["rule"]
    assert rule_of(said) == FedAvg(robust=median)


def test_a_sum_with_masks_left_in_it_is_void(peer: Peer, client: CoreClient) -> None:
    layout = MessageLayout(Manifest.of({}), {}, "train")
    for ones, said, what in ((3, "a sum lies beyond", "the ones do not"), (2, "beyond", "^beyond")):
        numbers = struct.pack("<4Q", ones, 7, 1, ones)
        peer.answers["read"] = [core_wire.head("numbers", 32, void=said), numbers]
        with pytest.raises(VoidRound, match=what):
            intake(client).read(layout, 2, Codec(3, 0.5, 40))
    peer.answers["read"] = [core_wire.head("numbers", 24), bytes(24)]
    with pytest.raises(Malformed, match="core: numbers: expected 32 bytes, got 24"):
        intake(client).read(layout, 2, Codec(3, 0.5, 40))


MODEL = Manifest.of({"w": np.zeros(40, np.float32)})
ORDER = StepOrder(FedAvgM(server_momentum=0.5), 4, MessageLayout(MODEL, {}, "train"),
                  Codec(3, 0.5, 40), 2, 7)  # fmt: skip


def test_the_stepped_model_is_mapped_where_it_lies(
    peer: Peer, client: CoreClient, tmp_path: Path
) -> None:
    model, moment = (Segment.create(tmp_path, 192, kind) for kind in ("model", "moment"))
    model.view[:], moment.view[:] = bytes(range(192)), bytes(192)
    peer.answers["step"] = [
        core_wire.head("stepped", digest="ab" * 32, path=str(model.path),
                       moments={"momentum": str(moment.path)}, memory={"model": 192})
    ]  # fmt: skip
    client.put(MODEL, b"d" * 32, bytearray(192))
    found = intake(client).step(ORDER)
    assert (found.digest, bytes(found.packed)) == (b"\xab" * 32, bytes(range(192)))
    assert found.packed.readonly
    moment.view[:1] = b"x"  # the core's own next step
    assert bytes(found.moments["momentum"])[:2] == b"x\0"
    model.unlink()
    model.close()
    assert bytes(found.packed) == bytes(range(192))  # whoever has mapped it keeps it
    put, _, step = peer.commands(3)
    about = MODEL.to_json().encode()
    assert (dict(put.fields), bytes(put.payload)) == (
        {"digest": (b"d" * 32).hex(), "manifest": len(about)}, about + bytes(192),
    )  # fmt: skip
    assert dict(step.fields) == ORDER.described()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (core_wire.head("void", why="not finite " * 60), VoidRound, "^not finite.{502}$"),
        (core_wire.head("stepped", digest="a", path="/x", moments={}), Malformed, "moments"),
        (
            core_wire.head("stepped", digest="zz", path="/x", moments={"momentum": "/x"}),
            Malformed, r"stepped\.digest: expected a hash",
        ),
        (
            core_wire.head("stepped", digest="aa", path="x", moments={"momentum": "/x"}),
            Malformed, "paths of shared memory",
        ),
        (
            core_wire.head("stepped", digest="aa", path="/gone", moments={"momentum": "/x"}),
            StateError, "/gone: expected shared memory",
        ),
    ],
)  # fmt: skip
def test_what_is_no_answer_to_a_step(
    peer: Peer, client: CoreClient, answer: bytes, error: type[Exception], words: str
) -> None:
    peer.answers["step"] = [answer]
    client.put(MODEL, b"d" * 32, bytearray(192))
    with pytest.raises(error, match=words):
        intake(client).step(ORDER)
