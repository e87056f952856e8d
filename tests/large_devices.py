"""Devices whose vector is larger than their memory, for tests of a large model.

    python -m umbel.tests.large_devices      with one JSON order on stdin, as tests/crowd.py's

Session, journal, policy, keys, masks and transport are the real ones. Three things are not: the
model is hashed as it comes and let go; the update is one code in every word, so its frames are
made when they are sent; and they are made twice, once for the hash that is signed. Prints how many
rounds each took part in.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from umbel.clients import grpc_session, grpc_transfer, session
from umbel.clients.device_files import DeviceFiles
from umbel.clients.update import Update
from umbel.protocol import frames, keys, masks, member, plain, plan
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.codec import Codec
from umbel.protocol.digest import LEAF, leaf_hashes, tree_root
from umbel.tests import federations
from umbel.tests.federations import DeviceThread
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from umbel.clients.session import Action
    from umbel.protocol.context import Terms
    from umbel.protocol.standpoint import Step

PART = frames.PAYLOAD
WEIGHT = 8
VALUE = 0.125


class Nothing(Numbers):
    """User code without a model: the run's manifest says what there is."""

    def arrays(self, seed: int = 0) -> dict[str, Any]:
        """Return nothing."""
        return {}


class Vector(bytearray):
    """A message that is made part by part; the object itself holds nothing."""

    def __init__(self, size: int, split: int, code: int, tail: bytes) -> None:
        """Let every word of section 32 be `code`, and section 64 be `tail`."""
        super().__init__()
        self.size, self.codes, self.code, self.tail = size, split, code, tail
        self.streams: Sequence[tuple[bytes | bytearray, int]] = ()

    def __len__(self) -> int:
        """Return the bytes of the whole."""
        return self.size

    def part(self, start: int, end: int) -> bytearray:
        """Return bytes [start, end); the start is a multiple of 64."""
        words = max(0, min(end, self.codes) - start)
        made = bytearray(np.full(words // 4, self.code, "<i4").tobytes())
        made += self.tail[max(0, start - self.codes) : max(0, end - self.codes)]
        masks.apply(made, words, self.streams, start)
        return made

    def hash(self) -> bytes:
        """Return SHA-256 of the whole."""
        digest = sha256()
        for start in range(0, self.size, PART):
            digest.update(self.part(start, min(start + PART, self.size)))
        return digest.digest()


def made(
    kind: int, subject: bytes, buffer: Any, start: int = 0, size: Any = None
) -> Iterator[bytes]:
    """Yield the frames of a vector as protocol/frames.py would, each made when it is due."""
    at, total = start, len(buffer)
    while at < total:
        low, end = at - at % 64, min(at + min(size(), PART), total)
        payload = bytes(buffer.part(low, end)[at - low :])
        head = frames._LAYOUT.pack(
            frames.MAGIC, 1, int(kind), subject, at, total, len(payload), bytes(4)
        )
        yield head + payload
        at = end


class Hashing:
    """A model that is coming: its leaves are hashed, its bytes are not kept."""

    def __init__(self, total: int) -> None:
        """Expect so many bytes."""
        self._left, self._rest, self._leaves = total, bytearray(), list[bytes]()
        self.digest = b""

    def accept(self, frame: bytes) -> bool:
        """Take a frame; they come in order."""
        self._rest += memoryview(frame)[frames.HEADER :]
        self._left -= len(frame) - frames.HEADER
        whole = len(self._rest) if not self._left else len(self._rest) - len(self._rest) % LEAF
        self._leaves += leaf_hashes(memoryview(bytes(self._rest[:whole])))
        del self._rest[:whole]
        if not self._left:
            self.digest = tree_root(self._leaves)
        return not self._left


class Even(Update):
    """One code in every word of the update."""

    def compute(self, model: bytearray, terms: Terms) -> None:
        """Train nothing."""

    def encode(self, members: int, terms: Terms) -> bytearray:
        """Return what becomes the vector."""
        layout = self.layout(terms.phase).message
        params = plan.read(terms.params)
        codec = Codec(members, params.value_range, params.weight_cap)
        numbers = np.array([1, WEIGHT, 0, *[0] * len(layout.metrics), 1], "<u8")
        code = round(codec.scale * WEIGHT * VALUE)
        return Vector(layout.total_bytes, layout.split, code, numbers.tobytes())


class Member(member.MemberSide):
    """Scheme A's member; its vector is masked when it is made."""

    def inbox(self, message: pb.Inbox, vector: bytearray, split: int) -> Step:
        """Mask and sign."""
        self._vector = cast("Vector", vector)
        step = super().inbox(message, bytearray(), split)
        step.message.masked.bytes = len(vector)
        return step

    def _cover(self, vector: bytearray, split: int, senders: Sequence[int]) -> None:
        mask, _ = self._keys()
        own = self._identity.id
        streams: list[tuple[bytes | bytearray, int]] = [
            (keys.self_key(self._seed, self.ctx, own), 1)
        ]
        for place in senders:
            other = self._entries[place]
            shared = mask.exchange(other.mask_pk)
            pair = keys.pair_key(shared, self.ctx, own, other.id)
            streams.append((pair, keys.pair_sign(own, other.id)))
        self._vector.streams = streams

    def _header(self, y_hash: bytes) -> pb.MaskedHeader:
        return super()._header(self._vector.hash())


class Session(session.Session):
    """A device's session that holds neither model nor vector."""

    _hashing = Hashing(0)

    def _begin(self, start: pb.Start) -> list[Action]:
        actions = super()._begin(start)
        self._hashing = Hashing(start.model_bytes)
        self._incoming = cast("Any", self._hashing)
        return actions

    def _agree(self, start: pb.Start) -> Terms:
        return replace(super()._agree(start), model=self._hashing.digest)

    def _plain(self, members: int, terms: Terms) -> list[Action]:
        vector = cast("Vector", self._device.update.encode(members, terms))
        header = plain.header(self._device.identity, self._ctx, vector.hash())
        body = pb.Masked(header=header, bytes=len(vector))
        message = pb.ToServer(ctx=self._ctx, masked=body)
        return [
            session.Send(message.SerializeToString()), session.Upload(self._ctx, vector),
        ]  # fmt: skip


def serve(order: dict[str, Any]) -> list[int]:
    """Hold a session for each device until it ends."""
    for module, name, own in (
        (session, "bytearray", lambda _size=0: b""),  # the model's room: nothing is kept in it
        (session, "Assembly", lambda *_: None),
        (session, "MemberSide", Member),
        (grpc_session, "Session", Session),
        (grpc_transfer, "frames", made),
        (federations, "Update", Even),
    ):
        setattr(module, name, own)
    started = [
        DeviceThread(DeviceFiles.read(Path(d["directory"])), Nothing(), 0).start(
            order["run"], bytes.fromhex(d["ticket"])
        )
        for d in order["devices"]
    ]
    outcomes = [device.join(3600.0) for device in started]
    for device in started:
        for line in device.log:
            print(line, file=sys.stderr)
    return [outcome.rounds for outcome in outcomes]


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    print(json.dumps({"rounds": serve(json.load(sys.stdin))}), flush=True)
