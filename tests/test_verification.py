"""Who passes as a member: every way to be none, with the cause in the message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from umbel.protocol.certificates import SIGNING_OID, Authority, node_uri
from umbel.protocol.errors import BadCertificate
from umbel.protocol.verification import MAX_DER, Verifier

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEDERATION = "north-clinics"
ID = bytes(range(16))
URI = x509.UniformResourceIdentifier(node_uri(FEDERATION, ID))

PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey
PrivateKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey


@pytest.fixture(scope="module")
def root() -> Authority:
    return Authority.create(FEDERATION, NOW)


@pytest.fixture
def verifier(root: Authority) -> Verifier:
    return Verifier(root.certificate, FEDERATION)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def ed25519() -> Ed25519PublicKey:
    return Ed25519PrivateKey.generate().public_key()


def p256() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


def signed(
    issuer: x509.Certificate,
    key: PrivateKey,
    *,
    public: PublicKey | None = None,
    purposes: tuple[x509.ObjectIdentifier, ...] = (SIGNING_OID,),
    names: tuple[x509.GeneralName, ...] = (URI,),
    ca: bool = False,
    constraints: bool = True,
    usage: bool = True,
    leaf_usage: bool = False,
) -> bytes:
    """A leaf as the profile wants it, but for what is said otherwise, signed by any key."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ward 7"),
            x509.NameAttribute(NameOID.COMMON_NAME, ID.hex()),
        ]
    )
    signs = ca and not leaf_usage
    bits = [not signs, False, False, False, False, signs, False, False, False]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject)
        .public_key(public or ed25519())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
    )
    if usage:
        builder = builder.add_extension(x509.KeyUsage(*bits), critical=True)
    if constraints:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    digest = None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()
    return der(builder.sign(key, digest))


def authority(
    subject: str, public: PublicKey, issuer: str, key: PrivateKey, pathlen: int
) -> x509.Certificate:
    """A CA certificate with any key and any path length."""
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)
    ]
    usage = [False, False, False, False, False, True, False, False, False]
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(True, pathlen), critical=True)
        .add_extension(x509.KeyUsage(*usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(key, None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256())
    )


def resigned(leaf: x509.Certificate, issuer: Authority) -> bytes:
    """The same leaf under another CA's name and key."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject)
        .issuer_name(issuer.certificate.subject)
        .public_key(leaf.public_key())
        .serial_number(leaf.serial_number)
        .not_valid_before(leaf.not_valid_before_utc)
        .not_valid_after(leaf.not_valid_after_utc)
    )
    for extension in leaf.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return der(builder.sign(issuer.key, hashes.SHA256()))


def refusal(verifier: Verifier, raw: bytes, now: datetime = NOW) -> str:
    with pytest.raises(BadCertificate) as caught:
        verifier.member(raw, now)
    return str(caught.value)


def test_a_signing_leaf_makes_a_member(root: Authority, verifier: Verifier) -> None:
    key = Ed25519PrivateKey.generate()
    leaf = root.issue_signing(key.public_key(), ID, "St. Mary's", NOW)
    member = verifier.member(der(leaf), NOW)
    assert (member.id, member.site) == (ID, "St. Mary's")
    assert member.fingerprint == leaf.fingerprint(hashes.SHA256())
    assert member.not_after == NOW + 7 * DAY
    member.public.verify(key.sign(b"x"), b"x")


def test_the_helper_of_these_tests_makes_a_leaf_that_passes(
    root: Authority, verifier: Verifier
) -> None:
    # Else every refusal below could have a cause of its own.
    assert verifier.member(signed(root.certificate, root.key), NOW).site == "ward 7"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"ca": True}, "expected the key usage digitalSignature"),
        ({"constraints": False}, "2.5.29.19: Certificate is missing required extension"),
        ({"purposes": ()}, "2.5.29.37: Certificate is missing required extension"),
        (
            {"purposes": (SIGNING_OID, ExtendedKeyUsageOID.CLIENT_AUTH)},
            "wrong purpose, expected Umbel's signing OID only",
        ),
        ({"purposes": (ExtendedKeyUsageOID.SERVER_AUTH,)}, "wrong purpose"),
        ({"names": ()}, "2.5.29.17: Certificate is missing required extension"),
        ({"names": (URI, x509.DNSName("a.example"))}, "one URI as its only name, got 2"),
        ({"names": (URI, URI)}, "one URI as its only name, got 2"),
        ({"names": (x509.DNSName("a.example"),)}, "one URI as its only name, got 1"),
        (
            {"names": (x509.UniformResourceIdentifier(f"umbel://{FEDERATION}/node/{'A' * 32}"),)},
            "URI: expected umbel://<federation>/node/<id>",
        ),
        (
            {"names": (x509.UniformResourceIdentifier(node_uri("south", ID)),)},
            "federation: expected north-clinics, got south",
        ),
        ({"public": p256()}, "signing key: expected Ed25519, got ECPublicKey"),
        ({"usage": False}, "2.5.29.15: Certificate is missing required extension"),
    ],
)
def test_a_leaf_off_its_profile_is_refused(
    root: Authority, verifier: Verifier, changes: dict[str, Any], cause: str
) -> None:
    assert cause in refusal(verifier, signed(root.certificate, root.key, **changes))


def test_a_ca_with_the_signing_purpose_is_no_leaf(root: Authority, verifier: Verifier) -> None:
    # All but its CA flag is as the profile wants it.
    raw = signed(root.certificate, root.key, ca=True, leaf_usage=True)
    assert "a CA certificate is no member's" in refusal(verifier, raw)


def test_a_tls_leaf_is_no_signing_leaf(root: Authority, verifier: Verifier) -> None:
    tls = root.issue_tls(p256(), ID, "ward 7", NOW)
    assert "wrong purpose" in refusal(verifier, der(tls))


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("kind", ["signing", "tls"])
def test_a_leaf_issues_no_leaf(root: Authority, kind: str, shown: bool) -> None:
    key: PrivateKey
    if kind == "signing":
        key = Ed25519PrivateKey.generate()
        issuer = root.issue_signing(key.public_key(), ID, "ward 7", NOW)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = root.issue_tls(key.public_key(), ID, "ward 7", NOW)
    raw = signed(issuer, key)
    x509.load_der_x509_certificate(raw).verify_directly_issued_by(issuer)  # the signature is good
    verifier = Verifier(root.certificate, FEDERATION, [issuer] if shown else [])
    cause = "basicConstraints.cA must be asserted" if shown else "no path to the pinned root"
    assert cause in refusal(verifier, raw)


def test_dates_are_checked_at_the_time_that_is_given(root: Authority, verifier: Verifier) -> None:
    raw = der(root.issue_signing(ed25519(), ID, "ward 7", NOW, days=7))
    before, after = NOW - timedelta(minutes=5), NOW + 7 * DAY
    second = timedelta(seconds=1)
    assert verifier.member(raw, before).id == ID
    assert verifier.member(raw, after).id == ID
    assert "is not valid before 2026-03-01 11:55 UTC" in refusal(verifier, raw, before - second)
    assert "expired on 2026-03-08 12:00 UTC" in refusal(verifier, raw, after + second)


def test_another_root_of_the_same_federation_is_refused(verifier: Verifier) -> None:
    other = Authority.create(FEDERATION, NOW)
    raw = signed(other.certificate, other.key)
    assert "no path to the pinned root" in refusal(verifier, raw)
    assert Verifier(other.certificate, FEDERATION).member(raw, NOW).id == ID


def test_another_key_under_the_roots_name_is_refused(root: Authority, verifier: Verifier) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    assert "signature does not match" in refusal(verifier, signed(root.certificate, other))


def test_another_federation_under_the_same_root_is_refused(root: Authority) -> None:
    raw = signed(root.certificate, root.key)
    assert "expected south, got north-clinics" in refusal(Verifier(root.certificate, "south"), raw)


def test_an_ed25519_root_makes_nobody_a_member() -> None:
    key = Ed25519PrivateKey.generate()
    root = authority("root", key.public_key(), "root", key, 0)
    cause = refusal(Verifier(root, FEDERATION), signed(root, key))
    assert "Forbidden public key algorithm" in cause


def test_an_issuing_ca_needs_a_root_that_allows_it(root: Authority) -> None:
    above = Authority.create(FEDERATION, NOW, above_issuing=True)
    issuing = above.issue_authority(NOW)
    raw = der(issuing.issue_signing(ed25519(), ID, "ward 7", NOW))
    chained = Verifier(above.certificate, FEDERATION, [issuing.certificate])
    assert chained.member(raw, NOW).id == ID
    assert "no path" in refusal(Verifier(above.certificate, FEDERATION), raw)
    flat = root.issue_authority(NOW)  # under pathlen 0
    verifier = Verifier(root.certificate, FEDERATION, [flat.certificate])
    raw = der(flat.issue_signing(ed25519(), ID, "ward 7", NOW))
    assert "path length constraint violated" in refusal(verifier, raw)


def test_an_issuing_ca_makes_no_further_ca() -> None:
    above = Authority.create(FEDERATION, NOW, above_issuing=True)
    issuing = above.issue_authority(NOW)
    deeper = issuing.issue_authority(NOW)
    chain = [issuing.certificate, deeper.certificate]
    verifier = Verifier(above.certificate, FEDERATION, chain)
    raw = der(deeper.issue_signing(ed25519(), ID, "ward 7", NOW))
    assert "path length constraint violated" in refusal(verifier, raw)


def test_two_cas_between_root_and_leaf_are_one_too_many() -> None:
    # The path lengths would allow it; the depth of this profile does not.
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    root = authority("a", keys[0].public_key(), "a", keys[0], 2)
    upper = authority("b", keys[1].public_key(), "a", keys[0], 1)
    lower = authority("c", keys[2].public_key(), "b", keys[1], 0)
    verifier = Verifier(root, FEDERATION, [upper, lower])
    assert verifier.member(signed(upper, keys[1]), NOW).id == ID
    assert "max depth" in refusal(verifier, signed(lower, keys[2]))


def test_a_member_goes_when_the_issuing_ca_expires() -> None:
    above = Authority.create(FEDERATION, NOW, above_issuing=True)
    issuing = above.issue_authority(NOW, days=1)
    leaf = Authority(FEDERATION, above.certificate, issuing.key).issue_signing(
        ed25519(), ID, "ward 7", NOW
    )
    raw = resigned(leaf, issuing)  # which outlives its CA
    verifier = Verifier(above.certificate, FEDERATION, [issuing.certificate])
    assert verifier.member(raw, NOW + DAY).not_after == NOW + 7 * DAY
    assert "not valid at validation time" in refusal(verifier, raw, NOW + DAY + timedelta(hours=1))


def test_a_verified_certificate_is_not_verified_again(
    root: Authority, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = signed(root.certificate, root.key)
    first = verifier.member(raw, NOW)
    monkeypatch.setattr("umbel.protocol.verification.PolicyBuilder", None)  # any use now fails
    assert verifier.member(raw, NOW) is first
    assert "expired" in refusal(verifier, raw, NOW + 2 * DAY)


def test_a_revoked_id_is_refused_also_from_the_cache(root: Authority, verifier: Verifier) -> None:
    raw, renewed = (signed(root.certificate, root.key) for _ in range(2))
    verifier.member(raw, NOW)
    verifier.revoke([bytes(16)])
    assert verifier.member(raw, NOW).id == ID
    verifier.revoke([ID])
    for der_bytes in (raw, renewed):
        assert f"node {ID.hex()} is revoked" in refusal(verifier, der_bytes)
    verifier.revoke([])  # a later list takes nothing back
    assert "revoked" in refusal(verifier, raw)


def test_the_id_of_the_message_is_the_certificates(root: Authority, verifier: Verifier) -> None:
    raw = signed(root.certificate, root.key)
    assert verifier.member(raw, NOW, claimed=ID).id == ID
    with pytest.raises(BadCertificate, match=f"expected {ID.hex()}, got {'11' * 16}"):
        verifier.member(raw, NOW, claimed=b"\x11" * 16)


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"", "is no X.509 certificate"),
        (b"\x30\x03\x02\x01\x01", "is no X.509 certificate"),
        (bytes(MAX_DER + 1), f"at most {MAX_DER} bytes, got {MAX_DER + 1}"),
    ],
)
def test_bytes_that_are_no_certificate(verifier: Verifier, raw: bytes, cause: str) -> None:
    assert cause in refusal(verifier, raw)


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b"site-0", b"\xff" * 6),  # a subject that is no UTF-8
        (b"\x06\x03\x55\x04\x03", b"\x06\x03\x55\x04\x0a"),  # two O=, and no CN=
    ],
)
@pytest.mark.parametrize("which", ["member", "peer"])
def test_a_part_of_a_certificate_that_cannot_be_read(
    root: Authority, verifier: Verifier, part: bytes, instead: bytes, which: str
) -> None:
    """The library loads it, and stumbles over the name when it says why the chain is none."""
    leaf = root.issue_signing(ed25519(), ID, "site-0", NOW)
    raw = der(leaf)
    at = raw.rindex(part)
    with pytest.raises(BadCertificate):
        getattr(verifier, which)(raw[:at] + instead + raw[at + len(part) :], NOW)


def test_bytes_behind_a_certificate_are_refused(root: Authority, verifier: Verifier) -> None:
    raw = signed(root.certificate, root.key)
    assert "is no X.509 certificate" in refusal(verifier, raw + b"\x00")


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_no_flipped_bit_of_a_certificate_makes_another_member(
    root: Authority, verifier: Verifier
) -> None:
    raw = signed(root.certificate, root.key)
    body = x509.load_der_x509_certificate(raw).tbs_certificate_bytes
    start = raw.index(body)
    for place in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[place // 8] ^= 1 << place % 8
        try:
            member = verifier.member(bytes(broken), NOW)
        except BadCertificate:
            continue
        # An ECDSA signature has more than one encoding; what it signs has one.
        assert not start <= place // 8 < start + len(body)
        assert (member.id, member.site) == (ID, "ward 7")
