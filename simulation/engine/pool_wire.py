"""Messages between a pool and its processes, over socket pairs: a JSON object, then blobs.

    4 bytes `UMPL` · u32 header bytes · u64 bytes of blobs · header (JSON object) · blobs

All integers are little-endian. The sizes of the blobs stand in the header under `blobs`. No pickle:
a worker runs user code, so what it says is as foreign as a peer's bytes. Other than the pipe of a
training child (clients/pipe.py) this carries raw bytes, not named arrays: a reply's arrays go
through as they are, and large things that all workers read go by a mapped file instead.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol.documents import read_json
from ...protocol.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Blob = bytes | bytearray | memoryview

MAGIC = b"UMPL"
MAX_HEADER = 1 << 26
MAX_BLOBS = 1 << 34
BUFFER = 1 << 22
"""Bytes that may wait between the ends, if the kernel allows: a whole message of a small model."""
_SIZES = struct.Struct("<4sIQ")
_AT_ONCE = 256
"""Buffers of one system call; Linux takes 1,024."""


class Packet(NamedTuple):
    """What was received."""

    fields: dict[str, Any]
    blobs: list[memoryview]


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket, peer: str) -> None:
        """Speak over `end`; `peer` is named in errors."""
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._end = end
        self._peer = peer

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self._end.fileno()

    def send(self, fields: Mapping[str, Any], blobs: Sequence[Blob] = ()) -> None:
        """Write one message whole.

        Raises:
            ValueError: JSON cannot say it; nothing was written.
            OSError: The other end is gone.
        """
        views = [memoryview(blob).cast("B") for blob in blobs]
        sizes = [len(view) for view in views]
        text = json.dumps({**fields, "blobs": sizes}, allow_nan=False).encode()
        start = _SIZES.pack(MAGIC, len(text), sum(sizes)) + text
        left = [memoryview(start), *(view for view in views if view)]
        while left:
            sent = self._end.sendmsg(left[:_AT_ONCE])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def receive(self) -> Packet:
        """Read one message.

        Raises:
            EOFError: The other end is gone, in the middle of a message too.
            Malformed: It is none.
        """
        magic, header, total = _SIZES.unpack(self._read(_SIZES.size))
        if magic != MAGIC or header > MAX_HEADER or total > MAX_BLOBS:
            raise Malformed(self._peer, "start of a message", MAGIC, magic)
        try:
            fields = read_json(self._read(header))
        except ValueError as error:
            raise Malformed(self._peer, f"header: {error}") from None
        sizes = fields.pop("blobs", None) if isinstance(fields, dict) else None
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
            raise Malformed(self._peer, "header", "an object with the sizes of its blobs", "others")
        if sum(sizes) != total:
            raise Malformed(self._peer, "bytes of blobs", total, sum(sizes))
        view, blobs, start = memoryview(self._read(total)), [], 0
        for size in sizes:
            blobs.append(view[start : start + size])
            start += size
        return Packet(fields, blobs)

    def close(self) -> None:
        """End the conversation, whoever else holds a copy of the descriptor."""
        with suppress(OSError):  # the other end was first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def send_end(self, end: socket.socket) -> None:
        """Hand on one end of another socket pair."""
        socket.send_fds(self._end, [b"."], [end.fileno()])

    def take_end(self) -> socket.socket:
        """Return the end that was handed on.

        Raises:
            EOFError: The other end is gone.
        """
        _, found, _, _ = socket.recv_fds(self._end, 1, 1)
        if not found:
            raise EOFError
        os.set_inheritable(found[0], False)
        return socket.socket(fileno=found[0])

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            try:
                got = self._end.recv_into(view)
            except ConnectionResetError:
                got = 0
            if not got:
                raise EOFError
            view = view[got:]
        return buffer
