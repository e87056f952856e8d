"""What `umbel server doctor` looks at of what runs: ports, programs, sockets, limits, the clock.

A program counts as ours when its command line names this federation's directory. Who has a port of
another user cannot be seen by everybody: then that is said.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.serialization import Encoding

from .core_cli import CONNECTIONS
from ..host import doctor_dial as dial
from ..host import doctor_tls as tls
from ..host.doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from ..host.doctor_front import pages
from ..host.unix_socket import connected
from ..protocol.documents import read_json
from ..protocol.errors import StateError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from .doctor_files import Place
    from ..host.doctor import Finding

_START = "umbel server up"
_FILES = 512
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_LOOPBACK = ("127.", "::1", "::ffff:127.")
SOCKET_S = 5.0
"""Seconds for a Unix socket of this machine to take a connection."""

LIVE = Table({
    "port.ours": Kind(OK, "a program of this federation listens where it should"),
    "port.none": Kind(WARNING, "nothing listens where server.toml says: the program does not run"),
    "port.taken": Kind(PROBLEM, "another program has a port of server.toml"),
    "superlink.public": Kind(PROBLEM, "the SuperLink listens beyond loopback: anybody may start "
                             "runs there"),
    "core.ok": Kind(OK, "the core service answers on its socket"),
    "core.none": Kind(NOTE, "no core service runs"),
    "core.stale": Kind(WARNING, "a core service that is gone has left its files"),
    "issuer.ok": Kind(OK, "the issuer answers on its socket"),
    "issuer.none": Kind(WARNING, "no issuer runs: nobody can enrol or renew"),
    "public.unreached": Kind(NOTE, "from here the address that devices dial is not reached"),
    "limits.files": Kind(WARNING, "too few open files are allowed for the connections of a core "
                         "service"),
    "clock.synchronised": Kind(OK, "this machine's clock is synchronised"),
    "clock.free": Kind(WARNING, "this machine's clock is not synchronised"),
})  # fmt: skip


class Listener(NamedTuple):
    """Somebody who listens."""

    address: str
    port: int
    who: str
    """Pid and command, as far as this user may see them."""
    ours: bool


def listeners(folder: Path) -> list[Listener]:
    """Return who listens on TCP on this machine."""
    found = []
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            who, ours = _program(one.pid, folder)
            found.append(Listener(str(one.laddr.ip), int(one.laddr.port), who, ours))
    return found


def _program(pid: int | None, folder: Path) -> tuple[str, bool]:
    """Return a program in words, and whether it is ours."""
    if pid is None:
        return "a program of another user", False
    with suppress(psutil.Error):
        command = psutil.Process(pid).cmdline()
        ours = any(str(folder) in part for part in command)
        name = next((part for part in command[1:] if part[:1] not in {"-", ""}), "")
        return f"pid {pid} ({os.path.basename(command[0])} {name[:60]})".replace(" )", ")"), ours
    return f"pid {pid}", False


def ports(place: Place, found: Sequence[Listener] | None = None) -> Iterator[Finding]:
    """Look who has the ports of server.toml, and on which addresses."""
    settings = place.settings
    if settings is None:
        return
    known = listeners(place.folder) if found is None else found
    wanted = {
        "gateway": settings.listen_core,
        "front": settings.listen_front,
        "superlink": settings.superlink,
    }
    for name, address in wanted.items():
        port = int(address.rpartition(":")[2])
        there = [one for one in known if one.port == port]
        strangers = [one for one in there if not one.ours]
        public = [one for one in there if not one.address.startswith(_LOOPBACK)]
        if name == "superlink" and public:
            line = f"the SuperLink's port {port} is open on {public[0].address}: {public[0].who}"
            fix = "end it, and start it by umbel server up: only the front is for others"
            yield LIVE("superlink.public", line, fix)
        if strangers:
            line = f"{name} {address}: taken by {strangers[0].who}"
            yield LIVE("port.taken", line, f"end that program, or another port in {place.folder}")
        elif there:
            yield LIVE("port.ours", f"{name} {address}: {there[0].who}")
        else:
            yield LIVE("port.none", f"{name} {address}: nothing listens", _START)


def core(folder: Path) -> Iterator[Finding]:
    """Look whether the core service lives, or one that is gone has left files."""
    record, door = folder / "core.json", folder / "core.sock"
    try:
        said = read_json(record.read_bytes())
        pid = said["pid"] if isinstance(said, dict) and type(said["pid"]) is int else 0
    except (OSError, ValueError, KeyError):
        pid = 0
    there = record.exists() or door.exists()
    if not there:
        yield LIVE("core.none", "no core service runs", _START)
    elif _answers(door) and psutil.pid_exists(pid):
        yield LIVE("core.ok", f"the core service answers, pid {pid}")
    else:
        line = f"{record.name} or {door.name} is of a core service that does not answer (pid {pid})"
        yield LIVE("core.stale", line, f"{_START}; it takes their place")


def issuer(place: Place) -> Iterator[Finding]:
    """Look whether the issuer lives."""
    if not place.development:
        if _answers(place.folder / "issuer.sock"):
            yield LIVE("issuer.ok", "the issuer answers")
        else:
            yield LIVE("issuer.none", f"{place.folder / 'issuer.sock'}: no issuer answers", _START)


def _answers(door: Path) -> bool:
    """Tell whether somebody takes connections on a Unix socket."""
    with suppress(StateError):
        if (line := connected(door, SOCKET_S, "a process that listens")) is not None:
            line.close()
            return True
    return False


def front(place: Place, bound: float | None = None) -> Iterator[Finding]:
    """Look at the front where it listens, by the name that devices dial, and what is behind it."""
    if place.settings is not None and (name := dial.split(place.settings.front)):
        there = _local(place.settings.listen_front)
        secure = yield from _secured(place, "front", there, name[0], bound)
        if secure is not None:
            with closing(secure):
                yield from pages(secure, f"front {there}")


def gateway(place: Place, bound: float | None = None) -> Iterator[Finding]:
    """Look at the gateway's TLS where it listens, by the name that devices dial."""
    if place.settings is not None and (name := dial.split(place.settings.gateway)):
        there = _local(place.settings.listen_core)
        secure = yield from _secured(place, "gateway", there, name[0], bound)
        if secure is not None:
            secure.close()


def superlink(place: Place, bound: float | None = None) -> Iterator[Finding]:
    """Look at the SuperLink's TLS."""
    if place.settings is not None:
        there = _local(place.settings.superlink)
        name = dial.split(there)
        secure = yield from _secured(place, "superlink", there, name[0] if name else "", bound)
        if secure is not None:
            secure.close()


def public(place: Place, bound: float | None = None) -> Iterator[Finding]:
    """Look whether the addresses that devices dial are reached from here."""
    if place.settings is None:
        return
    for what, address in (("front", place.settings.front), ("gateway", place.settings.gateway)):
        findings, line = dial.taken(dial.reached(what, address, bound=bound))
        if line is not None:
            line.close()
        elif findings:
            fix = "see DNS and port forwarding; a router that does not lead back here is no fault"
            yield LIVE("public.unreached", f"as devices dial it, {findings[0].line}", fix)


def _secured(
    place: Place, what: str, address: str, name: str, bound: float | None
) -> Generator[Finding, None, ssl.SSLSocket | None]:
    """Return a connection with a server of ours; one that does not run was said by `ports`."""
    line = dial.taken(dial.reached(what, address, bound=bound))[1]
    if line is None or place.root is None:
        if line is not None:
            line.close()
        return None
    pem = place.root.public_bytes(Encoding.PEM).decode("ascii")
    expected = tls.Expected(f"{what} {address}", name, place.root, pem, place.name,
                            h2=what == "gateway", bound=bound or tls.HANDSHAKE_S)  # fmt: skip
    again = lambda: dial.taken(dial.reached(what, address, bound=bound))[1]  # noqa: E731
    return (yield from tls.checked(expected, line, again))


def _local(address: str) -> str:
    """Return where to dial an address that is listened on: `[::]` and `0.0.0.0` are all of them."""
    host, _, port = address.rpartition(":")
    return {"[::]": "localhost", "0.0.0.0": "127.0.0.1"}.get(host, host) + f":{port}"  # noqa: S104


def limits(most: int | None = None) -> Iterator[Finding]:
    """Look how many open files a program may have; `most` is the system's bound unless given."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if most is None else most
    wanted = CONNECTIONS + _FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        line = f"{hard} open files are allowed, {CONNECTIONS} connections need {wanted}"
        yield LIVE(
            "limits.files", line, f"LimitNOFILE={wanted} in the unit, or ulimit -Hn {wanted}"
        )


def clock(state: int | None = None) -> Iterator[Finding]:
    """Look whether something keeps this machine's clock; `state` is the kernel's unless given."""
    found = _clock_state() if state is None else state
    if found == _UNSYNCHRONISED:
        line = "the kernel says that nothing keeps this machine's clock"
        yield LIVE("clock.free", line, "timedatectl set-ntp true, or start chronyd")
    elif found >= 0:
        yield LIVE("clock.synchronised", "the clock is synchronised")


def _clock_state() -> int:
    """Return what adjtimex(2) says, asked to change nothing; -1 where it may not be asked."""
    request = ctypes.create_string_buffer(512)  # a struct timex, whose `modes` is 0
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(request)
    except (OSError, AttributeError):
        return -1
    return -1 if ctypes.get_errno() in {errno.EPERM, errno.ENOSYS} and state < 0 else int(state)
