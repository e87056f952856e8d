"""What the server's doctor finds of what runs, each of its findings provoked on real sockets."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from umbel.server import doctor_live as live
from umbel.server.doctor_files import Place
from umbel.server.doctor_live import Listener
from umbel.server.federation_init import make
from umbel.tests.doctor_stage import SETTINGS, Stage, hang, page
from umbel.tests.issuing import settings
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.host.doctor import Finding

BOUND = 5.0


class Server:
    """A federation's directory, and servers with its certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "wards"
        make(self.folder, settings(), datetime.now(UTC))
        self.stage = Stage(folder / "stage")

    def place(self, **listening: int | str) -> Place:
        """Return the federation, with ports or addresses for its servers."""
        there = {"superlink": self.stage.bound(), "listen_core": self.stage.bound(),
                 "listen_front": self.stage.bound()}  # fmt: skip
        for name, port in listening.items():
            there[name] = port if isinstance(port, str) else f"127.0.0.1:{port}"
        own = {"names": ("127.0.0.1",)} if "front" in there else {}
        (self.folder / "server.toml").write_text(settings(**there, **own).dumps())
        return Place.read(self.folder)

    def context(self, server: str, alpn: str = "") -> ssl.SSLContext:
        """Return the TLS of a server of the federation."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{server}.pem", self.folder / f"{server}.key")
        if alpn:
            context.set_alpn_protocols([alpn])
        return context


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.stage.close()


@contextmanager
def listening(*arguments: str, host: str = "127.0.0.1") -> Iterator[int]:
    """Run a program that listens, with words on its command line, and give its port."""
    code = (
        "import socket, sys; s = socket.create_server((sys.argv[1], 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, host, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.communicate(timeout=10)


def ours(server: Server) -> list[Finding]:
    with listening(str(server.folder)) as port:
        found = live.ports(server.place(listen_front=port))
        return [one for one in found if "front" in one.line]


def taken(server: Server) -> list[Finding]:
    with listening("somebody", "else") as port:
        return list(live.ports(server.place(listen_front=port)))


def nobody(server: Server) -> list[Finding]:
    return [one for one in live.ports(server.place()) if "front" in one.line]


def public_superlink(server: Server) -> list[Finding]:
    with listening(str(server.folder), host="0.0.0.0") as port:  # noqa: S104
        return list(live.ports(server.place(superlink=port)))


def core_alive(server: Server) -> list[Finding]:
    with unix(server.folder / "core.sock"):
        (server.folder / "core.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
        return list(live.core(server.folder))


def core_gone(server: Server) -> list[Finding]:
    (server.folder / "core.json").write_text(json.dumps({"pid": 2**22 + 1, "port": 1}))
    return list(live.core(server.folder))


def no_core(server: Server) -> list[Finding]:
    for name in ("core.json", "core.sock"):
        (server.folder / name).unlink(missing_ok=True)
    return list(live.core(server.folder))


@contextmanager
def unix(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as door:
        path.unlink(missing_ok=True)
        door.bind(str(path))
        door.listen()
        yield


def issuer_alive(server: Server) -> list[Finding]:
    with unix(server.folder / "issuer.sock"):
        return list(live.issuer(server.place()))


CASES: dict[str, Callable[[Server], list[Finding]]] = {
    "port.ours": ours,
    "port.none": nobody,
    "port.taken": taken,
    "superlink.public": public_superlink,
    "core.ok": core_alive,
    "core.stale": core_gone,
    "core.none": no_core,
    "issuer.ok": issuer_alive,
    "issuer.none": lambda server: list(live.issuer(server.place())),
    "public.unreached": lambda server: list(live.public(addressed(server, "front"), BOUND)),
    "limits.files": lambda _: list(live.limits(1024)),
    "clock.synchronised": lambda _: list(live.clock(0)),
    "clock.free": lambda _: list(live.clock(5)),
}


def addressed(server: Server, what: str) -> Place:
    """Return the federation with one public address at which nobody is, and one at which one is."""
    other = "gateway" if what == "front" else "front"
    places: dict[str, int | str] = {
        what: server.stage.bound(), other: server.stage.serve(hang)
    }  # fmt: skip
    return server.place(**places)


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, server: Server) -> None:
    shown(name, CASES[name](server))


def test_who_has_a_port_is_named(server: Server) -> None:
    finding = shown("port.taken", taken(server))
    assert "front 127.0.0.1:" in finding.line
    assert f"({os.path.basename(sys.executable)}" in finding.line


def test_a_superlink_on_loopback_is_where_it_belongs(server: Server) -> None:
    place = server.place(superlink="127.0.0.1:8000")
    for address, bad in (("127.0.0.1", False), ("::1", False), ("::", True), ("10.0.0.1", True)):
        found = live.ports(place, [Listener(address, 8000, "pid 1", ours=True)])
        assert ("superlink.public" in {one.id for one in found}) is bad, address


def test_a_server_in_order_has_no_problem(server: Server) -> None:
    """Front with the name that devices dial, gateway that asks for a certificate, SuperLink."""
    said = {"/healthz": page("ok\n"), "/readyz": page("ok\n")}
    gateway = server.context("gateway", "h2")
    gateway.verify_mode = ssl.CERT_REQUIRED
    gateway.load_verify_locations(server.folder / "ca.pem")
    stage = server.stage
    place = server.place(
        listen_front=stage.pages(server.context("front", "http/1.1"), said),
        listen_core=stage.tls(gateway, lambda line: line.sendall(SETTINGS)),
        superlink=stage.tls(server.context("superlink"), hang),
    )
    shown("front.ok", live.front(place, BOUND))
    for look in (live.gateway, live.superlink):
        assert [one.id for one in look(place, BOUND)] == ["tls.ok"]


@pytest.mark.parametrize(
    ("look", "listener", "finding"),
    [
        (live.front, "listen_front", "front.superlink"),
        (live.superlink, "superlink", "tls.plaintext"),
        (live.gateway, "listen_core", "tls.swapped"),
    ],
)
def test_what_is_wrong_behind_a_port_is_said(
    look: Callable[..., Iterator[Finding]], listener: str, finding: str, server: Server
) -> None:
    away = {"/healthz": page("ok\n"), "/readyz": page("the SuperLink is away\n", status=503)}
    stage = server.stage

    def plain(line: socket.socket) -> None:
        line.recv(4096)
        line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    port = {
        "front.superlink": lambda: stage.pages(server.context("front", "http/1.1"), away),
        "tls.plaintext": lambda: stage.serve(plain),
        "tls.swapped": lambda: stage.pages(server.context("front", "http/1.1"), away),
    }[finding]()
    shown(finding, look(server.place(**{listener: port}), BOUND))


def test_the_front_listens_with_a_certificate_without_the_public_name(server: Server) -> None:
    other = server.stage.context(["localhost"], alpn="http/1.1", by=server.stage.authority)
    port = server.stage.tls(other, hang)
    found = {one.id for one in live.front(server.place(listen_front=port), BOUND)}
    assert found == {"tls.federation"}


def test_what_does_not_run_is_no_finding_of_the_lines(server: Server) -> None:
    place = server.place()
    for look in (live.front, live.gateway, live.superlink):
        assert list(look(place, BOUND)) == []


def test_this_machines_own_limits_and_clock_can_be_asked() -> None:
    assert {one.id for one in live.limits()} <= {"limits.files"}
    assert {one.id for one in live.clock()} <= {"clock.free", "clock.synchronised"}
