"""Verifying a node's certificates against the federation's pinned root.

`member` judges the signing leaf that a message carries, `peer` the TLS leaf at the other end
of a connection: gRPC lets a leaf without any EKU pass, and never looks again.

Always by `cryptography.x509.verification`, with an explicit time and a policy of our own
(the profile in certificates.py): chain to the pinned root, dates, CA flags and path lengths,
then exactly one EKU (`SIGNING_OID` or clientAuth), exactly one URI, not a CA. Afterwards the URI's
federation is compared with the device's own, its id with the id that a message claims, and
the key's type with the profile. `verify_directly_issued_by` alone checks neither dates nor
the CA flag: a node's certificate could issue members.

A certificate is verified once and cached by its fingerprint until it, or a CA above it,
expires, or its id is revoked.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from .certificates import SIGNING_OID, fingerprint, split_uri
from .errors import BadCertificate, Revoked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    InternalError,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for bytes that are no certificate, or no key: loading one looks at
little of it, and name, dates, key and extensions are read when they are asked for."""
MAX_DER = 4096  # a signing leaf is about 600 bytes
_CACHE_LIMIT = 65536


@dataclass(frozen=True, slots=True)
class Member:
    """A verified member: its 16-byte id, its site (`O=`) and its message-signing key.

    The id is the member. A fingerprint names one encoding of one certificate: a renewal has
    another, and so has the same certificate with its signature written differently.
    """

    id: bytes
    site: str
    public: Ed25519PublicKey
    fingerprint: bytes
    not_after: datetime


class Peer(NamedTuple):
    """Who is at the other end of a TLS connection: the id and the leaf that says so."""

    id: bytes
    fingerprint: bytes
    not_after: datetime


class _Cached(NamedTuple):
    member: Member
    since: datetime
    until: datetime


class Verifier:
    """What a device or a gateway asks whether a certificate makes its bearer a member."""

    def __init__(
        self, root: x509.Certificate, federation: str, issuing: Sequence[x509.Certificate] = ()
    ) -> None:
        """Pin the root; `issuing` are the CAs between it and the members, if it has any."""
        self._root, self._store = root, Store([root])
        self._issuing = list(issuing)
        self._federation = federation
        self._cache: dict[bytes, _Cached] = {}
        self._peers: dict[bytes, tuple[Peer, datetime, datetime]] = {}
        self.revoked: frozenset[bytes] = frozenset()
        """Ids that are refused."""

    def revoke(self, ids: Iterable[bytes]) -> None:
        """Refuse these ids from now on; nothing takes a revocation back."""
        self.revoked = self.revoked.union(ids)

    def issued_by(self, issuing: Iterable[x509.Certificate]) -> None:
        """Take these as the CAs between the root and the members, as far as the root vouches."""
        self._issuing = list(issuing)

    def issuers(self, now: datetime) -> list[ec.EllipticCurvePublicKey]:
        """Return the keys that sign members and their list: of CAs that hold at this time.

        A root that may have a CA below it signs no members, hence no list of them.
        """
        with _readable("root"):
            limits = self._root.extensions.get_extension_for_class(x509.BasicConstraints).value
            if limits.path_length == 0:
                return [_p256(self._root, "root")]
        found = []
        for authority in self._issuing:  # the path's end does not count for the root's length
            with suppress(BadCertificate), _readable("issuing CA"):
                self._chain(authority, "issuing CA", now, _issuing_ca())
                found.append(_p256(authority, "issuing CA"))
        return found

    def member(self, der: bytes, now: datetime, claimed: bytes | None = None) -> Member:
        """Return the member whose signing certificate `der` is.

        Args:
            der: The certificate, DER.
            now: An aware datetime.
            claimed: The id that the message gives; None where no message does.

        Raises:
            BadCertificate: With the cause.
        """
        if len(der) > MAX_DER:
            raise BadCertificate("certificate", "size", f"at most {MAX_DER} bytes", len(der))
        key = fingerprint(der)
        peer = f"certificate {key[:4].hex()}"
        known = self._cache.get(key)
        if known is None or not known.since <= now <= known.until:
            known = self._verify(der, key, peer, now)
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[key] = known
        member = known.member
        if member.id in self.revoked:
            raise Revoked(peer, f"node {member.id.hex()} is revoked")
        if claimed is not None and claimed != member.id:
            raise BadCertificate(peer, "id of the message", member.id.hex(), claimed.hex())
        return member

    def peer(self, certificate: bytes, now: datetime) -> Peer:
        """Return the node whose TLS client certificate this is.

        Args:
            certificate: DER, or the PEM that gRPC's auth context gives.
            now: An aware datetime.

        Raises:
            BadCertificate: With the cause.
        """
        if len(certificate) > 2 * MAX_DER:
            raise BadCertificate("TLS certificate", "size", f"at most {MAX_DER} bytes", "more")
        known = self._peers.get(certificate)
        if known is None or not known[1] <= now <= known[2]:
            known = self._verify_peer(certificate, now)
            if len(self._peers) >= _CACHE_LIMIT:
                self._peers.clear()
            self._peers[certificate] = known
        if known[0].id in self.revoked:
            raise Revoked("TLS certificate", f"node {known[0].id.hex()} is revoked")
        return known[0]

    def _verify_peer(self, certificate: bytes, now: datetime) -> tuple[Peer, datetime, datetime]:
        leaf = _load(certificate, "TLS certificate")
        key = fingerprint(leaf.public_bytes(Encoding.DER))
        peer = f"TLS certificate {key[:4].hex()}"
        with _readable(peer):
            chain = self._chain(leaf, peer, now, _tls_leaf())
            _p256(leaf, peer)
            found = Peer(self._node_id(leaf, peer), key, leaf.not_valid_after_utc)
            return found, *_life(chain)

    def _verify(self, der: bytes, key: bytes, peer: str, now: datetime) -> _Cached:
        leaf = _load(der, peer)
        with _readable(peer):
            chain = self._chain(leaf, peer, now, _signing_leaf())
            node_id, site = self._node_id(leaf, peer), _site(leaf, peer)
            member = Member(node_id, site, _key(leaf, peer), key, leaf.not_valid_after_utc)
            return _Cached(member, *_life(chain))

    def _chain(
        self, leaf: x509.Certificate, peer: str, now: datetime, policy: ExtensionPolicy
    ) -> list[x509.Certificate]:
        if now > leaf.not_valid_after_utc:
            raise BadCertificate(peer, f"expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
        if now < leaf.not_valid_before_utc:
            begins = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise BadCertificate(peer, f"is not valid before {begins}; check this machine's clock")
        verifier = (
            PolicyBuilder()
            .store(self._store)
            .time(now)
            .max_chain_depth(1 if self._issuing else 0)
            .extension_policies(ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=policy)
            .build_client_verifier()
        )
        try:
            return verifier.verify(leaf, self._issuing).chain
        except VerificationError as error:
            raise BadCertificate(peer, _cause(error)) from error

    def _node_id(self, leaf: x509.Certificate, peer: str) -> bytes:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uri = names.get_values_for_type(x509.UniformResourceIdentifier)[0]
        parts = split_uri(uri)
        if parts is None:
            raise BadCertificate(peer, "URI", "umbel://<federation>/node/<id>", uri)
        if parts[0] != self._federation:
            raise BadCertificate(peer, "federation", self._federation, parts[0])
        return parts[1]


def _load(certificate: bytes, peer: str) -> x509.Certificate:
    pem = certificate.startswith(b"-----BEGIN")
    load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
    try:
        return load(certificate)
    except UNREADABLE as error:
        raise BadCertificate(peer, "is no X.509 certificate") from error


@contextmanager
def _readable(peer: str) -> Iterator[None]:
    """Name the bearer of a certificate of which some part cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise BadCertificate(peer, f"cannot be read: {error}") from error


def _life(chain: Sequence[x509.Certificate]) -> tuple[datetime, datetime]:
    """Return from when to when every certificate of a chain is valid."""
    since = max(certificate.not_valid_before_utc for certificate in chain)
    return since, min(certificate.not_valid_after_utc for certificate in chain)


def _cause(error: VerificationError) -> str:
    """Return what the library found, without the path by which it says so."""
    cause = str(error).split(" (encountered processing")[0]
    for prefix in (
        "validation failed: ",
        "candidates exhausted: ",
        "Python extension validator failed: ",
        "ValueError: ",
    ):
        cause = cause.removeprefix(prefix)
    return "no path to the pinned root" if "no interior errors" in cause else cause


def _issuing_ca() -> ExtensionPolicy:
    """Return the policy of a CA that issues members, at the end of a path of its own."""
    either = Criticality.AGNOSTIC
    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, either, _a_ca)
        .require_present(x509.KeyUsage, either, _signs_certificates)
    )


def _signing_leaf() -> ExtensionPolicy:
    """Return the policy of a node signing leaf."""
    return _leaf(_signs_messages)


def _tls_leaf() -> ExtensionPolicy:
    """Return the policy of a node TLS leaf."""
    return _leaf(_is_a_client)


def _leaf(
    purpose: Callable[[Policy, x509.Certificate, x509.ExtendedKeyUsage], None],
) -> ExtensionPolicy:
    """Return the policy of a node's leaf; without `_not_a_ca` a CA would pass as one."""
    either = Criticality.AGNOSTIC
    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.ExtendedKeyUsage, either, purpose)
        .require_present(x509.SubjectAlternativeName, either, _one_uri)
        .require_present(x509.BasicConstraints, either, _not_a_ca)
        .require_present(x509.KeyUsage, either, _signs_only)
    )


def _signs_messages(_: Policy, __: x509.Certificate, usage: x509.ExtendedKeyUsage) -> None:
    if list(usage) != [SIGNING_OID]:
        got = ", ".join(oid.dotted_string for oid in usage)
        raise ValueError(f"wrong purpose, expected Umbel's signing OID only, got {got}")


def _is_a_client(_: Policy, __: x509.Certificate, usage: x509.ExtendedKeyUsage) -> None:
    if list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        got = ", ".join(oid.dotted_string for oid in usage)
        raise ValueError(f"wrong purpose, expected clientAuth only, got {got}")


def _one_uri(_: Policy, __: x509.Certificate, names: x509.SubjectAlternativeName) -> None:
    if [type(name) for name in names] != [x509.UniformResourceIdentifier]:
        raise ValueError(f"expected one URI as its only name, got {len(list(names))} names")


def _not_a_ca(_: Policy, __: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if constraints.ca:
        raise ValueError("a CA certificate is no member's")


def _a_ca(_: Policy, __: x509.Certificate, constraints: x509.BasicConstraints) -> None:
    if not constraints.ca:
        raise ValueError("expected a CA")


def _signs_certificates(_: Policy, __: x509.Certificate, usage: x509.KeyUsage) -> None:
    if not usage.key_cert_sign:
        raise ValueError("expected the key usage keyCertSign")


def _signs_only(_: Policy, __: x509.Certificate, usage: x509.KeyUsage) -> None:
    if not usage.digital_signature or usage.key_cert_sign:
        raise ValueError("expected the key usage digitalSignature")


def _site(leaf: x509.Certificate, peer: str) -> str:
    sites = leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(sites) != 1 or not isinstance(sites[0].value, str):
        raise BadCertificate(peer, "subject", "one O=", len(sites))
    return sites[0].value


def _public(leaf: x509.Certificate, peer: str) -> CertificatePublicKeyTypes:
    try:
        return leaf.public_key()
    except UNREADABLE as error:
        raise BadCertificate(peer, "key cannot be read", "a known kind", "another") from error


def _p256(certificate: x509.Certificate, peer: str) -> ec.EllipticCurvePublicKey:
    public = _public(certificate, peer)
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return public
    raise BadCertificate(peer, "key", "P-256", "another kind")


def _key(leaf: x509.Certificate, peer: str) -> Ed25519PublicKey:
    public = _public(leaf, peer)
    if not isinstance(public, Ed25519PublicKey):
        raise BadCertificate(peer, "signing key", "Ed25519", type(public).__name__)
    return public
