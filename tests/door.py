"""A hand-made door for tests of sessions: entries whose certificates are taken as verified."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import tickets
from umbel.protocol.verification import Member, Peer
from umbel.server.endings import Ending, Turned
from umbel.server.sessions import Entry, Sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from umbel.server.streams import Stream

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY, OTHER_KEY = bytes(32), bytes([1]) * 32
RUN, GATEWAY = "r-1", "fl.example.org"
PUBLIC = Ed25519PrivateKey.generate().public_key()
FOREVER = 1e9


class Gateway:
    """Sessions, and what they told the ServerApp and the log."""

    def __init__(self, limit: int = 100) -> None:
        self.events: list[tuple[str, str, dict[str, object], bytes]] = []
        self.lines: list[str] = []
        self.woken: list[int] = []
        self.now = math.inf
        """When who enters is heard: as it is, nobody ever falls silent."""
        self.sessions = Sessions(
            GATEWAY, self._emit, lambda kind, line: self.lines.append(line), limit
        )
        self.sessions.open(RUN, KEY)

    def _emit(self, run: str, op: str, payload: bytes = b"", **fields: object) -> None:
        self.events.append((run, op, fields, payload))

    def take(self) -> list[tuple[str, str, dict[str, object], bytes]]:
        """Return the events since the last call."""
        found, self.events = self.events, []
        return found

    def enter(
        self,
        number: int = 1,
        wake: Callable[[], None] = lambda: None,
        wall: datetime = NOW,
        **changes: Any,
    ) -> Stream:
        """Let a node say hello."""
        return self.sessions.enter(entry(number, **changes), wake, wall, self.now)


def entry(number: int = 1, **changes: Any) -> Entry:
    node_id, prints = bytes([number]) * 16, changes.get("fingerprint", bytes([number]) * 32)
    der = changes.get("der", b"signing leaf of %d" % number)
    ticket = tickets.Ticket(
        run=changes.get("ticket_run", RUN),
        node_id=bytes([changes.get("ticket_node", number)]) * 16,
        tls_fingerprint=changes.get("ticket_fingerprint", prints),
        gateway=changes.get("ticket_gateway", GATEWAY),
        expires=int((NOW + timedelta(seconds=changes.get("lives", 3600))).timestamp()),
        nonce=bytes(16),
    )
    hello = pb.Hello(
        run=changes.get("run", RUN),
        ticket=tickets.mint(changes.get("key", KEY), ticket),
        certificate=der,
        resume=changes.get("resume", False),
        version=changes.get("version", ""),
    )
    member_id = bytes([changes.get("member", number)]) * 16
    member = Member(member_id, "site", PUBLIC, bytes(32), NOW)
    peer = Peer(node_id, prints, NOW)
    return Entry(hello, changes.get("ack", 0), peer, member, changes.get("until", FOREVER))


def node(number: int = 1) -> str:
    return (bytes([number]) * 16).hex()


def downs(stream: Stream) -> list[pb.Down]:
    """Return what the stream would write now."""
    return [pb.Down.FromString(data) for data in stream.outgoing()]


def up(seq: int, message: bytes = b"m", ack: int = 0) -> pb.Up:
    return pb.Up(seq=seq, ack=ack, message=message)


def turned(gateway: Gateway, **changes: Any) -> tuple[Ending, str]:
    with pytest.raises(Turned) as caught:
        gateway.enter(**changes)
    return caught.value.ending, str(caught.value)
