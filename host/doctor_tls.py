"""What a server shows on a connected socket: TLS, whose certificate, which names; and its clock.

Judged like a device does: by the pinned root and the dialled name, never by the system's roots. If
that fails a second connection, which trusts nobody and sends nothing, looks at the certificate for
the line about it. Where only dates stand in the way, chain and name are judged without them, so
that the difference of the two clocks can be measured.
"""

from __future__ import annotations

import re
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from .doctor import OK, PROBLEM, WARNING, Kind, Table
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from .doctor import Finding

HANDSHAKE_S = 5.0
"""Seconds for a TLS handshake, and for the answer of a page."""
ENDS_SOON = timedelta(days=14)
"""A server's certificate that ends so soon was not renewed: with 30 days left."""
AHEAD_S, BEHIND_S = 5.0, 300.0
"""Seconds by which a device's clock may differ: Flower refuses signatures from outside of it."""
DRIFT_AHEAD_S, DRIFT_BEHIND_S = 2.0, 120.0
"""Seconds of a difference that is worth a line."""
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL; the ssl module has no name for it
_NOT_YET, _EXPIRED, _PURPOSE, _NAMES = 9, 10, 26, {62, 64}
_OURS = re.compile(r"(root|issuing) [0-9a-f]{8}")
_PAGE_BYTES = 65536
_PLAIN = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG",
          "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "HTTPS_PROXY_REQUEST"}  # fmt: skip

TLS = Table({
    "tls.ok": Kind(OK, "the server's certificate chains to the pinned root and bears the dialled "
                   "name"),
    "tls.plaintext": Kind(PROBLEM, "the port answers without TLS"),
    "tls.mute": Kind(PROBLEM, "the port takes connections and says nothing"),
    "tls.hangup": Kind(PROBLEM, "the port takes connections and closes them at once: a proxy with "
                       "nothing behind it"),
    "tls.failed": Kind(PROBLEM, "no common version or cipher of TLS"),
    "tls.federation": Kind(PROBLEM, "the server belongs to another federation"),
    "tls.root": Kind(PROBLEM, "a federation of the same name with another root: it was made anew"),
    "tls.stranger": Kind(PROBLEM, "the certificate is none of a federation: a proxy that inspects "
                         "TLS, or another server"),
    "tls.purpose": Kind(PROBLEM, "the certificate is one of the federation, and no server's"),
    "tls.name": Kind(PROBLEM, "the certificate does not bear the dialled name; its names are "
                     "listed"),
    "tls.ended": Kind(PROBLEM, "the server's certificate has ended, or this clock is ahead"),
    "tls.future": Kind(PROBLEM, "the server's certificate begins later: this clock is behind"),
    "tls.soon": Kind(WARNING, "the server's certificate ends within 14 days: it was not renewed"),
    "tls.swapped": Kind(PROBLEM, "the gateway answers where the front should, or the reverse"),
    "tls.refused": Kind(PROBLEM, "the gateway refuses this device's certificate"),
    "clock.ok": Kind(OK, "the difference to the server's clock, measured"),
    "clock.drift": Kind(WARNING, "the clock is more than 2 s ahead of the server's, or 120 s "
                        "behind"),
    "clock.skew": Kind(PROBLEM, "the clock is more than 5 s ahead of the server's, or 300 s "
                       "behind: Flower refuses what this device signs"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """What a server must show."""

    what: str
    """For the lines: `front fl.example.org:443`."""
    name: str
    """DNS or IP name that was dialled."""
    root: x509.Certificate
    root_pem: str
    federation: str
    h2: bool = False
    """Whether it is the gateway, which speaks HTTP/2 and asks for a certificate."""
    own: tuple[Path, Path] | None = None
    """Certificate and key to show, PEM files."""
    bound: float = HANDSHAKE_S


class Page(NamedTuple):
    """A page's answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    skew: timedelta | None
    """By how much this clock is ahead of the server's `date`."""
    error_s: float
    """By how much that may be wrong."""


def checked(
    expected: Expected, line: socket.socket, again: Callable[[], socket.socket | None]
) -> Generator[Finding, None, ssl.SSLSocket | None]:
    """Return the connection in TLS, or None after the finding that says why not.

    The connection that comes back is one to trust, its dates apart where these were found wrong.

    Args:
        expected: What must be shown.
        line: A connection.
        again: Gives another one; None where the server cannot be reached any more.
    """
    try:
        secure = _handshake(expected, line)
    except ssl.SSLCertVerificationError as error:
        return (yield from _misjudged(expected, error, again))
    except (OSError, ValueError) as error:
        line.close()
        yield _no_tls(expected, error)
        return None
    yield from _shown(expected, secure)
    return secure


def page(secure: ssl.SSLSocket, host: str, target: str) -> Page | None:
    """Ask for a page by HTTP/1.1, one after another; None where no answer comes."""
    with suppress(OSError, ValueError):
        asked, began = time.monotonic(), datetime.now(UTC)
        secure.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("ascii"))
        raw = secure.recv(4096)
        took = time.monotonic() - asked
        while not _whole(raw) and len(raw) < _PAGE_BYTES and (piece := secure.recv(4096)):
            raw += piece
        return _read(raw, began + timedelta(seconds=took / 2), took)
    return None


def clock(what: str, skew: timedelta, error_s: float) -> Finding:
    """Say by how much this machine's clock is ahead of a server's."""
    seconds = skew.total_seconds()
    which = "ahead of" if seconds > 0 else "behind"
    line = f"this clock is {abs(seconds):.1f} s (± {error_s:.1f}) {which} the {what}'s"
    outside = _beyond(seconds, error_s, AHEAD_S, BEHIND_S)
    if outside or _beyond(seconds, error_s, DRIFT_AHEAD_S, DRIFT_BEHIND_S):
        fix = "set the clock: timedatectl set-ntp true, or chronyc makestep"
        return TLS("clock.skew" if outside else "clock.drift", line, fix)
    return TLS("clock.ok", line)


def _beyond(seconds: float, error_s: float, ahead: float, behind: float) -> bool:
    return seconds - error_s > ahead or -seconds - error_s > behind


def _context(expected: Expected, *, flags: int = 0) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=expected.root_pem)
    context.verify_flags |= flags
    # Both are offered: what the server takes says which of the two it is.
    context.set_alpn_protocols(["h2", "http/1.1"] if expected.h2 else ["http/1.1", "h2"])
    if expected.own is not None:
        context.load_cert_chain(*expected.own, password=lambda: "")
    return context


def _handshake(expected: Expected, line: socket.socket, flags: int = 0) -> ssl.SSLSocket:
    try:
        line.settimeout(expected.bound)
        return _context(expected, flags=flags).wrap_socket(line, server_hostname=expected.name)
    except (OSError, ValueError):
        line.close()
        raise


def _no_tls(expected: Expected, error: Exception) -> Finding:
    """Return the finding for a handshake that failed before any certificate."""
    what, reason = expected.what, str(getattr(error, "reason", "") or "")
    if reason in _PLAIN:
        fix = "dial the port that speaks TLS, and let no proxy end it before"
        return TLS("tls.plaintext", f"{what}: answers without TLS ({reason.lower()})", fix)
    if isinstance(error, TimeoutError):
        fix = "see what listens there: umbel server doctor"
        return TLS("tls.mute", f"{what}: no TLS handshake within {expected.bound:g} s", fix)
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        fix = "see what is behind the proxy or load balancer there: umbel server doctor"
        return TLS("tls.hangup", f"{what}: the connection was closed before any TLS", fix)
    fix = "umbel server doctor there; this device speaks TLS 1.2 and 1.3"
    return TLS("tls.failed", f"{what}: no TLS handshake: {reason.lower() or error}", fix)


def _misjudged(
    expected: Expected,
    error: ssl.SSLCertVerificationError,
    again: Callable[[], socket.socket | None],
) -> Generator[Finding, None, ssl.SSLSocket | None]:
    """Say what is wrong with a certificate; go on where it is its dates alone."""
    leaf, secure = _seen(expected, again), None
    ended = error.verify_code == _EXPIRED
    if error.verify_code in {_NOT_YET, _EXPIRED}:
        try:
            line = again()
            secure = _handshake(expected, line, _NO_CHECK_TIME) if line is not None else None
        except ssl.SSLCertVerificationError as other:
            error = other
        except (OSError, ValueError):
            secure = None
    if error.verify_code in {_NOT_YET, _EXPIRED}:
        yield _undated(expected, leaf, ended=ended)
    else:
        yield _wrong(expected, error.verify_code, leaf)
    return secure


def _undated(expected: Expected, leaf: x509.Certificate | None, *, ended: bool) -> Finding:
    now = f"this clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if ended:
        at = f" {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC" if leaf else ""
        line = f"{expected.what}: its certificate, or a CA above it, ended{at}; {now}"
        return TLS("tls.ended", line, "umbel server up renews it there; or set this clock")
    at = f" {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC" if leaf else ""
    line = f"{expected.what}: its certificate begins{at}, but {now}"
    return TLS("tls.future", line, "set this clock: timedatectl set-ntp true")


def _wrong(expected: Expected, code: int, leaf: x509.Certificate | None) -> Finding:
    """Return the finding for a certificate that another time would not mend."""
    what = expected.what
    if code in _NAMES:
        names = ", ".join(names_of(leaf)) if leaf else "not to be seen"
        line = f"{what}: its certificate does not bear {expected.name!r}, only {names}"
        fix = f"umbel server init --names {expected.name} there, or dial one of its names"
        return TLS("tls.name", line, fix)
    if code == _PURPOSE:
        fix = "umbel server doctor there: it serves with another certificate than its own"
        return TLS("tls.purpose", f"{what}: its certificate is no server's", fix)
    by = federation_of(leaf)
    if by is None:
        who = leaf.issuer.rfc4514_string() if leaf else "an unknown issuer"
        line = f"{what}: its certificate is by {who}, no federation's CA"
        return TLS("tls.stranger", line, "let no proxy inspect TLS there, or correct the address")
    if by != expected.federation:
        line = f"{what}: belongs to the federation {by!r}, this device to {expected.federation!r}"
        return TLS("tls.federation", line, "correct the address, or umbel client enrol TOKEN")
    line = f"{what}: a federation {by!r}, but not by the root that was pinned at enrolment"
    return TLS("tls.root", line, "umbel client enrol TOKEN, if the federation was made anew")


def federation_of(leaf: x509.Certificate | None) -> str | None:
    """Return the federation whose CA says that it issued a leaf; it may lie."""
    with suppress(*UNREADABLE):
        if leaf is not None:
            common = leaf.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
            organisation = leaf.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
            if common and organisation and _OURS.fullmatch(str(common[0].value)):
                return str(organisation[0].value)
    return None


def names_of(leaf: x509.Certificate) -> list[str]:
    """Return the DNS and IP names that a certificate bears."""
    with suppress(*UNREADABLE):
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
        return [*found.get_values_for_type(x509.DNSName), *addresses]
    return []


def _seen(expected: Expected, again: Callable[[], socket.socket | None]) -> x509.Certificate | None:
    """Return what the server shows, by a connection that trusts nobody and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    line = again()
    if line is None:
        return None
    with closing(line), suppress(OSError, ValueError):
        line.settimeout(expected.bound)
        with context.wrap_socket(line, server_hostname=expected.name) as secure:
            return _peer(secure)
    return None


def loaded(der: bytes) -> x509.Certificate | None:
    """Return a certificate; None for bytes that are none."""
    with suppress(*UNREADABLE):
        return sound(x509.load_der_x509_certificate(der))
    return None


def sound(certificate: x509.Certificate) -> x509.Certificate:
    """Return a certificate whose names, dates and key can be read: loading it looks at none.

    Raises:
        ValueError, TypeError …: One of `UNREADABLE`.
    """
    for name in (certificate.subject, certificate.issuer):
        name.rfc4514_string()
    certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.public_key()
    return certificate


def _peer(secure: ssl.SSLSocket) -> x509.Certificate | None:
    return loaded(secure.getpeercert(binary_form=True) or b"")


def _shown(expected: Expected, secure: ssl.SSLSocket) -> Iterator[Finding]:
    """Say what is good about a handshake, and which server it was with."""
    leaf, spoken = _peer(secure), secure.selected_alpn_protocol()
    other = "h2" if not expected.h2 else "http/1.1"
    if spoken == other:
        here, there = ("front", "gateway") if expected.h2 else ("gateway", "front")
        line = f"{expected.what}: the {here} answers where the {there} should"
        yield TLS(
            "tls.swapped", line, "exchange gateway and superlink in device.toml, or the ports"
        )
    until = leaf.not_valid_after_utc if leaf else None
    if until and until - datetime.now(UTC) < ENDS_SOON:
        line = f"{expected.what}: its certificate ends {until:%Y-%m-%d %H:%M} UTC"
        yield TLS("tls.soon", line, "umbel server up renews it there")
    ends = f" until {until:%Y-%m-%d}" if until else ""
    yield TLS("tls.ok", f"{expected.what}: {secure.version()}, certificate of the federation{ends}")


def refused(expected: Expected, secure: ssl.SSLSocket) -> Finding | None:
    """Return the finding if the server turns down the certificate that was shown to it.

    In TLS 1.3 it says so only after the handshake; one that accepts speaks first, as HTTP/2 does.
    """
    try:
        secure.settimeout(expected.bound)
        if secure.recv(1):
            return None
        why = "the connection was closed"
    except TimeoutError:
        return None
    except (OSError, ValueError) as error:
        why = str(getattr(error, "reason", "") or error).lower()
    line = f"{expected.what}: this device's certificate is refused ({why})"
    return TLS("tls.refused", line, "umbel client renew, or enrol anew")


def _whole(raw: bytes) -> bool:
    """Tell whether an answer is there as far as it says its length."""
    head, end, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *([0-9]{1,9})", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


def parsed(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer; status 0 where it is none."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = re.match(r"HTTP/1\.[01] ([0-9]{3})\b", lines[0])
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return int(status[1]) if status else 0, headers, body


def _read(raw: bytes, sent: datetime, took: float) -> Page:
    """Return a page from the bytes of an answer; `sent` is when the server wrote it, about."""
    status, headers, body = parsed(raw)
    skew = None
    with suppress(KeyError, ValueError, TypeError):
        # The header has whole seconds, cut off: half a second later is nearest on average.
        at = parsedate_to_datetime(headers["date"]) + timedelta(seconds=0.5)
        skew = sent - at
    return Page(status, headers, body, skew, took / 2 + 0.5)
