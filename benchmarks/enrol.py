"""Devices that join: seconds from their requests to their certificates, through the front.

    enrol/100       100 devices at once: root fetched and compared, request, certificates, the
                    SuperLink told, the registry written and on the disk
    enrol/one       one device alone
    enrol/renew     one that renews

A server as `umbel server up` starts it, on loopback: front, issuer and SuperLink are processes of
their own, TLS and node authentication are on. The devices' keys are made beforehand, as each
device makes its own. The peer is `flwr supernode register`, one call a device, which tells the
SuperLink of a key and makes no certificate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .record import Measurement
from ..clients.front_line import Front, pinned_root
from ..host.programs import command_path, direct, free_port
from ..protocol.enrolment import About, EnrolAnswer, EnrolRequest, RenewRequest, request_for
from ..protocol.enrolment_token import Token
from ..server.federation_init import make
from ..server.flower_programs import QUIET, Place
from ..server.flower_up import ServerUp
from ..server.init_cli import settings_for
from ..server.issuer_wire import ask
from ..server.token_terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = "flwr 1.42.0: flwr supernode register, a call each"
_AT_ONCE = 32
_CALLS = 5


class Device:
    """A device's keys, and its token."""

    def __init__(self, where: Place, name: str) -> None:
        """Make the keys, and let the issuer make a token."""
        terms = Terms(name=name, site=name, seconds=3600)
        self.token = Token.parse(ask(where.folder, "token", terms.dumps())["token"])
        self.tls = ec.generate_private_key(ec.SECP256R1())
        self.signing = Ed25519PrivateKey.generate()
        self.flower = ec.generate_private_key(ec.SECP384R1())
        self.id = b""

    def enrol(self) -> float:
        """Enrol, and return the seconds that it took."""
        began, token = time.perf_counter(), self.token
        root = pinned_root(token.address, token.root, _hear)
        request = EnrolRequest(
            federation=token.federation, secret=token.secret, tls=request_for(self.tls),
            signing=request_for(self.signing), flower=request_for(self.flower), about=_about(),
        )  # fmt: skip
        self.front = Front(token.address, root, _hear)
        self.id = EnrolAnswer.parse(self.front.post("/v1/enrol", request.dumps())).id
        return time.perf_counter() - began

    def renew(self) -> float:
        """Renew, and return the seconds that it took."""
        began = time.perf_counter()
        request = RenewRequest(
            federation=self.token.federation, id=self.id, tls=request_for(self.tls),
            signing=request_for(self.signing), about=_about(),
        )  # fmt: skip
        EnrolAnswer.parse(self.front.post("/v1/renew", request.dumps()))
        return time.perf_counter() - began


def run(
    devices: Annotated[int, typer.Option(help="Devices that join at once.")] = 100,
    runs: Annotated[int, typer.Option(help="Runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Measure enrolments through the front of a real server."""
    os.environ.update(direct())
    together, alone, renewed, peer = [], [], [], []
    for number in range(runs):
        with _server() as where:  # what an address may ask at once is there anew
            many = [Device(where, f"n{number}-{i}") for i in range(devices)]
            single = Device(where, f"single-{number}")
            began = time.perf_counter()
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(Device.enrol, many))
            together.append(time.perf_counter() - began)
            alone.append(single.enrol())
            renewed.append(single.renew())
            peer.append(_registration(where, number))
    many_peer = [seconds * devices for seconds in peer]
    for case, samples, by in (
        (str(devices), together, many_peer), ("one", alone, peer), ("renew", renewed, []),
    ):  # fmt: skip
        name = PEER if by else None
        yield Measurement(
            bench="enrol", case=case, unit="s", samples=samples, peer=by, peer_name=name
        )


@contextmanager
def _server() -> Iterator[Place]:
    """Run a federation's server in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="um") as home:
        here = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        settings = settings_for("bench", ["127.0.0.1"], *here)
        where = Place(home=Path(home), folder=Path(home) / "federations" / "bench")
        make(where.folder, settings, datetime.now(UTC))
        with ServerUp(where, settings, _hear) as server:
            server.start_issuer()
            server.start()
            yield where


def _registration(where: Place, number: int) -> float:
    """Return the seconds of one call of Flower's own command, the median of some."""
    times = []
    for call in range(_CALLS):
        public = ec.generate_private_key(ec.SECP384R1()).public_key()
        file = where.home / f"key-{number}-{call}.pub"
        file.write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
        command = [command_path("flwr"), "supernode", "register", str(file), "bench"]
        env = os.environ | QUIET | {"FLWR_HOME": str(where.client_home)}
        began = time.perf_counter()
        subprocess.run(command, env=env, check=True, capture_output=True)  # noqa: S603 - Flower's
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _about() -> About:
    return About(
        umbel="bench", flwr="1.42.0", python="3", system="Linux", machine="bench",
        time=int(time.time()),
    )  # fmt: skip


def _hear(_line: str) -> None:
    """Take a line that nobody reads."""
