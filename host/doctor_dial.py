"""From a name to a connected socket, with the one step that fails told apart from the others.

    name -> addresses         an unknown name, or a name server that does not answer
    address -> connection     nothing listens, filtered, unreachable; one family of two broken
    proxy                     which hop fails: the proxy itself, or what it says of the target

Every address is tried at once, and none for longer than `CONNECT_S`. A proxy's user and password
are used and never shown. No TLS here: doctor_tls.py.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from base64 import b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from .doctor import NOTE, PROBLEM, WARNING, Kind, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .doctor import Finding

RESOLVE_S = 5.0
"""Seconds for the addresses of a name."""
CONNECT_S = 5.0
"""Seconds for a connection, and for a proxy's answer."""
_HEAD_BYTES = 8192
_LAST_PORT = 65535
_AGAIN = {socket.EAI_AGAIN, socket.EAI_FAIL}
_DENIED = 407

DIAL = Table({
    "address.bad": Kind(PROBLEM, "an address is not `host:port`"),
    "name.unknown": Kind(PROBLEM, "a name has no address"),
    "name.server": Kind(PROBLEM, "the name server does not answer"),
    "port.closed": Kind(PROBLEM, "the host is there and refuses: nothing listens on the port"),
    "port.filtered": Kind(PROBLEM, "no answer at all: a firewall drops it, or the host is down"),
    "port.unreachable": Kind(PROBLEM, "there is no way to the address, or a router rejects it"),
    "address.family": Kind(WARNING, "of IPv4 and IPv6 one does not work: each connection may "
                           "first wait for it"),
    "proxy.used": Kind(NOTE, "a variable leads through a proxy"),
    "proxy.kind": Kind(PROBLEM, "the proxy of a variable is none of HTTP, which is all that is "
                       "spoken with one"),
    "proxy.away": Kind(PROBLEM, "the proxy itself is not reached"),
    "proxy.refused": Kind(PROBLEM, "the proxy refuses to connect with the target"),
    "proxy.uneven": Kind(WARNING, "of front and gateway only one goes through the proxy"),
})  # fmt: skip


class Proxy(NamedTuple):
    """What stands between."""

    host: str
    port: int
    variable: str
    """Where it was found."""
    scheme: str
    secret: str
    """`user:password`, never shown."""

    def __str__(self) -> str:
        """Return it without its secret."""
        return f"{self.host}:{self.port} ({self.variable})"


class Tried(NamedTuple):
    """What came of one address."""

    family: int
    at: str
    connection: socket.socket | None
    code: int
    """`errno`; 0 for a connection, `ETIMEDOUT` where nothing came."""


if TYPE_CHECKING:
    Addresses = list[tuple[Any, ...]]
    Steps = Generator[Finding, None, socket.socket | None]


def split(address: str) -> tuple[str, int] | None:
    """Return host and port of `host:port` or `[IPv6]:port`."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    if not bare or not port.isascii() or not port.isdigit() or (":" in bare and host == bare):
        return None
    return (bare, int(port)) if 0 < int(port) <= _LAST_PORT else None


def reached(
    what: str, address: str, proxy: Proxy | None = None,
    resolve: Callable[..., Addresses] = socket.getaddrinfo, bound: float | None = None,
    source: str = "",
) -> Steps:  # fmt: skip
    """Return a connection with `address`, or None after the finding that says why not.

    Args:
        what: What is dialled, for the lines.
        address: Its `host:port`.
        proxy: Through which it is reached.
        resolve: As `socket.getaddrinfo`.
        bound: Seconds for each step, in place of this module's.
        source: Where the address stands, for the lines.
    """
    what = f"{what} (from {source})" if source else what
    place = split(address)
    if place is None:
        line = f"{what}: {address!r} is no host:port"
        yield DIAL("address.bad", line, "umbel client enrol TOKEN, with a new token")
        return None
    if proxy is None:
        return (yield from _direct(f"{what} {address}", *place, resolve, bound))
    yield DIAL("proxy.used", f"{what} {address} is reached through the proxy {proxy}")
    if proxy.scheme != "http":
        line = f"{proxy.variable} names a proxy of the kind {proxy.scheme}://; only http:// works"
        yield DIAL("proxy.kind", line, f"set {proxy.variable} to http://{proxy.host}:{proxy.port}")
        return None
    way = _direct(f"proxy {proxy}", proxy.host, proxy.port, resolve, bound)
    findings, through = taken(way)
    if through is None:
        why = "; ".join(finding.line for finding in findings)
        fix = f"mend {proxy.variable}, or put {place[0]} into no_proxy"
        yield DIAL("proxy.away", f"{what} {address}: {why}", fix)
        return None
    said = _tunnel(through, address, proxy, CONNECT_S if bound is None else bound)
    if not said:
        return through
    through.close()
    fix = f"let the proxy connect with {address}"
    fix = f"put user and password into {proxy.variable}" if f" {_DENIED} " in said else fix
    yield DIAL("proxy.refused", f"the proxy {proxy} does not connect with {address}: {said}", fix)
    return None


def proxies(host: str) -> tuple[Proxy | None, Proxy | None]:
    """Return the proxies by which the SuperNode and gRPC would reach a host.

    The SuperNode's HTTP library reads the variables in capitals too, gRPC in small letters only.
    """
    found = getproxies()
    if proxy_bypass(host):
        return None, None
    http = next(((k, found[k]) for k in ("https", "all") if found.get(k)), None)
    names = ("grpc", "https", "http")
    small = {name: os.environ.get(f"{name}_proxy") for name in names}
    grpc = next(((k, url) for k, url in small.items() if url), None)
    return _proxy(http), _proxy(grpc)


def uneven(front: Proxy | None, gateway: Proxy | None) -> Generator[Finding, None, None]:
    """Say that one of two addresses goes through a proxy and the other does not."""
    if (front is None) is (gateway is None):
        return
    proxy = front or gateway
    with_proxy, without = ("front", "gateway") if front else ("gateway", "front")
    line = f"the {with_proxy} is reached through the proxy {proxy}, the {without} directly"
    fix = "set https_proxy, in small letters: gRPC reads no other, the SuperNode this one too"
    yield DIAL("proxy.uneven", line, fix)


def _proxy(found: tuple[str, str] | None) -> Proxy | None:
    if found is None:
        return None
    name, url = found
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return Proxy("?", 0, f"{name}_proxy", "?", "")
    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(host, port, f"{name}_proxy", parts.scheme, secret)


def taken(steps: Steps) -> tuple[list[Finding], socket.socket | None]:
    """Return what a way found, and the connection at its end."""
    findings: list[Finding] = []
    while True:
        try:
            findings.append(next(steps))
        except StopIteration as end:
            return findings, end.value


def _direct(
    what: str, host: str, port: int, resolve: Callable[..., Addresses], bound: float | None
) -> Steps:
    found = yield from _addresses(what, host, port, resolve, bound)
    if not found:
        return None
    tried = _connected(found, CONNECT_S if bound is None else bound)
    good = [one for one in tried if one.connection is not None]
    bad = [one for one in tried if one.connection is None]
    if not good:
        yield _unreached(what, bad)
        return None
    for one in bad:
        other = all(one.family != reached.family for reached in good)
        if other and one.code not in _NO_SUCH_NET:
            name = "IPv6" if one.family == socket.AF_INET6 else "IPv4"
            line = f"{what}: {good[0].at} answers, and by {name} {one.at} {_words(one.code)}"
            yield DIAL("address.family", line, f"mend {name} there, or take it out of the DNS")
    for one in good[1:]:
        if one.connection is not None:
            one.connection.close()
    return good[0].connection


def _addresses(
    what: str, host: str, port: int, resolve: Callable[..., Addresses], bound: float | None
) -> Generator[Finding, None, Addresses]:
    """Return the addresses of a name, asked in a thread: a lookup cannot be broken off."""
    answer: list[Addresses | OSError | UnicodeError] = []

    def ask() -> None:
        try:
            answer.append(resolve(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    seconds = RESOLVE_S if bound is None else bound
    thread.join(seconds)
    got = answer[0] if answer else None
    if isinstance(got, list) and got:
        return got
    if got is None or (isinstance(got, socket.gaierror) and got.errno in _AGAIN):
        why = f"no answer in {seconds:g} s" if got is None else str(got.args[-1])
        line = f"{what}: the name server says nothing of {host}: {why}"
        yield DIAL("name.server", line, "see /etc/resolv.conf: resolvectl status")
    else:
        why = str(got.args[-1]) if isinstance(got, OSError | UnicodeError) else "no address"
        line = f"{what}: the name {host} has no address: {why}"
        yield DIAL("name.unknown", line, f"correct the name, or the DNS: getent hosts {host}")
    return []


_WAITS = {errno.EINPROGRESS, errno.EWOULDBLOCK}
_NO_SUCH_NET = {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def _connected(addresses: Addresses, bound: float) -> list[Tried]:
    """Try every address at once, each once; connections come back blocking, with a timeout."""
    tried: list[Tried] = []
    with selectors.DefaultSelector() as waiting:
        for family, kind, proto, _, place in dict.fromkeys(map(tuple, addresses)):
            at = f"[{place[0]}]" if family == socket.AF_INET6 else str(place[0])
            try:
                made = socket.socket(family, kind, proto)
            except OSError as error:
                tried.append(Tried(family, at, None, error.errno or errno.EAFNOSUPPORT))
                continue
            made.setblocking(False)
            code = made.connect_ex(place)
            if code in _WAITS:
                waiting.register(made, selectors.EVENT_WRITE, (family, at, made))
            else:
                tried.append(_tried(family, at, made, code, bound))
        until = time.monotonic() + bound
        while waiting.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                family, at, made = key.data
                code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                tried.append(_tried(family, at, made, code, bound))
        for key in list(waiting.get_map().values()):
            family, at, made = key.data
            tried.append(_tried(family, at, made, errno.ETIMEDOUT, bound))
    return tried


def _tried(family: int, at: str, made: socket.socket, code: int, bound: float) -> Tried:
    if code:
        made.close()
        return Tried(family, at, None, code)
    made.settimeout(bound)
    return Tried(family, at, made, 0)


def _unreached(what: str, bad: Sequence[Tried]) -> Finding:
    """Return the finding for addresses none of which can be reached, by the nearest of them."""
    line = f"{what}: " + ", ".join(f"{one.at} {_words(one.code)}" for one in bad)
    codes = {one.code for one in bad}
    if errno.ECONNREFUSED in codes:
        return DIAL("port.closed", line, "start the server: umbel server up; or correct the port")
    if errno.ETIMEDOUT in codes:
        return DIAL("port.filtered", line, "let this port out, and in there; or use port 443")
    return DIAL("port.unreachable", line, "see the network: ip route get ADDRESS")


def _words(code: int) -> str:
    known = {
        errno.ECONNREFUSED: "refuses (nothing listens)",
        errno.ETIMEDOUT: "does not answer (filtered)",
    }
    return known.get(code) or f"cannot be reached ({errno.errorcode.get(code, code)})"


def _tunnel(line: socket.socket, address: str, proxy: Proxy, bound: float) -> str:
    """Let a proxy connect with the target; return what it says if it does not."""
    request = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n"
    if proxy.secret:
        request += f"Proxy-Authorization: Basic {b64encode(proxy.secret.encode()).decode()}\r\n"
    head = b""
    with suppress(OSError):
        line.settimeout(bound)
        line.sendall(f"{request}\r\n".encode())
        while b"\r\n\r\n" not in head and len(head) < _HEAD_BYTES:
            piece = line.recv(1)  # what follows the head is the target's
            if not piece:
                break
            head += piece
    status = head.split(b"\r\n", 1)[0].decode("ascii", "replace")
    if status.startswith("HTTP/1.") and status.split(" ")[1:2] == ["200"]:
        return ""
    return f"it says {status[:80]!r} " if status else f"no answer in {bound:g} s"
