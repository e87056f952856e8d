"""What `umbel client doctor` looks at in a device's directory; nothing here opens a connection.

Each file is looked at by itself, for a doctor is asked when some are missing: a broken device.toml
hides no certificate that has ended. Only the journal is opened for more than reading, to see
whether its lock can be had, and not created where it is absent.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_ssh_private_key,
)

from . import clock
from .device_files import DeviceFiles
from .policy import Policy
from .policy_file import read_owned
from ..host.doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from ..host.doctor_machine import private
from ..host.doctor_tls import sound
from ..protocol.certificates import split_uri
from ..protocol.documents import read_toml
from ..protocol.errors import BadCertificate, SettingsError, StateError
from ..protocol.journal import parse
from ..protocol.verification import UNREADABLE, Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..host.doctor import Finding

SOON = timedelta(days=2)
"""A leaf that ends so soon was not renewed when it should have been: with three days left."""
LEAVES = ("tls", "signing")
SECRETS = ("tls.key", "signing.key", "flower")
_ENROL = "umbel client enrol TOKEN, with a new token of the federation's operator"
_RENEW = "umbel client renew"
_OWN = "let the user of this device own it: chown -R"
_LARGEST = 64 << 20
"""Bytes of a journal that are looked at: the rounds of decades."""

FILES = Table({
    "device.missing": Kind(PROBLEM, "there is no device directory: nothing was enrolled here"),
    "device.bad": Kind(PROBLEM, "device.toml, or what it must agree with, is wrong"),
    "device.ok": Kind(OK, "device.toml and policy.toml are read and agree"),
    "policy.bad": Kind(PROBLEM, "policy.toml cannot be read, or is not strict"),
    "policy.open": Kind(NOTE, "what the policy leaves open"),
    "root.bad": Kind(PROBLEM, "the pinned root is missing, or no CA certificate in force"),
    "leaf.missing": Kind(PROBLEM, "a certificate of this device is missing or no certificate"),
    "leaf.ended": Kind(PROBLEM, "a certificate of this device has ended"),
    "leaf.future": Kind(PROBLEM, "a certificate begins later than now: the clock is behind"),
    "leaf.soon": Kind(WARNING, "a certificate ends within two days: it was not renewed"),
    "leaf.id": Kind(PROBLEM, "a certificate is of another node or federation"),
    "leaf.key": Kind(PROBLEM, "a key is missing, unreadable, or of another certificate"),
    "leaf.chain": Kind(PROBLEM, "a certificate does not chain to the pinned root"),
    "leaf.ok": Kind(OK, "the device's two certificates and their keys, and when they end"),
    "flower.key": Kind(PROBLEM, "Flower's node key is missing or no such key"),
    "journal.held": Kind(NOTE, "a process of this device holds the journal, as it does in a run"),
    "journal.bad": Kind(PROBLEM, "the journal cannot be locked, read or written, or is damaged"),
    "journal.ok": Kind(OK, "the journal can be locked and read"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What could be read of a device, whatever else is broken."""

    directory: Path
    files: DeviceFiles | None
    """Everything, where device.toml and policy.toml are in order."""
    policy: Policy
    """The device's; the built-in one where its file is bad."""
    federation: str
    id: bytes
    gateway: str
    superlink: str
    """`host:port`, empty where not known, as the three before it."""
    root: x509.Certificate | None
    """The pinned one."""
    issuing: tuple[x509.Certificate, ...]
    """The CAs between it and this device, if there are any."""

    @classmethod
    def read(cls, directory: Path) -> Known:
        """Read what there is."""
        files, policy, table = None, Policy(), dict[str, object]()
        with suppress(SettingsError):
            files = DeviceFiles.read(directory)
        with suppress(SettingsError):
            policy = Policy.load(directory / "policy.toml")
        with suppress(OSError, ValueError):
            table = read_toml((directory / "device.toml").read_text("utf-8"))
        said = {key: value for key, value in table.items() if isinstance(value, str)}
        root, node = None, b""
        with suppress(SettingsError):
            root = _certificate(Path(policy.ca) if policy.ca else directory / "ca.pem")
        with suppress(ValueError):
            node = bytes.fromhex(said.get("id", ""))
        return cls(
            directory, files, policy, said.get("federation", ""), node,
            said.get("gateway", ""), said.get("superlink", ""), root,
            _certificates(directory / "issuing.pem"),
        )  # fmt: skip


def directory_of(known: Known) -> Iterator[Finding]:
    """Look at device.toml, policy.toml, modes and owners."""
    folder, wrong = known.directory, ""
    try:
        DeviceFiles.read(folder)
    except SettingsError as error:
        wrong = str(error)
    policy = folder / "policy.toml"
    try:
        left = (Policy.load(policy) if policy.exists() else Policy()).remarks()
        if left:
            yield FILES("policy.open", f"{policy}: {'; '.join(left)}")
        if wrong:
            yield FILES("device.bad", wrong, f"mend it, or {_ENROL}")
        else:
            yield FILES("device.ok", f"{folder}: node {known.id.hex()} of {known.federation}")
    except SettingsError as error:
        yield FILES("policy.bad", str(error), f"mend {policy}; docs/privacy.md lists its keys")
    kept = [folder / name for name in (*SECRETS, "journal")]
    yield from private(folder, *kept)


def leaves(known: Known, now: datetime) -> Iterator[Finding]:
    """Look at the pinned root, and at this device's certificates and keys."""
    where = known.policy.ca or str(known.directory / "ca.pem")
    if known.root is None:
        yield FILES("root.bad", f"{where}: no certificate that can be read", _ENROL)
    elif wrong := clock.misfit("the pinned root", known.root, now):
        yield FILES("root.bad", f"{where}: {wrong}", "set the clock, or enrol anew")
    ends = []
    for name in LEAVES:
        found = list(_leaf(known, name, now))
        yield from found
        if not any(finding.severity == PROBLEM for finding in found):
            leaf = _certificate(known.directory / f"{name}.pem")
            ends.append(f"{name} until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if len(ends) == len(LEAVES):
        yield FILES("leaf.ok", ", ".join(ends))
    yield from _flower_key(known.directory / "flower")


def _leaf(known: Known, name: str, now: datetime) -> Iterator[Finding]:
    """Look at one certificate and its key."""
    file = known.directory / f"{name}.pem"
    try:
        leaf = _certificate(file)
    except SettingsError as error:
        yield FILES("leaf.missing", str(error), f"{_RENEW}, or {_ENROL}")
        return
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if wrong := clock.misfit(file.name, leaf, now):
        yield FILES("leaf.future" if now < begins else "leaf.ended", wrong,
                    "set the clock (NTP)" if now < begins else _RENEW)  # fmt: skip
    elif ends - now < SOON:
        line = f"{file.name} ends in {clock.span(ends - now)}; renewal should have come before"
        yield FILES("leaf.soon", line, _RENEW)
    if known.id and (known.federation, known.id) not in _names(leaf):
        line = f"{file.name} is not of node {known.id.hex()} of {known.federation}, as device.toml"
        yield FILES("leaf.id", line, _ENROL)
    yield from _key(known.directory / f"{name}.key", leaf)
    if known.root is not None:
        yield from _chain(known, name, leaf)


def _chain(known: Known, name: str, leaf: x509.Certificate) -> Iterator[Finding]:
    """Look whether the pinned root stands behind a leaf, at a time at which both are in force."""
    if known.root is None:
        return
    at = max(leaf.not_valid_before_utc, known.root.not_valid_before_utc) + timedelta(seconds=1)
    verifier = Verifier(known.root, known.federation, known.issuing)
    judged = verifier.peer if name == "tls" else verifier.member
    try:
        judged(leaf.public_bytes(Encoding.DER), at)
    except BadCertificate as error:
        if "federation" not in str(error):  # said already
            yield FILES("leaf.chain", f"{name}.pem: {error}", _ENROL)


def _key(file: Path, leaf: x509.Certificate) -> Iterator[Finding]:
    """Look at the private key of a certificate."""
    try:
        key = load_pem_private_key(read_owned(file).encode(), None)
        right = key.public_key() == leaf.public_key()
        line = f"{file}: the key of another certificate"
    except SettingsError as error:
        right, line = False, str(error)
    except (TypeError, *UNREADABLE):
        right, line = False, f"{file}: no PEM private key"
    if not right:
        yield FILES("leaf.key", line, _ENROL)


def _flower_key(file: Path) -> Iterator[Finding]:
    try:
        key = load_ssh_private_key(read_owned(file).encode(), None)
        wrong = "" if isinstance(key, ec.EllipticCurvePrivateKey) else f"{file}: no ECDSA key"
    except SettingsError as error:
        wrong = str(error)
    except (TypeError, *UNREADABLE):
        wrong = f"{file}: no private key in OpenSSH's format without a passphrase"
    if wrong:
        yield FILES("flower.key", wrong, _ENROL)


def journal(folder: Path) -> Iterator[Finding]:
    """Look whether the journal can be had; its content is compared with its own form only."""
    file = folder / "journal"
    try:
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if os.access(folder, os.W_OK | os.X_OK):
            yield FILES("journal.ok", f"{file}: none yet; the first session makes it")
        else:
            yield FILES("journal.bad", f"{folder}: this user cannot write it", _OWN)
        return
    except OSError as error:
        yield FILES("journal.bad", f"{file}: {error.strerror}", _OWN)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)  # a session that begins now shall have it
        with open(handle, "rb", closefd=False) as opened:
            records, good = parse(opened.read(_LARGEST))
        torn = "" if good == os.fstat(handle).st_size else ", a torn last line, which is cut off"
        yield FILES("journal.ok", f"{file}: {len(records)} records{torn}")
    except BlockingIOError:
        yield FILES("journal.held", f"{file}: a process of this device holds it, as in a session")
    except StateError as error:
        yield FILES("journal.bad", f"{file}: {error}", _ENROL)
    except OSError as error:
        yield FILES("journal.bad", f"{file}: {error.strerror}", "move it to a local disk")
    finally:
        os.close(handle)


def _certificate(file: Path) -> x509.Certificate:
    try:
        return sound(x509.load_pem_x509_certificate(read_owned(file).encode()))
    except UNREADABLE as error:
        raise SettingsError(str(file), "a PEM certificate", "something else") from error


def _certificates(file: Path) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a file; none where it is missing or something else."""
    with suppress(SettingsError, *UNREADABLE):
        return tuple(map(sound, x509.load_pem_x509_certificates(read_owned(file).encode())))
    return ()


def _names(leaf: x509.Certificate) -> list[tuple[str, bytes] | None]:
    """Return federation and node of each URI of a leaf."""
    with suppress(*UNREADABLE):
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [split_uri(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)]
    return []
