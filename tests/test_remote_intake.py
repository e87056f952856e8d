"""The intake at a core elsewhere: what it asks, and what it makes of the answers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.errors import PeerError
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server import core_wire
from umbel.server.core_client import CoreClient
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
    peer.answers["result"] = [core_wire.head("result", 64), total]
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
        ("result", {}, b""),
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
        "value_range": 0.5, "weight_cap": 40, "max_norm": None,
    }  # fmt: skip
