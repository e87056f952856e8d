"""What a supervisor and its ranks say to one another: small frames over one socket pair each.

    frame = LE32 bytes of the head | LE32 bytes of the payload | head | payload

The head is a JSON object; the payload is raw bytes, for secrets and hashes. Nothing large passes
here: vectors lie in shared memory (segments.py), and a frame names them. Both ends are processes of
one user and one version, so a frame that is none is an error of ours and ends the connection.

A payload may hold keys: what was received is zeroed where it is cut out, and is the caller's to
wipe.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from ...protocol.errors import StateError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    Frame = tuple[dict[str, Any], bytearray]

MAX_HEAD, MAX_PAYLOAD = 1 << 20, 256 << 20
"""Bytes; the largest payload is the leaf hashes of a model or the keys of a round's masks."""
RECEIVE = 1 << 16
"""Bytes to ask a socket for."""
_SIZES = struct.Struct("<II")


def opening(head: dict[str, Any], payload: int) -> bytes:
    """Return all of a frame before its payload of so many bytes.

    Raises:
        StateError: It is too large.
    """
    data = json.dumps(head).encode()
    if len(data) > MAX_HEAD or payload > MAX_PAYLOAD:
        most = f"a frame of at most {MAX_HEAD} and {MAX_PAYLOAD} bytes"
        raise StateError("rank", most, (len(data), payload))
    return _SIZES.pack(len(data), payload) + data


def send(sock: socket.socket, start: bytes, payload: bytes | bytearray = b"") -> None:
    """Send one frame, which `start` opens.

    Raises:
        OSError: The other end is gone.
    """
    sock.sendall(start)
    if payload:
        sock.sendall(payload)


class Frames:
    """The frames in a stream of bytes."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take what has come, and give each frame that is whole.

        Raises:
            StateError: It is no frame.
        """
        self._buffer += data
        while len(self._buffer) >= _SIZES.size:
            head, payload = _SIZES.unpack_from(self._buffer)
            if head > MAX_HEAD or payload > MAX_PAYLOAD:
                raise StateError("rank", "a frame", "other bytes")
            start = _SIZES.size + head
            stop = start + payload
            if len(self._buffer) < stop:
                return
            try:
                fields = json.loads(self._buffer[_SIZES.size : start])
            except ValueError as error:
                raise StateError("rank", "a JSON object", "other bytes") from error
            body = self._buffer[start:stop]
            self._buffer[start:stop] = bytes(payload)
            del self._buffer[:stop]
            yield fields, body
