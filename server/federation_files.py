"""The directory of a federation: which files there are, and how keys, leaves and files are made.

    FOLDER/                              0700, made by `umbel server init`
        ca.pem                           the root, public
        root/ca.key                      its key; with an offline CA it lies elsewhere
        issuing.pem issuing.key          issuing CAs in force, newest first; key of the one that
                                         signs now
        gateway.* front.* superlink.*    TLS leaves (PEM: leaf, issuing CA) and their keys
        server.toml                      what the operator edits                (server_toml.py)
        issuer.sqlite issuer.lock issuer.sock                                   (issuer.py)
        nodes.json members.list          derived, written by the issuer         (registry.py)

A development federation (simulation/dev_federation.py) has no issuing CA: its root signs members,
and its key is `ca.key`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from .server_toml import FILE as SETTINGS
from ..host.places import umbel_home
from ..host.whole_file import write_whole
from ..protocol.certificates import FEDERATION, Authority
from ..protocol.errors import SettingsError, StateError
from ..protocol.verification import UNREADABLE
from ..protocol.wire import MAX_ISSUING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

ROOT, ROOT_KEY = "ca.pem", "root/ca.key"
ISSUING, ISSUING_KEY = "issuing.pem", "issuing.key"
MEMBERS, NODES = "members.list", "nodes.json"
SERVERS = ("gateway", "front", "superlink")
SERVER_MARGIN = timedelta(days=30)
"""A server's leaf, of 90 days, is renewed when less than this is left."""


def place(home: Path, name: str) -> Path:
    """Return the directory of a federation of this machine.

    Raises:
        SettingsError: The name is none.
    """
    if FEDERATION.fullmatch(name) is None:
        raise SettingsError("--name", "1 to 63 of a-z, 0-9 and -", name)
    return home / "federations" / name


def find(given: Path | None) -> Path:
    """Return the directory that a command means: the given one, or the only one there is.

    Raises:
        SettingsError: None was made on this machine, or several and none is named.
    """
    if given is not None:
        if not (given / SETTINGS).is_file():
            move = "`umbel server init` makes one"
            raise SettingsError("--federation", f"a directory with {SETTINGS}", str(given), move)
        return given
    known = sorted((umbel_home(writes=False) / "federations").glob(f"*/{SETTINGS}"))
    if len(known) != 1:
        got = ", ".join(str(file.parent) for file in known) or "none on this machine"
        move = "say which" if known else "`umbel server init` makes one"
        raise SettingsError("--federation", "one federation's directory", got, move)
    return known[0].parent


def write_changed(file: Path, content: bytes, mode: int) -> bool:
    """Write a file unless it holds this already; tell whether it was written."""
    try:
        if file.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    write_whole(file, content, mode)
    return True


def key_pem(key: Any) -> bytes:
    """Return a private key as PEM, without passphrase: its file is 0600."""
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text


def kept_key(file: Path, make: Callable[[], Any], *, lasting: bool = True) -> Any:
    """Return the private key of a file, made where it is absent."""
    if file.exists():
        return load_pem_private_key(file.read_bytes(), None)
    made = make()
    write_whole(file, key_pem(made), 0o600, lasting=lasting)
    return made


def certificate(file: Path) -> x509.Certificate | None:
    """Return the first certificate of a file, None where there is no file."""
    return x509.load_pem_x509_certificate(file.read_bytes()) if file.exists() else None


def certificate_pem(*chain: x509.Certificate) -> bytes:
    """Return certificates as PEM, one after another."""
    return b"".join(item.public_bytes(Encoding.PEM) for item in chain)


def issued_by(leaf: x509.Certificate, authority: Authority) -> bool:
    """Tell whether this CA's key signed a leaf of ours; a CA of an earlier time may have."""
    try:
        leaf.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def issuing(folder: Path) -> list[x509.Certificate]:
    """Return the issuing CAs, newest first; none where the root signs members itself.

    Raises:
        StateError: The file cannot be read.
    """
    file = folder / ISSUING
    try:
        if not file.exists():
            return []
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, *UNREADABLE) as error:
        move = "restore it from a backup, or `umbel server roll-ca`"
        raise StateError(str(file), "certificates of issuing CAs", error, move) from error
    return found[:MAX_ISSUING]


def authority(folder: Path) -> Authority:
    """Return the CA that signs members now: the issuing CA whose key lies in the folder.

    Raises:
        StateError: Key or certificate is missing, damaged, or of another.
    """
    file = folder / ISSUING_KEY
    move = "restore it from a backup, or `umbel server roll-ca`"
    try:
        key = load_pem_private_key(file.read_bytes(), None)
        public = key.public_key()
        known = [item for item in issuing(folder) if item.public_key() == public]
        if not known or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise StateError(str(file), f"the key of a certificate in {ISSUING}", "another", move)
        return Authority(organisation(known[0]), known[0], key)
    except (OSError, *UNREADABLE) as error:
        raise StateError(str(file), "the issuing CA's key", error, move) from error


def organisation(ca: x509.Certificate | None) -> str:
    """Return the federation that a CA certificate names, "" where it names none or is not there."""
    if ca is None:
        return ""
    found = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found[0].value) if found else ""


def server_leaf(
    signer: Authority, folder: Path, server: str, names: Sequence[str], until: datetime,
    now: datetime,
) -> bool:  # fmt: skip
    """Make a server's TLS leaf, or renew one that ends before `until` or bears other names.

    Args:
        signer: The CA; its certificate follows the leaf in the file unless it is the root.
        folder: Of the federation.
        server: `gateway`, `front` or `superlink`.
        names: DNS and IP names that it is dialled by.
        until: An aware datetime.
        now: An aware datetime.

    Returns:
        Whether there is a new one.
    """
    key = kept_key(folder / f"{server}.key", lambda: ec.generate_private_key(ec.SECP256R1()))
    file = folder / f"{server}.pem"
    found = certificate(file)
    if (
        found is not None
        and found.not_valid_after_utc > until
        and issued_by(found, signer)
        and found.public_key() == key.public_key()
        and set(leaf_names(found)) == set(names)
    ):
        return False
    made = signer.issue_gateway(key.public_key(), names, now)
    above = [signer.certificate] if signer.certificate.issuer != signer.certificate.subject else []
    write_whole(file, certificate_pem(made, *above), 0o644)
    return True


def leaf_names(leaf: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses that a server's certificate bears, in its order."""
    found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found if isinstance(name, x509.DNSName | x509.IPAddress)]
