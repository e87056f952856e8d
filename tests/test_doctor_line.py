"""What a device's doctor finds at front and gateway, on real sockets and certificates."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import umbel
from umbel.clients import doctor_line as line
from umbel.clients.doctor_files import Known
from umbel.clients.doctor_line import Way
from umbel.clients.flower_node import remember
from umbel.clients.grpc_measure import Speed
from umbel.clients.policy import Policy
from umbel.protocol.certificates import Authority
from umbel.protocol.members import MemberList
from umbel.tests import federations
from umbel.tests.doctor_stage import SETTINGS, Stage, hang, page, proxying
from umbel.tests.front_stage import staged
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.host.doctor import Finding

WAY = Way(bound=60.0)
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the proxies of this machine."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Place(Stage):
    """Servers of a federation that has a device."""

    def __init__(self, folder: Path) -> None:
        self.federation = federation = federations.made(folder / "federation", 2)
        self.device = federation.device("edge-0")
        root = x509.load_pem_x509_certificate(federation.ca.read_bytes())
        key = load_pem_private_key((federation.folder / "ca.key").read_bytes(), None)
        super().__init__(folder / "stage", Authority("tested", root, key))  # type: ignore[arg-type]

    def known(self, **own: object) -> Known:
        """Return the device, some of it otherwise."""
        return replace(Known.read(self.device), **own)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"))
    yield made
    made.close()


def front(place: Place, said: dict[str, bytes]) -> list[Finding]:
    """Return what is found at a front that gives these pages."""
    port = place.pages(place.context(alpn="http/1.1"), said)
    return list(line.front(place.known(superlink=f"localhost:{port}"), WAY))


@contextmanager
def real_front(place: Place) -> Iterator[tuple[Known, Callable[[], None]]]:
    """Give a device of a real front, and what takes the SuperLink behind it away."""
    with staged(place.folder / "front") as stage:
        root = stage.authority.certificate
        yield (
            place.known(root=root, federation="dev", superlink=f"localhost:{stage.port}"),
            stage.away,
        )


def ready_front(place: Place) -> list[Finding]:
    with real_front(place) as (known, _):
        return list(line.front(known, WAY))


def lonely_front(place: Place) -> list[Finding]:
    with real_front(place) as (known, away):
        away()
        return list(line.front(known, WAY))


def superlink(place: Place, status: int) -> list[Finding]:
    """Return what is found where the SuperLink answers a signed request by a status."""
    remember(place.device / "flower", 7)
    said = {"/v1/fleet/get-run": page("{}", "Content-Type: application/json", status=status)}
    port = place.pages(place.context(alpn="http/1.1"), said)
    return list(line.registered(place.known(superlink=f"localhost:{port}")))


def never_started(place: Place) -> list[Finding]:
    (place.device / "flower.node").unlink(missing_ok=True)
    return list(line.registered(place.known(superlink="localhost:1")))


def gateway(place: Place) -> list[Finding]:
    def speak(secure: ssl.SSLSocket) -> None:
        secure.sendall(SETTINGS)
        hang(secure)

    port = place.tls(place.context(alpn="h2", clients=True), speak)
    return list(line.gateway(place.known(gateway=f"localhost:{port}"), Way(bound=2.0)))


def removed(place: Place, port: int) -> list[Finding]:
    """Return what a device finds that was removed, when the core service knows it."""
    known = replace(Known.read(place.federation.device("edge-1")), gateway=f"localhost:{port}")
    now = datetime.now(UTC)
    gone = MemberList("tested", 1 << 40, now, now + timedelta(days=7), frozenset({known.id}))
    (place.federation.folder / "members.list").write_bytes(gone.sign(place.authority))
    until = time.monotonic() + 60
    while not (found := list(line.measured(known))) or found[0].id != "gateway.refused":
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return found


def other_versions(place: Place) -> list[Finding]:
    return list(line.versions(place.known(), {"umbel-version": "9.9.1", "umbel-protocol": "1"}))


def old_protocol(place: Place) -> list[Finding]:
    policy = Policy(min_protocol=2)
    return list(line.versions(place.known(policy=policy), {"umbel-protocol": "1"}))


CASES: dict[str, Callable[[Place], list[Finding]]] = {
    "front.ok": ready_front,
    "front.other": lambda place: front(place, {}),
    "front.superlink": lonely_front,
    "versions.server": other_versions,
    "protocol.old": old_protocol,
    "node.registered": lambda place: superlink(place, 404),
    "node.unregistered": lambda place: superlink(place, 401),
    "node.unknown": never_started,
    "line.slow": lambda place: paced(place, 50_000),
    "line.capped": lambda place: paced(place, 1e6, Policy(bytes_per_day=10_000_000)),
    "line.unmeasured": gateway,
    "line.metered": lambda place: list(line.measured(metered(place))),
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, place: Place) -> None:
    shown(name, CASES[name](place))


def metered(place: Place) -> Known:
    policy = Policy(metered_interfaces=("lo",), metered_bytes_per_day=1)
    return place.known(gateway="127.0.0.1:1", policy=policy)


def paced(place: Place, up: float, policy: Policy | None = None) -> list[Finding]:
    return list(line.pace(Speed(0.01, up, 1e6), policy or Policy()))


@pytest.fixture(scope="module")
def core(place: Place) -> Iterator[int]:
    """A core service of the federation, and its port."""
    with federations.core(place.federation) as port:
        yield port


def member(place: Place, port: int) -> list[Finding]:
    return list(line.gateway(place.known(gateway=f"localhost:{port}"), WAY))


BY_CORE: dict[str, Callable[[Place, int], list[Finding]]] = {
    "gateway.ok": member,
    "line.speed": member,
    "gateway.refused": removed,
}


@pytest.mark.parametrize("name", BY_CORE)
def test_what_a_core_service_shows(name: str, place: Place, core: int) -> None:
    found = BY_CORE[name](place, core)
    shown(name, found)
    if name == "line.speed":
        assert {one.id for one in found} == {"tls.ok", "gateway.ok", "clock.ok", "line.speed"}


def test_a_real_front_says_its_clock_and_its_versions(place: Place) -> None:
    found = ready_front(place)
    ids = {one.id for one in found}
    assert ids == {"tls.ok", "clock.ok", "front.ok", "node.unknown"} or "node.registered" in ids
    (measured,) = [one.line for one in found if one.id == "clock.ok"]
    assert re.fullmatch(
        r"this clock is [0-2]\.\d s \(± \d\.\d\) (ahead of|behind) the front's", measured
    )


def test_the_servers_own_version_is_no_finding(place: Place) -> None:
    same = {"umbel-version": umbel.__version__, "umbel-protocol": "1"}
    assert list(line.versions(place.known(), same)) == []
    assert list(line.versions(place.known(), {})) == []
    strange = {"umbel-version": "\x1b[2J", "umbel-protocol": "²"}
    assert "\x1b" not in shown("versions.server", line.versions(place.known(), strange)).line


def test_where_no_root_is_pinned_the_port_is_looked_at_all_the_same(place: Place) -> None:
    known = place.known(
        root=None, superlink=place.bound(), gateway=f"localhost:{place.serve(hang)}"
    )
    shown("port.closed", line.front(known, WAY))
    assert list(line.gateway(known, WAY)) == []


def test_a_device_without_a_certificate_hears_that_it_is_refused(place: Place) -> None:
    def speak(secure: ssl.SSLSocket) -> None:
        secure.sendall(SETTINGS)
        hang(secure)

    port = place.tls(place.context(alpn="h2", clients=True), speak)
    known = place.known(gateway=f"localhost:{port}", directory=place.folder)
    shown("tls.refused", line.gateway(known, WAY))


def test_where_an_address_came_from_is_said(place: Place) -> None:
    there = place.bound()
    finding = shown("port.closed", line.front(place.known(superlink=there), WAY))
    assert finding.line.startswith(f"front (from superlink of device.toml) {there}: ")


def test_front_and_gateway_exchanged_are_said_to_be(place: Place) -> None:
    port = place.tls(place.context(alpn="http/1.1"), hang)
    shown("tls.swapped", line.gateway(place.known(gateway=f"localhost:{port}"), WAY))


def test_the_front_is_reached_through_a_proxy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real_front(place) as (known, _):
        proxy = place.serve(proxying("200 go on"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{proxy}")
        found = list(line.front(replace(known, gateway="localhost:1"), WAY))
        shown("proxy.used", found)
        shown("front.ok", found)
        shown("proxy.uneven", line.proxies(replace(known, gateway="localhost:1")))
        assert not any("secret" in one.line + one.fix for one in found)
