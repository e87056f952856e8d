"""How the issuer's process is asked: a line of JSON each way over `issuer.sock`.

    {"command": "enrol", "body": "..."}    at most 64 KiB      ->     {"status": 200, "body": "..."}

A connection is one question. Bodies are text: what a device has sent, unread, or JSON. `relay` is
for the front's event loop, `ask` for a command, which does the work itself where no issuer runs.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .issuer_commands import OK, SETTINGS, Answer, answer
from ..host import unix_socket
from ..protocol.documents import read_json
from ..protocol.enrolment import MAX_ANSWER, MAX_REQUEST, Declined
from ..protocol.errors import Malformed, SettingsError, StateError, UmbelError
from ..protocol.forms import integer, matching, read_object

if TYPE_CHECKING:
    import socket
    from pathlib import Path

SOCKET = "issuer.sock"
MOST = 16 << 20
"""Bytes of an answer: what is known of 10,000 nodes."""
PATIENCE_S = 60.0
"""How long an issuer may take: it waits for the SuperLink."""
_HTTP = integer(100, 599)
_text = matching(re.compile("[^\ud800-\udfff]*"), "text")


def request(command: str, body: bytes) -> bytes:
    """Return the line that asks.

    Raises:
        Malformed: The body is no text, or too long.
    """
    try:
        line = json.dumps({"command": command, "body": body.decode()}, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise Malformed("request", "is no text") from error
    if len(line) >= MAX_REQUEST:
        raise Malformed("request", "size", f"at most {MAX_REQUEST} bytes", len(line))
    return line + b"\n"


def asked(line: bytes) -> tuple[str, bytes]:
    """Read such a line.

    Raises:
        Malformed: It is none.
    """
    found = read_object(line, {"command": _text, "body": _text}, MAX_REQUEST, "issuer.sock")
    return found["command"], found["body"].encode()


def answered(line: bytes) -> Answer:
    """Read the answer.

    Raises:
        Malformed: It is none.
    """
    found = read_object(line, {"status": _HTTP, "body": _text}, MOST, "issuer")
    return Answer(found["status"], found["body"].encode())


def answer_line(made: Answer) -> bytes:
    """Return the line that answers."""
    text = json.dumps({"status": made.status, "body": made.body.decode()}, ensure_ascii=False)
    return text.encode() + b"\n"


async def relay(folder: Path, command: str, body: bytes) -> Answer:
    """Ask the issuer's process what a device wants; its refusals are answers too.

    Args:
        folder: Of the federation.
        command: `ca`, `enrol`, `renew` or `leave`.
        body: What the device has sent.
    """
    try:
        line = request(command, body)
    except Malformed as error:
        declined = Declined("malformed", str(error))
        return Answer(declined.status, declined.dumps())
    try:
        async with asyncio.timeout(PATIENCE_S):
            return answered(await _exchanged(folder, line))
    except (OSError, ValueError, Malformed):  # no issuer, one that ended, one that is stuck
        declined = Declined("unavailable")
        return Answer(declined.status, declined.dumps())


async def _exchanged(folder: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(folder / SOCKET, limit=MAX_ANSWER * 2)
    try:
        writer.write(line)
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()


def ask(folder: Path, command: str, given: object = None) -> Any:
    """Let the issuer do what an operator wants: its process, or this one where none runs.

    Raises:
        SettingsError: It does not accept what is given.
        StateError: It cannot do it.
    """
    body = json.dumps(given).encode()
    stream = _connected(folder)
    if stream is None:
        made = _here(folder, command, body)
    else:
        try:
            with stream, stream.makefile("rwb") as file:
                file.write(request(command, body))
                file.flush()
                made = answered(file.readline(MOST + 1))
        except (OSError, Malformed) as error:
            where = str(folder / SOCKET)
            raise StateError(where, "an answer of the issuer", error, "see its log") from error
    found = read_json(made.body)
    if made.status == OK:
        return found
    raise (_NotAccepted if made.status == SETTINGS else _NotDone)(str(found["line"]))


def is_served(folder: Path) -> bool:
    """Tell whether an issuer's process listens."""
    stream = _connected(folder)
    if stream is None:
        return False
    stream.close()
    return True


def _connected(folder: Path) -> socket.socket | None:
    """Return a connection with the issuer's process, None where none listens."""
    return unix_socket.connected(folder / SOCKET, PATIENCE_S, "the issuer's socket")


def _here(folder: Path, command: str, body: bytes) -> Answer:
    from .flower_registration import SuperLinkRegistrar  # noqa: PLC0415 - flwr takes a second
    from .issuer import Issuer  # noqa: PLC0415 - so it is not needed to ask
    from .server_toml import ServerSettings  # noqa: PLC0415 - as above

    address = ServerSettings.read(folder).superlink
    registrar = SuperLinkRegistrar(address, folder / "ca.pem")
    try:
        issuer = Issuer(folder, lambda: datetime.now(UTC), registrar)
        return answer(issuer, command, body, lambda line: print(line, file=sys.stderr))
    finally:
        registrar.close()


class _NotAccepted(SettingsError):
    """What another process said of a setting, as it said it."""

    def __init__(self, line: str) -> None:
        UmbelError.__init__(self, line)


class _NotDone(StateError):
    """What another process said of its state, as it said it."""

    def __init__(self, line: str) -> None:
        UmbelError.__init__(self, line)
