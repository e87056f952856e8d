"""What a device says to its federation's front by HTTPS: enrolment, renewal, leaving.

Each answer is read to a bound, within a time. Redirects are not followed. A proxy that
`HTTPS_PROXY` names is used and sees TLS only: one that ends it shows another certificate, and is
refused. The system's roots are never asked.
"""

from __future__ import annotations

import ssl
import time
from hashlib import sha256
from typing import TYPE_CHECKING

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ..protocol.enrolment import MAX_ANSWER, Declined
from ..protocol.errors import Malformed, PeerError, StateError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES = 5
"""How often a front that does not answer is asked; the pauses between are 1, 2, 4 and 8 s."""
ANSWER_S = 30.0
"""For an answer, whole."""
CONNECT_S = 10.0
_SILENCE_S = 10.0
_OK = 200
_ROOT = 8192
_ROOT_PATH = "/v1/ca"


def pinned_root(address: str, digest: bytes, say: Callable[[str], None]) -> x509.Certificate:
    """Fetch the federation's root, over a connection that proves nothing, and compare it.

    Args:
        address: `host:port` of the front.
        digest: SHA-256 of the root's DER, from the token.
        say: Takes a line for the user of a terminal.

    Raises:
        PeerError: Another certificate came.
        StateError: The front does not answer.
    """
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    return root_of(_asked(address, blind, _ROOT_PATH, None, _ROOT, say), address, digest)


def root_of(raw: bytes, address: str, digest: bytes) -> x509.Certificate:
    """Return the root that a server showed, if it is the one whose SHA-256 is known.

    Raises:
        PeerError: It is another.
    """
    try:
        root = x509.load_pem_x509_certificate(raw)
        found = sha256(root.public_bytes(Encoding.DER)).digest()
    except UNREADABLE:
        raise _another(address, "no certificate") from None
    if found != digest:
        raise _another(address, f"the root {found.hex()}")
    return root


class Front:
    """The front, known by the pinned root and its dialled name."""

    def __init__(self, address: str, root: x509.Certificate, say: Callable[[str], None]) -> None:
        """Take `host:port`, the pinned root, and what takes lines for the user of a terminal."""
        self._address, self._say = address, say
        self._trust = ssl.create_default_context(
            cadata=root.public_bytes(Encoding.PEM).decode("ascii")
        )

    def post(self, path: str, body: bytes) -> bytes:
        """Send a request and return what was answered to it.

        Raises:
            Declined: The CA does not grant it.
            PeerError: The server shows another certificate, or answers what is no answer.
            StateError: It does not answer.
        """
        return _asked(self._address, self._trust, path, body, MAX_ANSWER, self._say)


def _asked(
    address: str,
    trust: ssl.SSLContext,
    path: str,
    body: bytes | None,
    most: int,
    say: Callable[[str], None],
) -> bytes:
    """Ask, again and again while nobody answers; return the body of the answer 200."""
    pause = 1.0
    for left in reversed(range(TRIES)):
        try:
            status, raw = _exchanged(f"https://{address}{path}", trust, body, most)
        except (httpx.HTTPError, OSError, ValueError) as error:
            refused = _certificate_error(error)
            if refused:
                raise PeerError(address, refused) from error
            what = " ".join(str(error).split()) or type(error).__name__
        else:
            if status == _OK:
                return raw
            what = _declined(address, status, raw)
        if not left:
            break
        say(f"{address}: {what}; trying again in {pause:.0f} s")
        time.sleep(pause)
        pause *= 2
    move = "check the address, this device's network and HTTPS_PROXY, then try again"
    raise StateError(address, "an answer of the federation's front", what, move)


def _exchanged(url: str, trust: ssl.SSLContext, body: bytes | None, most: int) -> tuple[int, bytes]:
    """Return status and body of one request; one connection, closed at its end."""
    until = time.monotonic() + ANSWER_S
    timeout = httpx.Timeout(_SILENCE_S, connect=CONNECT_S)
    headers = {"accept-encoding": "identity", "user-agent": "umbel"}
    headers |= {"content-type": "application/json"} if body is not None else {}
    method = "GET" if body is None else "POST"
    with (
        httpx.Client(verify=trust, timeout=timeout) as client,
        client.stream(method, url, content=body, headers=headers) as answer,
    ):
        raw = bytearray()
        for piece in answer.iter_raw():
            raw += piece
            if len(raw) > most:
                raise httpx.RemoteProtocolError(f"an answer of more than {most} bytes")
            if time.monotonic() > until:
                raise httpx.ReadTimeout(f"no whole answer within {ANSWER_S:.0f} s")
        return answer.status_code, bytes(raw)


def _declined(address: str, status: int, raw: bytes) -> str:
    """Raise what the CA declined; return words for what is worth another try."""
    try:
        declined = Declined.parse(raw)
    except Malformed:
        temporary = status in {408, 429, 500, 502, 503, 504}
        if temporary:
            return f"HTTP status {status}"
        what = f"expected the front of a federation, got HTTP status {status}"
        raise PeerError(address, what) from None
    if declined.code != "unavailable":
        raise declined
    return declined.line


def _another(address: str, got: str) -> PeerError:
    expected = "the federation's root, as the token says it"
    move = "a proxy that reads along, another server, or a token of another federation"
    return PeerError(address, f"expected {expected}, got {got}: {move}; nothing secret was sent")


def _certificate_error(error: BaseException | None) -> str:
    """Return why a certificate was refused, where that is what is wrong."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"expected a certificate of this federation, got one that is refused: "
                f"{error.verify_message}; the operator checks the name, this device its clock"
            )
        error = error.__cause__ or error.__context__
    return ""
