"""The front: of the SuperLink's port the one API that devices need, and nothing else of it.

    POST /v1/fleet/NAME    to the SuperLink and back, streamed both ways
    GET  /healthz          200: this process lives
    GET  /readyz           200: the SuperLink answers; else 503
    /v1/ca, /v1/enrol, /v1/renew, /v1/leave    how devices join and go (front_pages.py)
    anything else          404

Open-source Flower asks nobody who calls its Control and Runtime APIs, and serves them on the port
of its Fleet API. So a request passes by the bytes of its target alone: nothing is decoded or made
shorter, and what is not `/v1/fleet/` and one plain segment has no meaning here. The request that
goes on is made anew: method, target, framing of the body, and those headers that Flower's Fleet API
reads (`PASSED`), unchanged: who a node is says its signature in them, which the SuperLink checks.

No body is held: front_body.py says where it is cut off, front_places.py who gives way when there
is no room for all. While the SuperLink is away the answer is 503, upon which a SuperNode tries
again.

An ASGI application: front_door.py has the connections.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx
from starlette.responses import PlainTextResponse

from . import service
from .front_body import Body, Gone, Pace, Terms, Turned
from .front_pages import CA, COMMANDS, TERMS, Pages
from .front_places import AT_ONCE, MOST, Places

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from .core_log import Lines
    from .front_places import Place

FLEET = re.compile(rb"/v1/fleet/[a-z0-9]+(?:-[a-z0-9]+)*")
PASSED = frozenset({
    b"accept", b"content-type", b"flwr-public-key", b"flwr-signature", b"flwr-timestamp",
    b"flwr-package-name", b"flwr-package-version", b"flwr-component-name",
})  # fmt: skip
"""Headers of a request that go on to the SuperLink."""
HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"server",
})  # fmt: skip
"""Headers of an answer that do not: they are about the one connection, or the SuperLink's make."""
HEAD_BYTES, HEADERS = 16384, 64
"""Most bytes, and lines, of a request's head."""
CONNECT_S, ANSWER_S, KEEP_S = 2.0, 30.0, 3.0
"""Seconds for a connection to the SuperLink and for its answer; and how long a connection is kept
for the next request: the SuperLink closes it after 5 s."""
READY_S = 2.0
"""Seconds for the SuperLink's answer to `/readyz`."""
READY_LOOK_S = 1.0
_OK, _TRY_AGAIN = 200, 503
_STAYS = frozenset({404, _TRY_AGAIN})
"""Refusals after which the connection is good for another request."""


class Front:
    """The application."""

    def __init__(
        self, superlink: str, trust: ssl.SSLContext, lines: Lines, terms: Terms | None = None,
        devices: Pages | None = None,
    ) -> None:  # fmt: skip
        """Connect when first asked.

        Args:
            superlink: Its `host:port`.
            trust: By which its certificate is checked.
            lines: The log.
            terms: What a body may be.
            devices: The pages by which devices join; None where none can.
        """
        self._devices = devices
        self._superlink, self._lines, self.terms = superlink, lines, terms or Terms()
        self._url = httpx.URL(f"https://{superlink}")
        # A transport and no client: no redirect, no cookie, no proxy of this machine's variables.
        self._transport = httpx.AsyncHTTPTransport(
            verify=trust,
            trust_env=False,
            limits=httpx.Limits(max_connections=MOST + 1, keepalive_expiry=KEEP_S),
        )
        self._pages: dict[bytes, Callable[[], Awaitable[PlainTextResponse]]] = {
            b"/healthz": self._health,
            b"/readyz": self._ready,
        }
        self.places = Places(AT_ONCE * self.terms.largest, self.terms.lasts)
        self._away = False
        self._ask = asyncio.Lock()
        self._asked, self._is_ready = -READY_LOOK_S, False

    async def close(self) -> None:
        """Close the connections to the SuperLink."""
        await self._transport.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        joins = self._devices is not None and scope["raw_path"] in COMMANDS
        body = Body(TERMS if joins else self.terms, scope, receive)
        with suppress(Gone):
            try:
                await self._serve(scope, receive, send, body)
            except Turned as turned:
                self._lines.say(turned.kind, f"{turned.status} to {_peer(scope)}: {turned.line}")
                if turned.status == _TRY_AGAIN:
                    await body.skip()
                # Else what still comes of a body that is not taken is not waited for.
                stays = body.whole and turned.status in _STAYS
                headers = None if stays else {"connection": "close"}
                answer = PlainTextResponse(turned.line + "\n", turned.status, headers)
                await answer(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, body: Body) -> None:
        target, method = _checked(scope), scope["method"]
        reads = method in {"GET", "HEAD"}
        if reads and target in self._pages:
            answer: Response = await self._pages[target]()
        elif reads and self._devices is not None and target == CA:
            answer = self._devices.ca()
        elif method == "POST" and self._devices is not None and target in COMMANDS:
            answer = await self._devices.answer(COMMANDS[target], body, _peer(scope))
        else:
            await self._pass(_fleet(method, target), scope, body, send)
            return
        await answer(scope, receive, send)

    # -- to the SuperLink and back ------------------------------------------------------------

    async def _pass(self, target: bytes, scope: Scope, body: Body, send: Send) -> None:
        await body.begin()
        began = False
        try:
            async with self.places.one(_peer(scope)) as place:
                response = await self._handed(target, scope, body, place)
                try:
                    place.answered()
                    headers = self._headers(response)
                    began = True
                    await send({"type": "http.response.start", "status": response.status_code,
                                "headers": headers})  # fmt: skip
                    await self._answer(response, scope, send)
                finally:
                    await response.aclose()
        except Turned as turned:
            if not began:
                raise
            self._lines.say("broken", f"an answer to {_peer(scope)} broken off: {turned}")

    async def _handed(
        self, target: bytes, scope: Scope, body: Body, place: Place
    ) -> httpx.Response:
        try:
            pieces = body.pieces(place)
            response = await self._sent("POST", target, ANSWER_S, list(_passed(scope)), pieces)
        except httpx.TransportError as error:
            self._note_away(error)
            raise Turned(503, "the SuperLink is away; try again", "turned") from error
        self._note_back()
        return response

    async def _sent(
        self, method: str, target: bytes, patience: float, headers: list[tuple[bytes, bytes]],
        body: AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:  # fmt: skip
        times = {"connect": CONNECT_S, "read": patience, "write": patience, "pool": patience}
        request = httpx.Request(
            method, self._url.copy_with(raw_path=target), headers=headers, content=body,
            extensions={"timeout": times},
        )  # fmt: skip
        return await self._transport.handle_async_request(request)

    def _headers(self, response: httpx.Response) -> list[tuple[bytes, bytes]]:
        if int(response.headers.get("content-length", 0)) > self.terms.largest:
            raise Turned(500, f"an answer above {self.terms.largest} bytes", "large")
        return _returned(response)

    async def _answer(self, response: httpx.Response, scope: Scope, send: Send) -> None:
        """Hand the SuperLink's answer on; one that breaks off ends the connection."""
        pace, sent = Pace(self.terms), 0
        try:
            async for piece in response.aiter_raw():
                sent += len(piece)
                if sent > self.terms.largest:
                    why = f"an answer above {self.terms.largest} bytes"
                    break
                async with asyncio.timeout_at(pace.until()):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                pace.moved(len(piece))
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
        except TimeoutError:
            why = "it takes its answer too slowly"
        except httpx.TransportError as error:
            why = f"the SuperLink broke off ({type(error).__name__})"
        self._lines.say("broken", f"an answer to {_peer(scope)} broken off: {why}")

    def _note_away(self, error: httpx.TransportError) -> None:
        if not self._away:
            self._away = True
            why = f"{type(error).__name__} {error}".strip()
            self._lines.say("superlink", f"SuperLink {self._superlink} is away: {why}")

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            self._lines.say("superlink", f"SuperLink {self._superlink} answers again")

    # -- pages of its own ---------------------------------------------------------------------

    async def _health(self) -> PlainTextResponse:
        return PlainTextResponse("ok\n", headers=service.about())

    async def _ready(self) -> PlainTextResponse:
        """Ask the SuperLink, once a second at most, however many ask here."""
        async with self._ask:
            now = asyncio.get_running_loop().time()
            if now - self._asked >= READY_LOOK_S:
                self._is_ready = await self._answers()
                self._asked = asyncio.get_running_loop().time()
        if self._is_ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the SuperLink is away\n", 503)

    async def _answers(self) -> bool:
        try:
            response = await self._sent("GET", b"/health", READY_S, [])
            await response.aclose()
        except httpx.TransportError as error:
            self._note_away(error)
            return False
        self._note_back()
        return response.status_code == _OK


def _checked(scope: Scope) -> bytes:
    """Return a request's target as it was sent.

    Raises:
        Turned: Its head is too large, or of two minds about its body; it asks for another protocol.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    target: bytes = scope["raw_path"]
    size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
    if size > HEAD_BYTES or len(headers) > HEADERS:
        raise Turned(431, "the head of the request is too large", "large")
    names = {name for name, _ in headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise Turned(400, "a body of two lengths", "unknown")
    if b"upgrade" in names or scope["query_string"]:
        raise Turned(404, "not found", "unknown")
    return target


def _fleet(method: str, target: bytes) -> bytes:
    """Return a target of the Fleet API.

    Raises:
        Turned: It is none.
    """
    if method != "POST" or FLEET.fullmatch(target) is None:
        raise Turned(404, "not found", "unknown")
    return target


def _passed(scope: Scope) -> Iterable[tuple[bytes, bytes]]:
    """Yield the headers with which a request goes on, its body framed anew."""
    lengths = [item for item in scope["headers"] if item[0] == b"content-length"]
    if not any(name == b"transfer-encoding" for name, _ in scope["headers"]):
        yield b"content-length", lengths[0][1] if lengths else b"0"
    yield from (item for item in scope["headers"] if item[0] in PASSED)


def _returned(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers with which an answer goes back."""
    raw = [(name.lower(), value) for name, value in response.headers.raw]
    named = {
        word.strip().lower() for name, value in raw if name == b"connection"
        for word in value.split(b",")
    }  # fmt: skip
    return [item for item in raw if item[0] not in HOP | named]


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "somebody"
