"""The files of a development federation: its CA, certificates, device directories, registry.

    FOLDER/                             0700
        ca.pem ca.key                   development CA
        gateway.pem gateway.key         TLS leaf of the gateway         localhost, 127.0.0.1, ::1
        front.pem front.key             TLS leaf of the front           the same names
        superlink.pem superlink.key     TLS leaf of Flower's SuperLink  the same names
        nodes.json                      registry: who is enrolled, with keys and fingerprints
        members.list                    signed anew at each start, and daily by a keeper
        nodes/NAME/                     one device's directory (clients/device_files.py)

What exists is kept: the CA, ids and keys always, certificates until they are near their end; a
renewed leaf keeps id and key. Policies are written anew each time, as strict as the run allows:
the built-in values but for the floors of a small cohort, the app bundle pinned by its SHA-256.

The CA's key lies on the server's machine. That is right for trying things and no protection from
whoever runs that machine, which is why a summary says `(development CA)`: docs/privacy.md.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import NameOID

from ..clients.policy import Policy
from ..host.whole_file import write_whole
from ..protocol.certificates import ID_BYTES, Authority, fingerprint, node_uri
from ..protocol.documents import read_toml
from ..protocol.errors import Malformed, StateError
from ..protocol.members import LIFE, MemberList, epoch_of
from ..protocol.verification import UNREADABLE
from ..server import registry
from ..server.federation_files import (
    MEMBERS,
    SERVER_MARGIN,
    SERVERS,
    certificate,
    issued_by,
    kept_key,
    key_pem,
    server_leaf,
)
from ..server.registry import Node
from ..server.server_toml import FILE as SETTINGS
from ..server.server_toml import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

SERVER_NAMES = LOOPBACK
FLOOR = 3
"""Least members and survivors of a cohort here; a device's own defaults are 5 and 4."""
_NODE_MARGIN = timedelta(days=2)  # of 7
DAILY_S = 86_400.0
"""How long a member list is left as it is; it is in force for a week."""
_CA_MARGIN = timedelta(days=365)  # of 10 years


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """A client that is wanted."""

    name: str
    """`edge-0`, `gpu-0`: its directory, and its site."""
    ddp: int = 0
    """Processes that train together by torch; 0 for a device without torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DevFederation:
    """A federation whose files are all there."""

    folder: Path
    name: str
    nodes: tuple[Node, ...]

    @property
    def ca(self) -> Path:
        """The root certificate."""
        return self.folder / "ca.pem"

    def device(self, node: str) -> Path:
        """Return a node's own directory."""
        return self.folder / "nodes" / node


def prepare(folder: Path, name: str, clients: Sequence[Client], now: datetime) -> DevFederation:
    """Make the federation's files, or complete and renew those that are there.

    Args:
        folder: Of the federation.
        name: Of the federation, as it stands in the URI of every node.
        clients: Who is enrolled; directories of others stay and leave the registry.
        now: An aware datetime.

    Raises:
        StateError: A file cannot be read or written, or is not what it should be; the folder is
            that of a federation of `umbel server init`, whose root nobody could replace.
    """
    if (folder / SETTINGS).exists():
        what, got = "a development federation", "one of `umbel server init`"
        raise StateError(str(folder), what, got, "choose another --name")
    try:
        for part in (folder, folder / "nodes", folder / "tickets"):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(folder, name, now)
        for server in SERVERS:
            until = now + SERVER_MARGIN
            server_leaf(authority, folder, server, SERVER_NAMES, until, now)
        nodes = tuple(_node(authority, folder, client, now) for client in clients)
        registry = json.dumps([asdict(node) for node in nodes], indent=1)
        _write(folder / "nodes.json", registry.encode(), 0o600)
        _write(folder / MEMBERS, _listed(authority, folder / MEMBERS, now), 0o644)
    except (OSError, KeyError, TypeError, IndexError, Malformed, *UNREADABLE) as error:
        raise StateError(
            str(folder), "the files of a development federation", error,
            "remove the folder; the next `umbel up` makes another",
        ) from error  # fmt: skip
    return DevFederation(folder=folder, name=name, nodes=nodes)


def renew(folder: Path, now: datetime) -> bool:
    """Sign the list of a federation anew and renew what is near its end, once a day; tell if so.

    Raises:
        StateError: As `prepare`.
    """
    try:
        signed = epoch_of((folder / MEMBERS).read_bytes())
    except (OSError, Malformed):
        signed = 0
    if now.timestamp() - signed < DAILY_S:
        return False
    clients = [Client(name=node.name) for node in registry.read(folder).values()]
    prepare(folder, folder.name, clients, now)
    return True


def write_devices(
    federation: DevFederation,
    clients: Sequence[Client],
    *,
    gateway: str,
    superlink: str,
    app: bytes,
    secure: bool,
    rounds: int,
) -> None:
    """Write `device.toml` and `policy.toml` of every client.

    Args:
        federation: Made by `prepare` for the same clients.
        clients: In the order of its nodes.
        gateway: `host:port` that devices dial.
        superlink: `host:port` at which devices reach Flower's SuperLink: the front's.
        app: SHA-256 of the one bundle that may run.
        secure: Whether a plain run is refused.
        rounds: How many rounds the run needs in a day.
    """
    for client, node in zip(clients, federation.nodes, strict=True):
        folder = federation.device(client.name)
        lines = {
            "federation": federation.name, "id": node.id, "gateway": gateway, "superlink": superlink
        }  # fmt: skip
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        text += f"ddp = {client.ddp}\n" if client.ddp else ""
        _write(folder / "device.toml", text.encode(), 0o600)
        policy = Policy(
            federation=federation.name,
            ca=str((folder / "ca.pem").absolute()),
            gateways=SERVER_NAMES,
            apps=(app,),
            required=secure,
            min_members=FLOOR,
            min_survivors=FLOOR,
            histogram=True,
            rounds_per_day=max(rounds, Policy().rounds_per_day),
        )
        _write(folder / "policy.toml", policy.dumps().encode(), 0o600)


def _authority(folder: Path, name: str, now: datetime) -> Authority:
    """Return the CA, made anew where it is absent, of another name, or near its end."""
    found = certificate(folder / "ca.pem")
    if found is not None and (folder / "ca.key").exists():
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        organisation = found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        ours = key.public_key() == found.public_key() and organisation[0].value == name
        if ours and found.not_valid_after_utc - now > _CA_MARGIN:
            return Authority(name, found, key)  # type: ignore[arg-type]
    made = Authority.create(name, now)
    _write(folder / "ca.key", key_pem(made.key), 0o600)
    _write(folder / "ca.pem", made.certificate.public_bytes(Encoding.PEM), 0o644)
    return made


def _listed(authority: Authority, file: Path, now: datetime) -> bytes:
    """Return a member list that nobody is on; one of a higher epoch than all before it.

    The epoch is the time, so that it grows also where the CA was made anew: devices keep it.
    """
    before = epoch_of(file.read_bytes()) if file.exists() else 0
    epoch = max(int(now.timestamp()), before + 1)
    return MemberList(authority.federation, epoch, now, now + LIFE).sign(authority)


def _node(authority: Authority, folder: Path, client: Client, now: datetime) -> Node:
    """Make or renew what a device holds; return its line in the registry."""
    device = folder / "nodes" / client.name
    device.mkdir(mode=0o700, exist_ok=True)
    node_id = _node_id(device)
    site = client.name
    signing = kept_key(device / "signing.key", Ed25519PrivateKey.generate, lasting=False)
    tls = kept_key(
        device / "tls.key", lambda: ec.generate_private_key(ec.SECP256R1()), lasting=False
    )
    until, uri = now + _NODE_MARGIN, node_uri(authority.federation, node_id)
    signing_leaf = _leaf(
        authority, device / "signing.pem", signing, until,
        lambda: authority.issue_signing(signing.public_key(), node_id, site, now), uri,
    )  # fmt: skip
    tls_leaf = _leaf(
        authority, device / "tls.pem", tls, until,
        lambda: authority.issue_tls(tls.public_key(), node_id, site, now), uri,
    )  # fmt: skip
    _write(device / "ca.pem", authority.certificate.public_bytes(Encoding.PEM), 0o644)
    return Node(
        name=client.name,
        id=node_id.hex(),
        site=site,
        flower_key=_flower_key(device).hex(),
        tls_fingerprint=fingerprint(tls_leaf.public_bytes(Encoding.DER)).hex(),
        signing_fingerprint=fingerprint(signing_leaf.public_bytes(Encoding.DER)).hex(),
    )


def _node_id(device: Path) -> bytes:
    """Return the id that a device had, or a new one, which is written at once."""
    file = device / "device.toml"
    if file.exists():
        found = bytes.fromhex(read_toml(file.read_text(encoding="utf-8"))["id"])
        if len(found) == ID_BYTES:
            return found
    made = secrets.token_bytes(ID_BYTES)
    _write(file, f'id = "{made.hex()}"\n'.encode(), 0o600)
    return made


def _flower_key(device: Path) -> bytes:
    """Return the public key of Flower's node key, made where it is absent.

    ECDSA P-384 in OpenSSH's format without passphrase, as `ssh-keygen -t ecdsa -b 384` makes it.
    """
    file = device / "flower"
    if file.exists():
        key = load_ssh_private_key(file.read_bytes(), None)
    else:
        key = ec.generate_private_key(ec.SECP384R1())
        text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        _write(file, text, 0o600)
    public = key.public_key()
    _write(
        device / "flower.pub", public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        0o644,
    )  # fmt: skip
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _leaf(
    authority: Authority,
    file: Path,
    key: Any,
    until: datetime,
    issue: Callable[[], x509.Certificate],
    uri: str,
) -> x509.Certificate:
    """Return the leaf of a file, or another one if that is not ours or ends before `until`."""
    found = certificate(file)
    if (
        found is not None
        and found.not_valid_after_utc > until
        and found.public_key() == key.public_key()
        and _uris(found) == [uri]
        and issued_by(found, authority)
    ):
        return found
    made = issue()
    _write(file, made.public_bytes(Encoding.PEM), 0o644)
    return made


def _uris(leaf: x509.Certificate) -> list[str]:
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write a file whole; what a power cut takes, the next `umbel up` makes again."""
    write_whole(file, content, mode, lasting=False)
