"""A federation with an issuer for a test, and devices that hold keys: no network, no SuperLink."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol.enrolment import About, Declined, EnrolRequest, RenewRequest, request_for
from umbel.protocol.errors import StateError
from umbel.protocol.members import MemberList
from umbel.server.federation_init import make
from umbel.server.issuer import Issuer
from umbel.server.issuer_socket import Service, listen
from umbel.server.server_toml import ServerSettings
from umbel.server.token_terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.protocol.enrolment_token import Token

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("fl.example.org", "192.0.2.7")


def settings(**changed: object) -> ServerSettings:
    values = {
        "name": "wards",
        "names": NAMES,
        "gateway": "fl.example.org:8444",
        "front": "fl.example.org:8443",
        "superlink": "127.0.0.1:8000",
        "listen_core": "[::]:8444",
        "listen_front": "[::]:8443",
    }
    return ServerSettings(**(values | changed))  # type: ignore[arg-type]


@dataclass
class Clock:
    """A clock that a test moves, either way."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now


@dataclass
class SuperLink:
    """The registrar's side of a SuperLink: a key once, as Flower has it, or no answer."""

    nodes: dict[int, bytes] = field(default_factory=dict)
    ever: list[bytes] = field(default_factory=list)
    away: bool = False

    def register(self, public_key: bytes, name: str) -> int:
        """Register a key that never was here."""
        self._answer()
        for node, key in self.nodes.items():
            if key == public_key:
                return node
        assert public_key not in self.ever, f"{name}: Flower takes no key again"
        self.ever.append(public_key)
        self.nodes[(1 << 63) + len(self.ever)] = public_key
        return (1 << 63) + len(self.ever)

    def unregister(self, flower_node: int) -> None:
        """Forget a node, but never its key."""
        self._answer()
        self.nodes.pop(flower_node, None)

    def registered(self) -> dict[bytes, int]:
        """Return who is here."""
        self._answer()
        return {key: node for node, key in self.nodes.items()}

    def _answer(self) -> None:
        if self.away:
            raise StateError("SuperLink", "an answer", "none")


@dataclass
class Keys:
    """A device's keys, made where they are used."""

    tls: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    flower: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP384R1())
    )

    def enrol(self, token: Token, **changed: object) -> EnrolRequest:
        """Ask for certificates, with fields that a test replaces."""
        values = {
            "federation": token.federation,
            "secret": token.secret,
            "tls": request_for(self.tls),
            "signing": request_for(self.signing),
            "flower": request_for(self.flower),
            "about": said(NOW),
        }
        return EnrolRequest(**(values | changed))  # type: ignore[arg-type]

    def renew(self, node: bytes, federation: str = "wards") -> RenewRequest:
        """Ask for new leaves."""
        tls, signing = request_for(self.tls), request_for(self.signing)
        return RenewRequest(
            federation=federation, id=node, tls=tls, signing=signing, about=said(NOW)
        )


def said(now: datetime) -> About:
    return About(
        umbel="0.6.0", flwr="1.42.0", python="3.11.9", system="Linux", machine="aarch64",
        time=int(now.timestamp()),
    )  # fmt: skip


@dataclass
class Stage:
    """A federation's directory with its issuer, a clock and a SuperLink."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    superlink: SuperLink = field(default_factory=SuperLink)

    def __post_init__(self) -> None:
        make(self.folder, settings(), self.clock.now)
        self.issuer = self.again()

    def again(self, life: timedelta | None = None) -> Issuer:
        """A new issuer over the same files, as after a restart."""
        return Issuer(self.folder, self.clock, self.superlink, life=life)

    def token(self, name: str = "press-17", site: str = "", **terms: object) -> Token:
        """Make a token of a day."""
        values = {"name": name, "site": site or name, "seconds": 86400}
        return self.issuer.token(Terms(**(values | terms)))  # type: ignore[arg-type]

    def members(self) -> MemberList:
        """Return the list on the disk, opened as a device does, by the newest issuing CA."""
        ca = x509.load_pem_x509_certificate((self.folder / "issuing.pem").read_bytes())
        raw = (self.folder / "members.list").read_bytes()
        found = MemberList.open(raw, [ca.public_key()], "wards")  # type: ignore[list-item]
        found.check(self.clock.now)
        return found


@contextmanager
def served(stage: Stage, said: list[str] | None = None) -> Iterator[None]:
    """Let a service answer on the socket, in a loop of its own."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    listener = listen(stage.folder)
    lines = said if said is not None else []
    service = Service(stage.issuer, lines.append)

    def live() -> None:
        loop.run_until_complete(service.serve(listener, stop))
        while left := asyncio.all_tasks(loop):  # connections that were just taken
            loop.run_until_complete(asyncio.wait(left))
        for _ in range(3):  # and close in the loop's next turns
            loop.run_until_complete(asyncio.sleep(0))

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        with socket.socket(socket.AF_UNIX) as last:  # all that came before it has been taken
            last.connect(str(stage.folder / "issuer.sock"))
            last.sendall(b"{}\n")
            last.makefile("rb").read()
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@contextmanager
def declined(code: str) -> Iterator[None]:
    """Expect that the issuer declines, with this code."""
    with pytest.raises(Declined) as caught:
        yield
    assert caught.value.code == code
