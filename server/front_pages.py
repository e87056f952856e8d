"""The front's own pages for devices: by them they join, renew and leave.

    GET  /v1/ca       the root, PEM; a device compares it with the SHA-256 in its token
    POST /v1/enrol    to the issuer and back: a token and requests for certificates
    POST /v1/renew    as that: the node's own keys ask for new certificates
    POST /v1/leave    as that: a node goes

What a device sends passes unread: the issuer judges it, in its own process (issuer_socket.py).
Here is what keeps strangers from keeping it busy: how large a request is and how long it may come,
how many are at the issuer at once and whose they are, and how many an address may send. While the
issuer is away the answer is 503 and one line.

Only a federation of `umbel server init` has them; one of `umbel up` enrols nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from .federation_files import ROOT
from .front_body import Terms, Turned
from .front_places import Places, network
from .issuer_wire import PATIENCE_S, relay
from .plain_files import read_file, why
from .server_toml import FILE
from ..protocol.enrolment import MAX_REQUEST, Declined
from ..protocol.errors import Malformed, StateError

if TYPE_CHECKING:
    from pathlib import Path

    from .core_log import Lines
    from .front_body import Body

CA = b"/v1/ca"
COMMANDS = {b"/v1/enrol": "enrol", b"/v1/renew": "renew", b"/v1/leave": "leave"}
TERMS = Terms(largest=MAX_REQUEST, stall=10.0, lasts=20.0)
"""What a request's body may be."""
AT_ISSUER = 64
"""Requests at the issuer at once."""
BURST, PER_SECOND = 120, 2.0
"""Requests of one address at once, and how fast that comes back: a site of 100 devices joins in one
minute, and whoever guesses secrets of 32 bytes has all the time there is."""
_ADDRESSES = 4096
_OK, _TRY_AGAIN = 200, 503


class Pages:
    """The pages of one federation."""

    def __init__(self, folder: Path, lines: Lines) -> None:
        """Read the root.

        Args:
            folder: Of the federation.
            lines: The log.

        Raises:
            StateError: The root cannot be read.
        """
        self._folder, self._lines = folder, lines
        try:
            self._root = read_file(folder / ROOT, MAX_REQUEST)
        except (OSError, ValueError) as error:
            where = str(folder / ROOT)
            raise StateError(where, "the root certificate", why(error), "restore it") from error
        self._places = Places(AT_ISSUER * MAX_REQUEST, PATIENCE_S + TERMS.lasts, AT_ISSUER)
        self._allowed = Allowance(BURST, PER_SECOND)

    def ca(self) -> Response:
        """Return the answer with the root."""
        return Response(self._root, media_type="application/x-pem-file")

    async def answer(self, command: str, body: Body, peer: str) -> Response:
        """Return what the issuer says, or that it cannot be asked now.

        Args:
            command: One of `COMMANDS`.
            body: Of the request.
            peer: The address that it comes from.

        Raises:
            Turned: The body is too large or too slow.
        """
        given = await body.read(MAX_REQUEST)
        if not self._allowed.take(peer):
            line = "too many requests from this address; try again in a minute"
            return self._said(command, peer, _TRY_AGAIN, Declined("unavailable", line).dumps())
        try:
            async with self._places.one(peer) as place:
                place.waits()
                status, answer = await relay(self._folder, command, given)
        except Turned as turned:
            status, answer = turned.status, Declined("unavailable", str(turned)).dumps()
        return self._said(command, peer, status, answer)

    def _said(self, command: str, peer: str, status: int, answer: bytes) -> Response:
        """Return an answer; a refusal is a line of the log, by its code."""
        if status != _OK:
            try:
                code = Declined.parse(answer).code
            except Malformed:
                code = "another answer of the issuer"
            self._lines.say(command, f"{status} to {peer}: {command}: {code}")
        return Response(answer, status, media_type="application/json")


class Allowance:
    """How many requests each address may send, the last `_ADDRESSES` of them."""

    def __init__(self, burst: int, per_second: float) -> None:
        """Let each have `burst` at once."""
        self._burst, self._per_second = burst, per_second
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, host: str) -> bool:
        """Tell whether an address may send one more, and count it."""
        now, key = asyncio.get_running_loop().time(), network(host)
        left, at = self._left.pop(key, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._per_second)
        allowed = left >= 1.0
        self._left[key] = (left - 1.0 if allowed else left, now)
        if len(self._left) > _ADDRESSES:
            del self._left[next(iter(self._left))]
        return allowed


def pages_of(folder: Path, lines: Lines) -> Pages | None:
    """Return the pages of a federation; None where nobody can enrol: it has no `server.toml`."""
    return Pages(folder, lines) if (folder / FILE).is_file() else None
