"""Asking a core service how it is: the command `status` on its socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import core_wire as wire
from ..host import unix_socket
from ..protocol.documents import read_json
from ..protocol.errors import StateError, UmbelError

if TYPE_CHECKING:
    import socket
    from pathlib import Path

SOCKET = "core.sock"
ANSWER_S = 5.0
"""How long a core service may take to answer."""


def ask(federation: Path) -> dict[str, Any] | None:
    """Return what core_view.py says; None where no core service listens.

    Raises:
        StateError: One listens and does not answer, or answers something else.
    """
    path = federation / SOCKET
    stream = unix_socket.connected(path, ANSWER_S, "a core service")
    if stream is None:
        return None
    with stream:
        try:
            stream.sendall(wire.head("status"))
            return _answer(stream)
        except (OSError, ValueError, UmbelError) as error:
            got, move = str(error) or type(error).__name__, "see core.log"
            raise StateError(str(path), "an answer of this release", got, move) from error


def _answer(stream: socket.socket) -> dict[str, Any]:
    reader, message = wire.Reader(wire.EVENTS, "core"), None
    while message is None:
        count = stream.recv_into(reader.room())
        if not count:
            raise ValueError("it hung up")
        message = reader.filled(count)
    match read_json(message.payload) if message.op == "status" else None:
        case dict(found):
            return found
    raise ValueError(f"{message.op} instead of status")
