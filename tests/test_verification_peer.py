"""Who is at the other end of a TLS connection: the clientAuth leaf, judged again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from umbel.protocol.certificates import SIGNING_OID, Authority, node_uri
from umbel.protocol.errors import BadCertificate
from umbel.protocol.verification import MAX_DER, Verifier

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEDERATION, ID = "north-clinics", bytes(range(16))
URI = x509.UniformResourceIdentifier(node_uri(FEDERATION, ID))
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@pytest.fixture(scope="module")
def root() -> Authority:
    return Authority.create(FEDERATION, NOW)


@pytest.fixture
def verifier(root: Authority) -> Verifier:
    return Verifier(root.certificate, FEDERATION)


def p256() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def leaf(
    root: Authority,
    *,
    public: ec.EllipticCurvePublicKey | None = None,
    purposes: tuple[x509.ObjectIdentifier, ...] = (CLIENT,),
    names: tuple[x509.GeneralName, ...] = (URI,),
    ca: bool = False,
) -> bytes:
    """Return a leaf that differs from the profile in what is named."""
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "site")]))
        .issuer_name(root.certificate.subject)
        .public_key(public or p256())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root.key.public_key()),
            critical=False,
        )
    )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return der(builder.sign(root.key, hashes.SHA256()))


def test_a_node_is_its_uri_and_its_certificate_the_sha256_of_its_der(
    root: Authority, verifier: Verifier
) -> None:
    certificate = root.issue_tls(p256(), ID, "clinic", NOW)
    for form in (Encoding.DER, Encoding.PEM):
        peer = verifier.peer(certificate.public_bytes(form), NOW)
        assert peer.id == ID
        assert peer.fingerprint == sha256(der(certificate)).digest()
        assert peer.not_after == NOW + timedelta(days=7)


def test_the_hand_made_leaf_is_good_where_nothing_is_changed(
    root: Authority, verifier: Verifier
) -> None:
    assert verifier.peer(leaf(root), NOW).id == ID


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"purposes": ()}, "required extension"),
        ({"purposes": (SERVER,)}, "expected clientAuth only"),
        ({"purposes": (SIGNING_OID,)}, "expected clientAuth only"),
        ({"purposes": (CLIENT, SERVER)}, "expected clientAuth only"),
        ({"names": ()}, "required extension"),
        ({"names": (URI, URI)}, "one URI"),
        ({"names": (x509.DNSName("localhost"),)}, "one URI"),
        ({"names": (x509.UniformResourceIdentifier("https://evil"),)}, "umbel://"),
        (
            {"names": (x509.UniformResourceIdentifier(node_uri("south", ID)),)},
            "expected north-clinics, got south",
        ),
        ({"ca": True}, "CA"),
        ({"public": ec.generate_private_key(ec.SECP384R1()).public_key()}, "P-256"),
    ],
)
def test_another_profile_is_no_peer(
    root: Authority, verifier: Verifier, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(BadCertificate, match=words):
        verifier.peer(leaf(root, **changes), NOW)  # type: ignore[arg-type]


def test_a_signing_leaf_is_no_peer_and_a_tls_leaf_no_member(
    root: Authority, verifier: Verifier
) -> None:
    signing = root.issue_signing(Ed25519PrivateKey.generate().public_key(), ID, "clinic", NOW)
    tls = root.issue_tls(p256(), ID, "clinic", NOW)
    with pytest.raises(BadCertificate, match="expected clientAuth only"):
        verifier.peer(der(signing), NOW)
    with pytest.raises(BadCertificate, match="signing OID"):
        verifier.member(der(tls), NOW)


def test_another_ca_of_the_same_name_makes_no_peer(verifier: Verifier) -> None:
    other = Authority.create(FEDERATION, NOW)
    with pytest.raises(BadCertificate, match="no path to the pinned root"):
        verifier.peer(leaf(other), NOW)


def test_dates_are_looked_at_again_at_every_call(root: Authority, verifier: Verifier) -> None:
    certificate = leaf(root)
    verifier.peer(certificate, NOW)
    with pytest.raises(BadCertificate, match="expired on 2026-03-02 12:00"):
        verifier.peer(certificate, NOW + 2 * DAY)
    with pytest.raises(BadCertificate, match="not valid before 2026-02-28 12:00"):
        verifier.peer(certificate, NOW - 2 * DAY)
    assert verifier.peer(certificate, NOW).id == ID


def test_a_revoked_node_is_no_peer_though_it_was_seen_before(
    root: Authority, verifier: Verifier
) -> None:
    certificate = leaf(root)
    verifier.peer(certificate, NOW)
    verifier.revoke([ID])
    with pytest.raises(BadCertificate, match=f"node {ID.hex()} is revoked"):
        verifier.peer(certificate, NOW)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30\x82",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN",
        bytes(2 * MAX_DER + 1),
    ],
)
def test_bytes_that_are_no_certificate_are_refused(verifier: Verifier, data: bytes) -> None:
    with pytest.raises(BadCertificate):
        verifier.peer(data, NOW)
