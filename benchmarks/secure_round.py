"""Rounds of scheme A between real roles, as `umbel bench secure` plays them.

Every member is a `MemberSide` with a device's policy, the server a `ServerSide`; messages pass
as bytes and are parsed as a session parses them. One member of a round is watched: the CPU time
of its stages and the bytes that leave it. A `Tape` keeps what the server was told, so that the
end of a round can be repeated on a fresh server as often as a figure needs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .secure_cast import (
    FEDERATION,
    METRICS,
    PARAMS,
    POLICY,
    VALUES,
    WEIGHT,
    Cast,
    Size,
    model,
    update,
)
from ..protocol import messages_pb2 as pb
from ..protocol import wire
from ..protocol.aggregator import ServerSide
from ..protocol.codec import Codec
from ..protocol.context import Terms
from ..protocol.entropy import os_entropy, random_bytes
from ..protocol.frames import Kind, frames
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..protocol.member import MemberSide
from ..protocol.standpoint import Standpoint
from ..server.core.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..server.core.world import Sum

STAGES = ("keys", "shares", "encode", "mask", "vote", "release")
"""Trips 1 and 2; trip 3 coded, then masked and hashed; trips 4 and 5."""
_SMALL = 64
"""Bytes of the vector of a member whose vector nobody needs."""


@dataclass
class Meter:
    """What protection cost one member: CPU seconds by stage, and the bytes that left it."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sent: int = 0
    """Bytes of all messages and frames up."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the CPU time of a block; one thread of this process is busy."""
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


@dataclass
class Actor:
    """A member that hears and says bytes."""

    side: MemberSide
    meter: Meter

    def begin(self) -> pb.ToServer:
        """Say the round keys."""
        with self.meter.stage("keys"):
            data = self.side.begin().message.SerializeToString()
        return self.said(data)

    def answer(self, stage: str, heard: str, body: Any, *more: Any) -> pb.ToServer:
        """Parse a message of the server and answer it, by the method that bears its name."""
        raw = pb.ToClient(ctx=self.side.ctx0, **{heard: body}).SerializeToString()
        with self.meter.stage(stage):
            message = getattr(wire.parse_to_client(raw), heard)
            data = getattr(self.side, heard)(message, *more).message.SerializeToString()
        return self.said(data)

    def said(self, data: bytes) -> pb.ToServer:
        """Return the message as the server parses it."""
        self.meter.sent += len(data)
        return wire.parse_to_server(data, "member")


@dataclass
class Tape:
    """One round up to its opening: what the server was told, and what the core holds."""

    terms: Terms
    layout: MessageLayout
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    total: bytes = b""
    """Sum of the survivors' masked messages."""
    expected: bytes = b""
    """Sum of the same messages before they were masked."""

    def before_release(self) -> tuple[ServerSide, list[tuple[bytes, pb.Release]]]:
        """Return a server that waits for the releases, and the releases."""
        server = ServerSide(self.terms)
        for name, told in self.calls:
            if name != "release":
                getattr(server, name)(*told)
        return server, [(told[0], told[1]) for name, told in self.calls if name == "release"]


class Round:
    """One attempt; `play` goes through all five trips."""

    def __init__(self, members: Cast, size: Size, number: int) -> None:
        """Open attempt `number` of these members."""
        self.size, self.meter = size, Meter()
        manifest = Manifest.of(model(size.params))
        layout = MessageLayout(manifest, METRICS, "train")
        self.tape = Tape(_terms(members, layout, number), layout)
        self.server = ServerSide(self.tape.terms)
        self._members = members
        self._delta = update(size.params)
        self._sums = [World().open(layout.total_bytes, layout.split) for _ in range(2)]
        self._actors: dict[bytes, Actor] = {}

    def play(self, watched: int, *, whole: bool) -> None:
        """Go through all trips; the lost are lost after trip 2.

        Args:
            watched: Place of the member whose costs `meter` gets; none of the lost.
            whole: Every member masks a whole vector, and the tape gets the sums; else only the
                watched one does, and nothing is summed.
        """
        at = Standpoint(floors=POLICY, resolve=self._members.resolve, entropy=os_entropy)
        for place, one in enumerate(self._members.identities):
            meter = self.meter if place == watched else Meter()
            actor = Actor(MemberSide(one, self.tape.terms, at), meter)
            self._actors[one.id] = actor
            self._tell("keys", self._members.resolve(one.fingerprint), actor.begin().keys)
        self._trip("freeze", "roster", "shares")
        for place, (one, inbox) in enumerate(self._tell("end_shares").items()):
            if place not in self.size.gone:
                self._upload(one, inbox, whole=whole or place == watched, fold=whole)
        self._trip("end_uploads", "survivors", "vote")
        self._trip("quorum", "votes", "release")
        self.tape.total, self.tape.expected = (bytes(one.result()) for one in self._sums)

    def _trip(self, opens: str, heard: str, said: str) -> None:
        """Let everybody who gets a message answer it; votes are counted up to the quorum."""
        for one, body in self._tell(opens).items():
            answer = self._actors[one].answer(said, heard, body)
            if said != "vote" or not self.server.has_quorum:
                self._tell(said, one, getattr(answer, said))

    def _upload(self, one: bytes, inbox: pb.Inbox, *, whole: bool, fold: bool) -> None:
        """Code, mask and deliver the vector of one member."""
        actor, split = self._actors[one], self.tape.layout.split if whole else _SMALL
        with actor.meter.stage("encode"):
            vector = self._message() if whole else bytearray(_SMALL)
        if fold:
            _fold(self._sums[1], one, vector)
        answer = actor.answer("mask", "inbox", inbox, vector, split)
        actor.meter.sent += sum(map(len, frames(Kind.UPLOAD, actor.side.ctx, vector)))
        actor.side.delivered()
        self._tell("header", one, answer.masked.header)
        self._tell("delivered", one, sha256(vector).digest())
        if fold:
            _fold(self._sums[0], one, vector)

    def _message(self) -> bytearray:
        codec = Codec(self.size.clients, PARAMS.value_range, PARAMS.weight_cap)
        key = random_bytes(32, os_entropy)
        return self.tape.layout.build(self._delta, WEIGHT, VALUES, codec, key)

    def _tell(self, call: str, *told: Any) -> Any:
        self.tape.calls.append((call, told))
        return getattr(self.server, call)(*told)


def _fold(total: Sum, one: bytes, vector: bytearray) -> None:
    """Bring a vector into the core and add it to a sum."""
    slot = total.slot(one.hex())
    if slot is not None:
        slot[:] = vector
        total.fold(one.hex())


def _terms(members: Cast, layout: MessageLayout, number: int) -> Terms:
    return Terms(
        scheme="A",
        ca=members.root_digest,
        app=bytes(32),
        run=FEDERATION,
        round=1,
        phase="train",
        attempt=number,
        model=bytes(32),
        config={},
        params=PARAMS.table(),
        layout=layout.manifest.layout_digest(layout.metrics),
    )
