"""Requests that a SuperNode's key signs: freeing it before a start, asking whether it is known.

A SuperLink refuses a SuperNode that was killed hard for about a minute, until it counts its
predecessor offline. The predecessor would have deactivated itself; anybody with its key can, and
the successor has it. The SuperLink asks for Flower's node id, which `remember` keeps beside the key
from the registration, or from the first message that the node handles.

The one file that knows the private names of flwr 1.42 for this. Where it fails, the start is tried
again for 90 seconds by whoever starts it.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ..protocol.errors import SettingsError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from pathlib import Path

    from flwr.supercore.protobuf.client import ProtobufClientInterceptor

SUFFIX = ".node"


def remember(key: Path, node_id: int) -> None:
    """Keep Flower's node id beside the node's key, as `<key>.node`."""
    kept = key.with_name(key.name + SUFFIX)
    text = f"{node_id}\n"
    if not kept.exists() or kept.read_text(encoding="ascii", errors="replace") != text:
        made = kept.with_name(f"{kept.name}.{os.getpid()}")
        made.write_text(text, encoding="ascii")
        made.replace(kept)


def deactivate(
    superlink: str, root: Path, key: Path, node_id: int | None = None, timeout: float = 5.0
) -> bool:
    """Tell the SuperLink that this node is gone, and return whether it took that.

    Args:
        superlink: `host:port` of the Fleet API.
        root: PEM file of the CA that signed its certificate.
        key: The node's private key, OpenSSH format without a passphrase.
        node_id: Flower's node id; by default the one that `remember` kept.
        timeout: Seconds for connecting and for the answer.

    Raises:
        SettingsError: The key or the CA file cannot be read.
    """
    known = _remembered(key) if node_id is None else node_id
    if known is None:
        return False
    try:
        with _client(superlink, root, key, timeout) as client:
            client.DeactivateNode(DeactivateNodeRequest(node_id=known))
    except (httpx.HTTPError, RuntimeError, ValueError):
        return False
    return True


def is_registered(superlink: str, root: Path, key: Path, timeout: float = 5.0) -> bool | None:
    """Ask for a run that there is not: an answer shows that the SuperLink takes the signature.

    Returns:
        None where the node's id is not known here, or no answer came.

    Raises:
        SettingsError: The key or the CA file cannot be read.
    """
    known = _remembered(key)
    if known is None:
        return None
    try:
        with _client(superlink, root, key, timeout) as client:
            client.GetRun(GetRunRequest(node=FlowerNode(node_id=known), run_id=0))
    except httpx.HTTPStatusError as error:
        return error.response.status_code != httpx.codes.UNAUTHORIZED
    except (httpx.HTTPError, RuntimeError, ValueError):
        return None
    return True


def _client(superlink: str, root: Path, key: Path, timeout: float) -> FleetHttpClient:
    """Return a client of the Fleet API that signs as this node."""
    own = _load(key)
    try:
        trust = ssl.create_default_context(cafile=str(root))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(str(root), "a CA's PEM file", str(error)) from error
    interceptors: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(own, own.public_key()),
    ]
    return FleetHttpClient(
        f"https://{superlink}", interceptors=interceptors, verify=trust, timeout=timeout
    )


def _remembered(key: Path) -> int | None:
    kept = key.with_name(key.name + SUFFIX)
    try:
        return int(kept.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _load(key: Path) -> ec.EllipticCurvePrivateKey:
    try:
        own = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, *UNREADABLE) as error:
        raise SettingsError(str(key), "a node key in OpenSSH format", str(error)) from error
    if not isinstance(own, ec.EllipticCurvePrivateKey):
        raise SettingsError(str(key), "a key on a NIST curve", type(own).__name__)
    return own
