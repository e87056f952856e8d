"""Freeing a node's key at a real SuperLink: TLS and node authentication on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from umbel.clients.flower_node import deactivate, is_registered, remember
from umbel.protocol.errors import SettingsError
from umbel.server.flower_control import Control
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from umbel.simulation.dev_federation import DevFederation


class Place:
    """A SuperLink with one node registered."""

    def __init__(self, federation: DevFederation, address: str) -> None:
        """Register the node."""
        self.federation, self.address = federation, address
        self.root = federation.ca
        self.key = federation.device("edge-0") / "flower"
        public = bytes.fromhex(federation.nodes[0].flower_key)
        with Control(address, self.root) as control:
            self.node_id = control.register(public, "edge-0")

    def activate(self) -> int:
        """Come online as a starting SuperNode does; returns the HTTP status."""
        own = load_ssh_private_key(self.key.read_bytes(), None)
        assert isinstance(own, ec.EllipticCurvePrivateKey)
        with FleetHttpClient.from_server_address(
            self.address, False, self.root.read_bytes(),
            [NodeAuthHttpInterceptor(own, own.public_key())],
        ) as client:  # fmt: skip
            public = public_key_to_bytes(own.public_key())
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=30)
            try:
                client.ActivateNode(request)
            except httpx.HTTPStatusError as error:
                return error.response.status_code
        return 200

    def status(self) -> str:
        """Return what the SuperLink says of the node."""
        with Control(self.address, self.root) as control:
            return control.nodes()["edge-0"].status


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A SuperLink of this file's own."""
    folder = tmp_path_factory.mktemp("superlink")
    federation = made(folder / "federation", 2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    tools, home = Path(sys.executable).parent, str(folder / "flwr")
    names = ("certfile", "superlink.pem"), ("keyfile", "superlink.key"), ("ca-certfile", "ca.pem")
    tls = [
        part
        for name, file in names
        for part in (f"--ssl-{name}", str(folder / "federation" / file))
    ]
    process = subprocess.Popen(
        [str(tools / "flower-superlink"), "--host", "127.0.0.1", "--port", address.split(":")[1],
         *tls, "--enable-supernode-auth", "--disable-runtime-dependency-installation"],
        env={
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        with Control(address, federation.ca) as control:
            while not control.healthy():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        yield Place(federation, address)
    finally:
        process.terminate()
        process.wait(20)


def test_a_killed_nodes_key_is_free_at_once(place: Place) -> None:
    assert place.activate() == 200
    assert place.activate() != 200  # its predecessor counts as online for a minute
    assert deactivate(place.address, place.root, place.key, place.node_id)
    assert place.status() == "offline"
    assert place.activate() == 200


def test_the_id_that_was_remembered_is_used(place: Place) -> None:
    place.activate()
    kept = place.key.with_name("flower.node")
    kept.unlink(missing_ok=True)
    assert not deactivate(place.address, place.root, place.key)
    for _ in range(2):
        remember(place.key, place.node_id)
    assert kept.read_text("ascii") == f"{place.node_id}\n"
    assert deactivate(place.address, place.root, place.key)
    assert place.status() == "offline"


def test_another_nodes_key_frees_nobody(place: Place) -> None:
    place.activate()
    stranger = place.federation.device("edge-1") / "flower"
    assert not deactivate(place.address, place.root, stranger, place.node_id)
    assert place.status() == "online"


def test_a_superlink_of_another_ca_is_not_spoken_to(place: Place, tmp_path: Path) -> None:
    other = made(tmp_path / "other", 1)
    assert not deactivate(place.address, other.ca, place.key, place.node_id)


def test_nobody_there_is_false_within_the_timeout(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert not deactivate(address, place.root, place.key, 1, timeout=0.5)
        assert time.monotonic() - began < 30
    assert not deactivate(address, place.root, place.key, 1)


def test_files_that_cannot_be_read_are_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a node key in OpenSSH format"):
        deactivate(place.address, place.root, tmp_path / "none", 1)
    with pytest.raises(SettingsError, match="a CA's PEM file"):
        deactivate(place.address, tmp_path / "none", place.key, 1)


def test_a_superlink_says_whether_it_knows_a_node(place: Place) -> None:
    remember(place.key, place.node_id)
    before = place.status()
    assert is_registered(place.address, place.root, place.key) is True
    assert place.status() == before  # the question changes nothing
    stranger = place.federation.device("edge-1") / "flower"
    assert is_registered(place.address, place.root, stranger) is None  # it has no id here
    remember(stranger, place.node_id)
    assert is_registered(place.address, place.root, stranger) is False
    remember(place.key, place.node_id + 1)
    assert is_registered(place.address, place.root, place.key) is False
    remember(place.key, place.node_id)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert is_registered(address, place.root, place.key, timeout=0.5) is None
