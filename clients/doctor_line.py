"""What `umbel client doctor` finds on the way to the federation's two servers, front and gateway.

Each is one chain of steps that ends at the first that fails: name, address, port, TLS, certificate,
then what the server itself says. The front is asked for its pages and, by a request that this node
signs and that changes nothing, whether the SuperLink knows it; the gateway is shown the device's
certificate, and takes and gives bytes for the speed of the line (grpc_measure.py).
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding

from .links import interface_to, listed
from .. import __version__
from ..host import doctor_dial as dial
from ..host import doctor_tls as tls
from ..host.doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from ..host.doctor_front import pages
from ..host.doctor_machine import size
from ..protocol.errors import BadCertificate, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from .doctor_files import Known
    from .grpc_measure import Speed
    from .policy import Policy
    from ..host.doctor import Finding

    Resolve = Callable[..., dial.Addresses]

_ANEW = "umbel client enrol TOKEN, with a new token"


SLOW = 128 << 10
"""Bytes a second."""


class Way(NamedTuple):
    """How a server is reached."""

    bound: float | None = None
    """Seconds for each step, in place of those of doctor_dial.py and doctor_tls.py."""
    resolve: Resolve = socket.getaddrinfo


_WAY = Way()

LINE = Table({
    "gateway.ok": Kind(OK, "the gateway takes this device's certificate"),
    "gateway.refused": Kind(PROBLEM, "the gateway says that this device is no member, or removed"),
    "line.speed": Kind(OK, "bytes a second each way, measured with the gateway"),
    "line.slow": Kind(WARNING, "less than 128 KiB a second, one way or the other"),
    "line.capped": Kind(NOTE, "what a cap of bytes a day comes to on this line"),
    "line.metered": Kind(NOTE, "the link is a metered one of the policy, and was not measured"),
    "line.unmeasured": Kind(NOTE, "the gateway does not measure, or not in time"),
    "versions.server": Kind(WARNING, "server and device run different minor versions of umbel"),
    "protocol.old": Kind(PROBLEM, "the server speaks an older protocol than the policy allows"),
    "node.registered": Kind(OK, "the SuperLink knows this node"),
    "node.unregistered": Kind(PROBLEM, "the SuperLink does not know this node's key"),
    "node.unknown": Kind(NOTE, "which number the SuperLink gave this node is not kept here yet"),
})  # fmt: skip


def proxies(known: Known) -> Iterator[Finding]:
    """Look whether front and gateway are reached by the same way."""
    front_, gateway_ = dial.split(known.superlink), dial.split(known.gateway)
    if front_ and gateway_:
        yield from dial.uneven(dial.proxies(front_[0])[0], dial.proxies(gateway_[0])[1])


def front(known: Known, way: Way = _WAY) -> Iterator[Finding]:
    """Look at the way to the front, and at what it says."""
    place = dial.split(known.superlink)
    proxy = dial.proxies(place[0])[0] if place else None
    secure = yield from _secured(known, "front", known.superlink, proxy, way)
    if secure is not None:
        with closing(secure):
            yield from _pages(known, secure, known.superlink)


def gateway(known: Known, way: Way = _WAY) -> Iterator[Finding]:
    """Look at the way to the gateway, and whether it takes this device's certificate."""
    place = dial.split(known.gateway)
    proxy = dial.proxies(place[0])[1] if place else None
    own = _own(known.directory)
    secure = yield from _secured(known, "gateway", known.gateway, proxy, way, own)
    if secure is None or place is None:
        return
    expected = _expected(known, f"gateway {known.gateway}", place[0], way)
    with closing(secure):
        if secure.selected_alpn_protocol() == "h2":
            refused = tls.refused(expected, secure)
            if refused is None:
                yield LINE("gateway.ok", f"gateway {known.gateway}: takes this certificate")
                yield from measured(known, way.bound)
            else:
                yield refused


def measured(known: Known, bound: float | None = None) -> Iterator[Finding]:
    """Measure the line to the gateway, and say what a cap of the policy makes of it."""
    from .grpc_measure import LITTLE, MEASURE_S, MUCH, speed  # noqa: PLC0415 - grpc waits

    if known.files is None:
        return
    interface, metered = interface_to(known.gateway), known.policy.metered_interfaces
    if metered is not None and listed(interface, metered):
        yield LINE("line.metered", f"the way to the gateway, by {interface}, is a metered link")
        return
    most = MUCH if known.policy.bytes_per_day is None else LITTLE
    try:
        own = known.files.tls(datetime.now(UTC))
        found = speed(known.gateway, own, MEASURE_S if bound is None else bound, most)
    except (SettingsError, BadCertificate):
        return  # said of the files
    if found is None:
        yield LINE("line.unmeasured", "the gateway did not measure this line; see its version")
        return
    if found.refused:
        yield LINE("gateway.refused", f"the gateway refuses this device: {found.refused}", _ANEW)
        return
    yield tls.clock("gateway", timedelta(seconds=found.skew), found.trip / 2 + 0.5)
    yield from pace(found, known.policy)


def pace(found: Speed, policy: Policy) -> Iterator[Finding]:
    """Say how fast a line is, and how far it goes in a day."""
    up, down = (f"{size(one)}/s" for one in (found.up, found.down))
    line = f"gateway: {up} up, {down} down, {1000 * found.trip:.0f} ms there and back"
    if min(found.up, found.down) < SLOW:
        million = 4_000_000 / found.up
        line += f"; a model of a million parameters takes {million:.0f} s up"
        yield LINE("line.slow", line, "a better line, or smaller models: deadline of the run")
    else:
        yield LINE("line.speed", line)
    for key in ("bytes_per_day", "metered_bytes_per_day"):
        cap = getattr(policy, key)
        if cap is not None:
            seconds = cap / 2 / found.up + cap / 2 / found.down
            line = (
                f"limits.{key} allows {size(cap)}, {seconds:.0f} s of this line; a round moves "
                f"its model twice, so one above {size(cap / 2)} is refused"
            )
            yield LINE("line.capped", line)


def _secured(
    known: Known, what: str, address: str, proxy: dial.Proxy | None, way: Way,
    own: tuple[Path, Path] | None = None,
) -> Generator[Finding, None, ssl.SSLSocket | None]:  # fmt: skip
    """Return a connection with a server of this device's federation, or None after the cause."""

    def steps() -> dial.Steps:
        source = f"{'superlink' if what == 'front' else what} of device.toml"
        return dial.reached(what, address, proxy, way.resolve, way.bound, source)

    line = yield from steps()
    place = dial.split(address)
    if line is None or place is None:
        return None
    if known.root is None:  # no certificate can be judged; that was said
        line.close()
        return None
    expected = replace(
        _expected(known, f"{what} {address}", place[0], way), h2=what == "gateway", own=own
    )
    return (yield from tls.checked(expected, line, lambda: dial.taken(steps())[1]))


def _own(directory: Path) -> tuple[Path, Path] | None:
    """Return this device's certificate and key, if they are such."""
    files = directory / "tls.pem", directory / "tls.key"
    with suppress(OSError, ValueError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(*files, password=lambda: "")
        return files
    return None


def _pages(known: Known, secure: ssl.SSLSocket, address: str) -> Iterator[Finding]:
    """Look at the front's pages, and what stands behind it."""
    headers = yield from pages(secure, f"front {address}")
    if headers is not None:
        yield from versions(known, headers)
        yield from registered(known)


def versions(known: Known, said: Mapping[str, str]) -> Iterator[Finding]:
    """Compare versions with what a server says of its own in the headers of a page."""
    theirs, protocol = said.get("umbel-version", ""), said.get("umbel-protocol", "")
    if theirs and theirs.split(".")[:2] != __version__.split(".")[:2]:
        line = f"the server runs umbel {theirs[:20]}, this device {__version__}"
        minor = ".".join(theirs.split(".")[:2])
        fix = f"pip install 'umbel=={minor}.*' here, or the other there"
        yield LINE("versions.server", line, fix)
    least = known.policy.min_protocol
    if protocol.isascii() and protocol.isdigit() and int(protocol[:9]) < least:
        line = f"the server speaks protocol {protocol[:9]}, trust.min_protocol is {least}"
        yield LINE("protocol.old", line, "update umbel at the server")


def registered(known: Known) -> Iterator[Finding]:
    """Ask the SuperLink, by a request that this node signs and that changes nothing."""
    from .flower_node import is_registered  # noqa: PLC0415 - flwr waits until it is needed

    key = known.directory / "flower"
    root = known.policy.ca or str(known.directory / "ca.pem")
    with suppress(SettingsError):  # an unreadable key: said by doctor_files.py
        answer = is_registered(known.superlink, Path(root), key)
        if answer is None:
            yield LINE("node.unknown", "this node has not been in contact with the SuperLink yet")
        elif answer:
            yield LINE("node.registered", "the SuperLink knows this node")
        else:
            line = "the SuperLink does not know this node's key; enrolment registers it"
            yield LINE("node.unregistered", line, f"{_ANEW}; see the clock too if it is off")


def _expected(known: Known, what: str, name: str, way: Way) -> tls.Expected:
    """Return what a server of this device's federation must show."""
    if known.root is None:
        raise SettingsError("root", "a pinned root", "none")
    pem = known.root.public_bytes(Encoding.PEM).decode("ascii")
    seconds = tls.HANDSHAKE_S if way.bound is None else way.bound
    return tls.Expected(what, name, known.root, pem, known.federation, bound=seconds)
