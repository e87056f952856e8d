"""A device's own directory: who it is, whom it trusts, and where its journal lies.

    device.toml    federation, id, gateway, superlink; optional: ddp, memory
    policy.toml    what this device agrees to (policy.py)
    signing.pem signing.key    Ed25519, signs messages      tls.pem tls.key    P-256, mTLS
    flower flower.pub          Flower's node key            journal            (journal.py)
    issuing.pem                the CAs that issue members, where the root does not (optional)
    members.list               the newest member list that was seen            (member_file.py)

The pinned root is the file that `trust.ca` of the policy names. `$UMBEL_DEVICE` says which
directory it is: nothing in a message, a bundle or a run's configuration can. Every file is the
user's or root's and nobody else may write it; a key, nobody else may read. What is missing, expired
or of another node is a `SettingsError` or `BadCertificate` with the cause, before any connection.

Keys are loaded when a session opens, by the process that holds them and not by the child that runs
user code; `no_core_dumps` keeps them out of a core file.
"""

from __future__ import annotations

import os
import re
import resource
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from . import clock, member_file
from .limits import limits_of
from .policy import Policy
from .policy_file import Key, integer, line_of, read_owned, text
from .session import Device
from ..host.places import umbel_home
from ..protocol.certificates import FEDERATION, split_uri
from ..protocol.documents import read_toml
from ..protocol.entropy import os_entropy
from ..protocol.errors import BadCertificate, SettingsError
from ..protocol.membership import Membership
from ..protocol.standpoint import Identity
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from .journal import Journal
    from .update import Update

ENVIRONMENT = "UMBEL_DEVICE"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):([0-9]{1,5})")
_KEYS: dict[str, Key] = {
    "federation": text(FEDERATION.pattern, "1 to 63 of a-z, 0-9 and -"),
    "id": text("[0-9a-f]{32}", "32 lower-case hex digits"),
    "gateway": text(_ADDRESS.pattern, "'host:port'"),
    "superlink": text(_ADDRESS.pattern, "'host:port'"),
    "ddp": integer(0),
    "memory": integer(1 << 28),
}
_REQUIRED = ("federation", "id", "gateway")


def _wall() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """What a channel to the gateway is made of: PEM, and never the system's roots."""

    root: bytes
    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFiles:
    """One device's directory, read; keys are loaded by `tls` and `identity` only."""

    directory: Path
    federation: str
    id: bytes
    gateway: str
    """`host:port` that this device dials; the host is a name in `trust.gateways`."""
    superlink: str = ""
    ddp: int = 0
    """Processes that train together with the torch task; 0 is the ordinary child."""
    memory: int | None = None
    """Bytes of address space for a task's process, if limited."""
    policy: Policy
    clock: Callable[[], datetime] = field(default=_wall, repr=False, compare=False)
    """This device's own clock, which may be wrong (clock.py)."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read device.toml and policy.toml.

        Raises:
            SettingsError: A file, key or value that may not be; names file, line and key.
        """
        file = directory / "device.toml"
        values = _table(read_owned(file), str(file))
        for key in _REQUIRED:
            if key not in values:
                raise SettingsError(f"{file}: {key}", _KEYS[key].expected, "nothing", "enrol anew")
        values["id"] = bytes.fromhex(values["id"])
        own = directory / "policy.toml"
        policy = Policy.load(own) if own.exists() else Policy()
        files = cls(directory=directory, policy=policy, **values)
        files._check_trust(str(own))
        return files

    @property
    def gateway_name(self) -> str:
        """The DNS or IP name that this device dials, which the gateway's certificate must bear."""
        return host(self.gateway)

    @property
    def journal(self) -> Path:
        """Where the journal lies."""
        return self.directory / "journal"

    @property
    def flower_key(self) -> Path:
        """Flower's node key, OpenSSH format."""
        return self.directory / "flower"

    def root(self) -> x509.Certificate:
        """Return the pinned root of this device's federation."""
        return _certificate(Path(str(self.policy.ca)))

    def ca(self) -> bytes:
        """Return the SHA-256 of the pinned root's DER, which is in ctx0."""
        return sha256(self.root().public_bytes(Encoding.DER)).digest()

    def tls(self, now: datetime) -> TlsFiles:
        """Return what a channel to the gateway needs, after looking at dates, id and key.

        Raises:
            SettingsError: A file is missing, open to others, or the key is another one.
            BadCertificate: Expired, or of another node or federation.
        """
        file = self.directory / "tls.pem"
        chain = read_owned(file)
        leaf = _certificate(file)
        self._check_leaf(leaf, file, now)
        secret = _secret(self.directory / "tls.key")
        _check_pair(leaf, secret, self.directory / "tls.key")
        root = self.root().public_bytes(Encoding.PEM)
        return TlsFiles(root=root, chain=chain.encode(), key=secret.encode())

    def identity(self, now: datetime) -> Identity:
        """Return the signing identity, verified against the pinned root like anybody's.

        Raises:
            SettingsError: A file is missing, open to others, or the key is another one.
            BadCertificate: The certificate makes this device no member.
        """
        leaf = _certificate(self.directory / "signing.pem")
        der = leaf.public_bytes(Encoding.DER)
        self.membership(now).verifier.member(der, now, claimed=self.id)
        file = self.directory / "signing.key"
        key = _check_pair(leaf, _secret(file), file)
        if not isinstance(key, Ed25519PrivateKey):
            raise SettingsError(str(file), "an Ed25519 key", type(key).__name__)
        return Identity(id=self.id, certificate=der, signing=key)

    def issuing(self) -> list[x509.Certificate]:
        """Return the issuing CAs that enrolment and renewal brought; the root has to vouch."""
        file = self.directory / "issuing.pem"
        if not file.exists():
            return []
        try:
            return x509.load_pem_x509_certificates(read_owned(file).encode())
        except UNREADABLE as error:
            raise SettingsError(str(file), "PEM certificates", "something else") from error

    def membership(self, now: datetime) -> Membership:
        """Return what verifies members by the pinned root, with the newest list that was kept.

        Raises:
            SettingsError: A file cannot be used.
            StateError: The list that was kept is none.
        """
        keep = partial(member_file.keep, self.directory)
        found = Membership(self.root(), self.federation, self.issuing(), keep=keep)
        if (kept := member_file.read(self.directory)) is not None:
            found.recall(kept, now)
        return found

    def ends(self) -> datetime:
        """Return when the first of this device's leaves ends."""
        leaves = (_certificate(self.directory / name) for name in ("tls.pem", "signing.pem"))
        return min(leaf.not_valid_after_utc for leaf in leaves)

    def settle_clock(self, log: Callable[[str], None]) -> None:
        """Wait a little for a clock that shows itself to be behind by this device's own leaves."""
        leaves = [
            (name, _certificate(self.directory / name)) for name in ("tls.pem", "signing.pem")
        ]

        def fault() -> str:
            now = self.clock()
            return next(filter(None, (clock.misfit(name, leaf, now) for name, leaf in leaves)), "")

        def behind() -> bool:
            return self.clock() < max(leaf.not_valid_before_utc for _, leaf in leaves)

        clock.settle(fault, behind, log)

    def device(
        self, update: Update, journal: Journal, app: bytes, log: Callable[[str], None]
    ) -> Device:
        """Return what a session stands on; `app` is the SHA-256 of the bundle that runs."""
        return Device(
            identity=self.identity(self.clock()),
            policy=self.policy,
            membership=self.membership(self.clock()),
            ca=self.ca(),
            app=app,
            journal=journal,
            update=update,
            clock=self.clock,
            entropy=os_entropy,
            log=log,
            limits=limits_of(self),
        )

    def _check_trust(self, where: str) -> None:
        """Refuse a directory without a trust anchor, or with one of another federation."""
        policy = self.policy
        for key in ("federation", "ca", "gateways"):
            if getattr(policy, key) is None:
                raise SettingsError(f"{where}: trust.{key}", "what enrolment wrote", "nothing")
        if policy.federation != self.federation:
            raise SettingsError(f"{where}: trust.federation", self.federation, policy.federation)
        if self.gateway_name not in (policy.gateways or ()):
            place = f"{self.directory / 'device.toml'}: gateway"
            raise SettingsError(place, "a name in trust.gateways", self.gateway_name)

    def _check_leaf(self, leaf: x509.Certificate, file: Path, now: datetime) -> None:
        wrong = clock.misfit("it", leaf, now)
        if wrong:
            raise BadCertificate(str(file), wrong)
        try:
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except UNREADABLE:
            uris = []
        expected = (self.federation, self.id)
        if [split_uri(uri) for uri in uris] != [expected]:
            raise BadCertificate(str(file), "node", f"{self.id.hex()} of {self.federation}", uris)


def device_files(environment: Mapping[str, str] = os.environ) -> DeviceFiles | None:
    """Return the directory that `$UMBEL_DEVICE` names; None where there is no device."""
    named = environment.get(ENVIRONMENT)
    return DeviceFiles.read(Path(named)) if named else None


def own_policy(environment: Mapping[str, str] = os.environ) -> Policy:
    """Return the device's policy; without a device the user's own, `policy.toml` of Umbel's home.

    No file means the built-in policy, which is the strict one: secure aggregation is required.
    """
    files = device_files(environment)
    if files is not None:
        return files.policy
    file = umbel_home() / "policy.toml"
    return Policy.load(file) if file.exists() else Policy()


def host(address: str) -> str:
    """Return the name of `host:port`, of `[IPv6]:port`, or of a name alone."""
    match = _ADDRESS.fullmatch(address)
    return (match[1] if match else address).strip("[]")


def no_core_dumps() -> None:
    """Keep this process's memory, and what it starts, out of core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_memory(nbytes: int) -> None:
    """Bound the address space of this process and of what it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))


def _table(content: str, where: str) -> dict[str, Any]:
    """Return the keys of device.toml, each read by its own rule."""
    try:
        found = read_toml(content)
    except ValueError as error:
        raise SettingsError(where, "valid TOML", str(error)) from error
    values: dict[str, Any] = {}
    for name, value in found.items():
        key = _KEYS.get(name)
        try:
            values[name] = key.read(value) if key is not None else None
        except (TypeError, ValueError):
            key = None
        if key is None:
            place = f"{where}:{line_of(content, name)}: {name}"
            raise _wrong(place, name, value)
    return values


def _wrong(place: str, name: str, value: object) -> SettingsError:
    """Return what is to be said about a key of device.toml."""
    if name not in _KEYS:
        return SettingsError(place, f"one of the keys {', '.join(_KEYS)}", name)
    return SettingsError(place, _KEYS[name].expected, value)


def _certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_owned(file).encode())
    except UNREADABLE as error:
        raise SettingsError(str(file), "a PEM certificate", "something else") from error


def _secret(file: Path) -> str:
    """Return a key file's text; nobody but its owner may read it."""
    content = read_owned(file)
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(str(file), "mode 0600", f"mode {mode:04o}", "chmod it; renew the key")
    return content


def _check_pair(leaf: x509.Certificate, pem: str, file: Path) -> PrivateKeyTypes:
    """Return the private key of a certificate."""
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (TypeError, *UNREADABLE) as error:
        raise SettingsError(str(file), "a PEM private key", "something else") from error
    try:
        public = leaf.public_key()
    except UNREADABLE as error:
        move = "the certificate beside it cannot be read; renew both"
        raise SettingsError(str(file), "the key of a certificate", "none", move) from error
    if key.public_key() != public:
        raise SettingsError(str(file), "the key of the certificate beside it", "another key")
    return key
