"""Frames: how bulk bytes travel beside the messages, and how a broken upload resumes.

A frame is a header of 64 bytes and at most 1 MiB of payload. Numbers are little-endian:

    offset  bytes  field
         0      4  magic `UMBF`
         4      2  version, 1
         6      2  kind: 1 a client's masked vector, 2 a model
         8     32  subject: the context hash, or the model's digest
        40      8  offset of the payload in the whole
        48      8  total bytes of the whole
        56      4  bytes of payload in this frame
        60      4  zero

1 MiB keeps header and payload far below the 4 MiB that gRPC receives by default, and what
shares the connection waits behind one frame only, which pace.py keeps a short one. Nothing is
allocated from a frame's own numbers: the receiver knows the total and brings the memory.

What is sent again must be byte for byte what was sent before: two different maskings of one
context would cancel each other's masks and show the difference of what they hide.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from .errors import Malformed, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = b"UMBF"
VERSION = 1
HEADER = 64
"""Bytes of a header."""
PAYLOAD = 1 << 20
"""Most bytes of payload in one frame."""

_LAYOUT = struct.Struct("<4sHH32sQQI4s")
_SUBJECT = 32
_PADDING = bytes(4)


class Kind(IntEnum):
    """What the bytes are."""

    UPLOAD = 1
    MODEL = 2


def frames(
    kind: int,
    subject: bytes,
    buffer: bytes | bytearray | memoryview,
    start: int = 0,
    size: Callable[[], int] | None = None,
) -> Iterator[bytes]:
    """Yield the frames of `buffer` from the byte `start` on; none when all has been sent.

    Args:
        kind: A `Kind`.
        subject: 32 bytes that say what this belongs to.
        buffer: The whole, contiguous; one payload at a time is copied.
        start: What the receiver already has, in bytes.
        size: Asked before each frame how many bytes it may have; the most where nothing is given.

    Raises:
        ValueError: `subject` has another length, or `start` lies outside the buffer.
    """
    view = memoryview(buffer).cast("B")
    total = len(view)
    if len(subject) != _SUBJECT:
        raise ValueError(f"a subject has {_SUBJECT} bytes, got {len(subject)}")
    if not 0 <= start <= total:
        raise ValueError(f"start lies in 0..{total}, got {start}")
    number = Kind(kind).value
    while start < total:
        part = view[start : start + (PAYLOAD if size is None else min(size(), PAYLOAD))]
        header = _LAYOUT.pack(MAGIC, VERSION, number, subject, start, total, len(part), _PADDING)
        yield b"".join((header, part))
        start += len(part)


def subject(frame: bytes | bytearray | memoryview) -> bytes:
    """Return what a frame says it belongs to, unchecked; empty if it is too short to say."""
    return bytes(memoryview(frame)[8:40]) if len(frame) >= _LAYOUT.size else b""


class Assembly:
    """One whole being received into memory that the receiver owns."""

    def __init__(
        self, kind: int, subject: bytes, total: int, peer: str, out: bytearray | memoryview
    ) -> None:
        """Prepare for `total` bytes of `peer`, to be written to `out`.

        Raises:
            ValueError: `out` is read-only or has another length than `total`.
        """
        view = memoryview(out).cast("B")
        if view.readonly or len(view) != total:
            raise ValueError(f"out is {total} writable bytes, got {len(view)}")
        self._kind = Kind(kind).value
        self._subject = bytes(subject)
        self._peer = peer
        self._out = view
        self.received = 0
        """Bytes received without a gap: where a resumed upload starts."""

    @property
    def complete(self) -> bool:
        """Say whether every byte is here."""
        return self.received == len(self._out)

    def accept(self, frame: bytes | bytearray | memoryview) -> bool:
        """Write one frame's payload and say whether the whole is complete.

        Raises:
            Malformed: The frame is none of this upload, leaves a gap or runs over the end.
            PeerError: Bytes that came before came again and are others.
        """
        offset, payload = self._parse(memoryview(frame).cast("B"))
        end = offset + len(payload)
        known = min(end, self.received) - offset
        # Copies compare at memcmp's speed, views item by item; a repeat is rare.
        if bytes(payload[:known]) != bytes(self._out[offset : offset + known]):
            raise PeerError(self._peer, f"sent other bytes for {offset}")
        if end > self.received:
            self._out[self.received : end] = payload[known:]
            self.received = end
        return self.complete

    def _parse(self, frame: memoryview) -> tuple[int, memoryview]:
        """Return offset and payload of a frame whose every field is as it must be."""
        if len(frame) < HEADER:
            raise Malformed(self._peer, "frame header", f"{HEADER} bytes", len(frame))
        magic, version, kind, subject, offset, total, length, padding = _LAYOUT.unpack(
            frame[:HEADER]
        )
        self._same("frame magic", MAGIC, magic)
        self._same("frame version", VERSION, version)
        self._same("frame kind", self._kind, kind)
        self._same("frame subject", self._subject.hex(), subject.hex())
        self._same("frame total", len(self._out), total)
        self._same("frame padding", _PADDING, padding)
        self._same("frame payload", length, len(frame) - HEADER)
        if not 1 <= length <= PAYLOAD:
            raise Malformed(self._peer, "frame payload", f"1..{PAYLOAD} bytes", length)
        if offset > self.received:
            raise Malformed(self._peer, "frame offset", f"at most {self.received}", offset)
        if offset + length > total:
            raise Malformed(self._peer, "frame end", f"at most {total}", offset + length)
        return offset, frame[HEADER:]

    def _same(self, what: str, expected: object, got: object) -> None:
        """Refuse a field that is not the expected one."""
        if got != expected:
            raise Malformed(self._peer, what, expected, got)
