"""Certificates of a federation: the profiles, and issuing them.

One key, one purpose; every CA key and TLS key is P-256, message-signing keys are Ed25519.
X.509 v3, ECDSA-SHA256, random serials, key identifiers, notBefore five minutes in the past:

| certificate | basic constraints | key usage | EKU | SAN | life |
|---|---|---|---|---|---|
| root that signs members itself | CA, pathlen 0 | keyCertSign | none | none | <= 10 years |
| root above an issuing CA | CA, pathlen 1 | keyCertSign | none | none | <= 10 years |
| issuing CA | CA, pathlen 0 | keyCertSign | none | none | <= 1 year |
| gateway leaf | not CA | digitalSignature | serverAuth | its DNS and IP names | <= 90 days |
| node TLS leaf | not CA | digitalSignature | clientAuth | one URI | <= 7 days |
| node signing leaf | not CA | digitalSignature | `SIGNING_OID` | the same URI | <= 7 days |

Basic constraints and key usage are critical, EKU and SAN are not. The URI is
`umbel://<federation>/node/<id>`. A leaf never outlives the CA that signed it. No leaf is
issued without an EKU: gRPC would take it for either side of a connection.

Verifying is in verification.py. Time is an argument; keys come from the cryptography
library, hence from the operating system.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# 2.25.<UUID> needs no registration (ITU-T X.667): the purpose "signs Umbel's messages".
SIGNING_OID = x509.ObjectIdentifier("2.25.55036742708612262910605679319503971685")
ID_BYTES = 16
NODE_DAYS = 7
"""Longest life of a node's two leaves."""
BACKDATED = timedelta(minutes=5)  # tolerates a device whose clock is a little slow
FEDERATION = re.compile(r"[a-z0-9-]{1,63}")

_NODE_URI = re.compile(r"umbel://([a-z0-9-]{1,63})/node/([0-9a-f]{32})")
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DNS_NAME = re.compile(rf"(?!.{{254}}){_LABEL}(?:\.{_LABEL})*", re.IGNORECASE | re.ASCII)
_NAME_LIMIT = 64  # of X.520's O= and CN=


def fingerprint(der: bytes) -> bytes:
    """Return the 32-byte SHA-256 of a certificate's DER."""
    return sha256(der).digest()


def node_uri(federation: str, node_id: bytes) -> str:
    """Return the URI that both leaves of a node carry.

    Raises:
        SettingsError: The federation's name or the length of the id is not allowed.
    """
    if FEDERATION.fullmatch(federation) is None:
        raise SettingsError("federation", "1 to 63 of a-z, 0-9 and -", federation)
    if len(node_id) != ID_BYTES:
        raise SettingsError("node id", f"{ID_BYTES} bytes", len(node_id))
    return f"umbel://{federation}/node/{node_id.hex()}"


def split_uri(uri: str) -> tuple[str, bytes] | None:
    """Return the federation and the id of a node's URI; None if it is none."""
    match = _NODE_URI.fullmatch(uri)
    return None if match is None else (match[1], bytes.fromhex(match[2]))


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA: its certificate and the key that signs members. Whoever holds it can add members."""

    federation: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(
        cls, federation: str, now: datetime, years: int = 10, *, above_issuing: bool = False
    ) -> Authority:
        """Make a root that signs members itself, or with `above_issuing` one that signs a CA."""
        node_uri(federation, bytes(ID_BYTES))
        _within("years", years, 10)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _ca_name(federation, "root", key.public_key())
        builder = _ca(name, name, key, key.public_key(), pathlen=int(above_issuing))
        until = now + timedelta(days=365 * years)
        return cls(federation, _sign(builder, key, now, until), key)

    @property
    def der(self) -> bytes:
        """The CA certificate's DER; its SHA-256 is in ctx0."""
        return self.certificate.public_bytes(Encoding.DER)

    def issue_authority(self, now: datetime, days: int = 365) -> Authority:
        """Make an issuing CA under this root, which must be `above_issuing`."""
        _within("days", days, 365)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _ca_name(self.federation, "issuing", key.public_key())
        builder = _ca(subject, self.certificate.subject, self.key, key.public_key(), pathlen=0)
        return Authority(self.federation, self._sign(builder, now, days), key)

    def issue_signing(
        self,
        public: Ed25519PublicKey,
        node_id: bytes,
        site: str,
        now: datetime,
        days: float = NODE_DAYS,
    ) -> x509.Certificate:
        """Certify a node's message-signing key; `site` becomes `O=`, `days` may be a part of one.

        Raises:
            SettingsError: The id, the site or the life is not allowed.
        """
        _life(days)
        builder = self._node(node_id, site, public, SIGNING_OID)
        return self._sign(builder, now, days)

    def issue_tls(
        self,
        public: ec.EllipticCurvePublicKey,
        node_id: bytes,
        site: str,
        now: datetime,
        days: float = NODE_DAYS,
    ) -> x509.Certificate:
        """Certify a node's TLS key; same id and site as its signing leaf, same errors."""
        _life(days)
        builder = self._node(node_id, site, public, ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._sign(builder, now, days)

    def issue_gateway(
        self, public: ec.EllipticCurvePublicKey, names: Sequence[str], now: datetime, days: int = 90
    ) -> x509.Certificate:
        """Certify a gateway's TLS key for the DNS and IP names that it is dialled by.

        Raises:
            SettingsError: No name, or the life is not allowed.
        """
        _within("days", days, 90)
        if not names:
            raise SettingsError("gateway names", "at least one DNS or IP name", "none")
        san = [_general_name(name) for name in names]
        subject = _name(self.federation, "gateway")
        builder = self._leaf(subject, public, ExtendedKeyUsageOID.SERVER_AUTH, san)
        return self._sign(builder, now, days)

    def _node(
        self,
        node_id: bytes,
        site: str,
        public: Ed25519PublicKey | ec.EllipticCurvePublicKey,
        purpose: x509.ObjectIdentifier,
    ) -> x509.CertificateBuilder:
        uri = x509.UniformResourceIdentifier(node_uri(self.federation, node_id))
        return self._leaf(_name(site, node_id.hex()), public, purpose, [uri])

    def _leaf(
        self,
        subject: x509.Name,
        public: Ed25519PublicKey | ec.EllipticCurvePublicKey,
        purpose: x509.ObjectIdentifier,
        san: Sequence[x509.GeneralName],
    ) -> x509.CertificateBuilder:
        return (
            _base(subject, self.certificate.subject, self.key, public)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(san), critical=False)
        )

    def _sign(
        self, builder: x509.CertificateBuilder, now: datetime, days: float
    ) -> x509.Certificate:
        until = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        return _sign(builder, self.key, now, until)


def _ca(
    subject: x509.Name,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    public: ec.EllipticCurvePublicKey,
    pathlen: int,
) -> x509.CertificateBuilder:
    return (
        _base(subject, issuer, issuer_key, public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=pathlen), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )


def _base(
    subject: x509.Name,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    public: Ed25519PublicKey | ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer_id, critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
) -> x509.Certificate:
    dated = builder.not_valid_before(now - BACKDATED).not_valid_after(until)
    return dated.sign(key, hashes.SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(organisation: str, common: str) -> x509.Name:
    if not 1 <= len(organisation) <= _NAME_LIMIT or not organisation.isprintable():
        raise SettingsError("site", f"1 to {_NAME_LIMIT} printable characters", organisation)
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _ca_name(federation: str, role: str, public: ec.EllipticCurvePublicKey) -> x509.Name:
    """Return a name that differs for every key, so that a chain can be told by its names."""
    key_id = x509.SubjectKeyIdentifier.from_public_key(public).digest
    return _name(federation, f"{role} {key_id[:4].hex()}")


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if DNS_NAME.fullmatch(name) is None:
            raise SettingsError("gateway name", "a DNS or IP name", name) from None
        return x509.DNSName(name)


def _life(days: float) -> None:
    """Check the life of a node's leaf; whole seconds of it are what X.509 can say."""
    if not 0 < days <= NODE_DAYS:
        raise SettingsError("days", f"more than 0, at most {NODE_DAYS}", days)


def _within(what: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise SettingsError(what, f"1 to {limit}", value)
