"""Sockets of one machine, by a path: the listening end is 0600 from the first moment on.

A path of a process that is gone may be bound again; whether one listens there still is for the
caller to ask first, with `connected`.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

_PATH_LIMIT = 107  # bytes, of sockaddr_un


def check_length(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        StateError: It is longer than 107 bytes.
    """
    if (got := len(os.fsencode(path))) > _PATH_LIMIT:
        raise StateError(str(path), f"at most {_PATH_LIMIT} bytes", got, "shorten UMBEL_HOME")


def listen(path: Path, waiting: int) -> socket.socket:
    """Bind a path and return the socket that listens there, non-blocking.

    Args:
        path: What is there is replaced.
        waiting: Most connections that wait to be accepted.

    Raises:
        StateError: The path is too long, or cannot be bound.
    """
    check_length(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(waiting)
    except OSError as error:
        listener.close()
        raise StateError(str(path), "a socket that can be made", error.strerror or error) from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def connected(path: Path, patience: float, expected: str) -> socket.socket | None:
    """Return a connection with who listens at a path, None where nobody does.

    Args:
        path: Of the socket.
        patience: Seconds that connecting, and each call on the connection, may take.
        expected: Who should be there, for errors.

    Raises:
        StateError: It cannot be reached, or takes nobody in time.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(patience)
    try:
        stream.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        stream.close()
        return None
    except OSError as error:
        stream.close()
        raise StateError(str(path), expected, error.strerror or error) from error
    return stream
