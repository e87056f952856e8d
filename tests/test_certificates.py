"""Issuing: each profile as the table has it, and as other verifiers judge it."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, SignatureAlgorithmOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from umbel.protocol.certificates import (
    SIGNING_OID,
    Authority,
    fingerprint,
    node_uri,
    split_uri,
)
from umbel.protocol.errors import SettingsError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEDERATION = "north-clinics"
ID = bytes(range(16))
ROOT = Authority.create(FEDERATION, NOW)


def ed25519() -> Ed25519PublicKey:
    return Ed25519PrivateKey.generate().public_key()


def p256() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP256R1()).public_key()


def gateway(*names: str) -> x509.Certificate:
    return ROOT.issue_gateway(p256(), names, NOW)


def profile(certificate: x509.Certificate) -> tuple[object, ...]:
    """What the table of certificates.py says of one: CA, pathlen, usages, purposes, life."""
    extensions = certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert usage.critical
    asserted = [
        name
        for name in ("digital_signature", "key_cert_sign", "crl_sign", "key_agreement")
        if getattr(usage.value, name)
    ]
    assert not usage.value.key_encipherment
    assert not usage.value.content_commitment
    purposes = []
    for extension in extensions:
        if isinstance(extension.value, x509.ExtendedKeyUsage):
            assert not extension.critical
            purposes = list(extension.value)
    life = certificate.not_valid_after_utc - NOW
    return constraints.value.ca, constraints.value.path_length, asserted, purposes, life


CA, LEAF = ["key_cert_sign"], ["digital_signature"]
ABOVE = Authority.create(FEDERATION, NOW, years=2, above_issuing=True)


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        (ROOT.certificate, (True, 0, CA, [], 3650 * DAY)),
        (ABOVE.certificate, (True, 1, CA, [], 730 * DAY)),
        (ABOVE.issue_authority(NOW).certificate, (True, 0, CA, [], 365 * DAY)),
        (
            gateway("fl.example.org"),
            (False, None, LEAF, [ExtendedKeyUsageOID.SERVER_AUTH], 90 * DAY),
        ),
        (
            ROOT.issue_tls(p256(), ID, "ward 7", NOW),
            (False, None, LEAF, [ExtendedKeyUsageOID.CLIENT_AUTH], 7 * DAY),
        ),
        (
            ROOT.issue_signing(ed25519(), ID, "ward 7", NOW),
            (False, None, LEAF, [SIGNING_OID], 7 * DAY),
        ),
    ],
    ids=["root", "root above", "issuing", "gateway", "node tls", "node signing"],
)
def test_a_certificate_has_its_profile(
    certificate: x509.Certificate, expected: tuple[object, ...]
) -> None:
    assert profile(certificate) == expected
    assert certificate.version == x509.Version.v3
    assert certificate.signature_algorithm_oid == SignatureAlgorithmOID.ECDSA_WITH_SHA256
    assert certificate.not_valid_before_utc == NOW - timedelta(minutes=5)
    for key_id in (x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier):
        assert not certificate.extensions.get_extension_for_class(key_id).critical


def test_both_leaves_of_a_node_carry_the_same_identity() -> None:
    for leaf in (
        ROOT.issue_signing(ed25519(), ID, "ward 7", NOW),
        ROOT.issue_tls(p256(), ID, "ward 7", NOW),
    ):
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uri = "umbel://north-clinics/node/000102030405060708090a0b0c0d0e0f"
        assert list(names) == [x509.UniformResourceIdentifier(uri)]
        subject = {item.oid: item.value for item in leaf.subject}
        assert subject == {NameOID.ORGANIZATION_NAME: "ward 7", NameOID.COMMON_NAME: ID.hex()}


def test_web_pki_takes_the_gateway_under_its_names_only() -> None:
    leaf = gateway("fl.example.org", "192.0.2.7", "2001:db8::7")
    builder = PolicyBuilder().store(Store([ROOT.certificate])).time(NOW)
    for name in (
        x509.DNSName("fl.example.org"),
        x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
        x509.IPAddress(ipaddress.ip_address("2001:db8::7")),
    ):
        assert builder.build_server_verifier(name).verify(leaf, [])[0] == leaf
    with pytest.raises(VerificationError, match="no matching subjectAltName"):
        builder.build_server_verifier(x509.DNSName("example.org")).verify(leaf, [])


def test_web_pki_takes_the_tls_leaf_as_a_client_and_no_other() -> None:
    builder = PolicyBuilder().store(Store([ROOT.certificate])).time(NOW)
    clients = builder.build_client_verifier()
    leaf = ROOT.issue_tls(p256(), ID, "ward 7", NOW)
    assert clients.verify(leaf, []).chain == [leaf, ROOT.certificate]
    for other in (gateway("fl.example.org"), ROOT.issue_signing(ed25519(), ID, "ward 7", NOW)):
        with pytest.raises(VerificationError):
            clients.verify(other, [])


def test_a_leaf_never_outlives_its_ca() -> None:
    late = ROOT.certificate.not_valid_after_utc - DAY
    leaf = ROOT.issue_signing(ed25519(), ID, "ward 7", late)
    assert leaf.not_valid_after_utc == ROOT.certificate.not_valid_after_utc


def test_serials_are_never_the_same_and_ca_names_differ_by_key() -> None:
    leaves = [ROOT.issue_signing(ed25519(), ID, "ward 7", NOW) for _ in range(50)]
    assert len({leaf.serial_number for leaf in leaves}) == 50
    assert ABOVE.issue_authority(NOW).certificate.subject != ABOVE.certificate.subject
    assert ABOVE.certificate.subject != ROOT.certificate.subject


def test_an_authority_shows_no_key() -> None:
    secret = ROOT.key.private_numbers().private_value
    assert str(secret) not in repr(ROOT)
    assert f"{secret:x}" not in repr(ROOT)
    assert "PrivateKey" not in repr(ROOT)


@pytest.mark.parametrize("days", [0, 8])
def test_a_nodes_leaf_lives_seven_days_at_most(days: int) -> None:
    with pytest.raises(SettingsError, match=f"days: expected more than 0, at most 7, got {days}"):
        ROOT.issue_signing(ed25519(), ID, "ward 7", NOW, days=days)
    with pytest.raises(SettingsError, match="days: expected more than 0, at most 7"):
        ROOT.issue_tls(p256(), ID, "ward 7", NOW, days=days)


def test_other_lives_have_their_limits() -> None:
    with pytest.raises(SettingsError, match="years: expected 1 to 10, got 11"):
        Authority.create(FEDERATION, NOW, years=11)
    with pytest.raises(SettingsError, match="days: expected 1 to 365, got 366"):
        ABOVE.issue_authority(NOW, days=366)
    with pytest.raises(SettingsError, match="days: expected 1 to 90, got 91"):
        ROOT.issue_gateway(p256(), ["a.example"], NOW, days=91)
    with pytest.raises(SettingsError, match="gateway names: expected at least one"):
        gateway()


@pytest.mark.parametrize("name", ["", "*", "*.example", "a b", "https://a", "ä.example", "-a.b"])
def test_a_gateway_has_plain_names(name: str) -> None:
    with pytest.raises(SettingsError, match="gateway name: expected a DNS or IP name, got"):
        gateway(name)


@pytest.mark.parametrize("name", ["", "North", "a_b", "a.b", "a/b", "a" * 64, "a\n"])
def test_a_federation_name_is_lower_case_letters_digits_and_dashes(name: str) -> None:
    with pytest.raises(SettingsError, match="federation: expected 1 to 63 of a-z, 0-9 and -"):
        Authority.create(name, NOW)


@pytest.mark.parametrize("site", ["", "a" * 65, "two\nlines", "nul\0"])
def test_a_site_is_a_short_printable_name(site: str) -> None:
    with pytest.raises(SettingsError, match="site: expected 1 to 64 printable characters"):
        ROOT.issue_signing(ed25519(), ID, site, NOW)


def test_an_id_has_sixteen_bytes() -> None:
    with pytest.raises(SettingsError, match="node id: expected 16 bytes, got 15"):
        ROOT.issue_signing(ed25519(), bytes(15), "ward 7", NOW)


@pytest.mark.parametrize(
    "uri",
    [
        "umbel://north/node/" + "0" * 31,
        "umbel://north/node/" + "0" * 33,
        "umbel://north/node/" + "A" * 32,
        "umbel://North/node/" + "0" * 32,
        "umbel://north/nodes/" + "0" * 32,
        "https://north/node/" + "0" * 32,
        "umbel://north/node/" + "0" * 32 + "\n",
        "",
    ],
)
def test_a_uri_has_one_form(uri: str) -> None:
    assert split_uri(uri) is None


def test_a_uri_reads_back() -> None:
    assert split_uri(node_uri("north", ID)) == ("north", ID)


def test_a_fingerprint_is_sha256_of_the_der() -> None:
    assert fingerprint(ROOT.der) == ROOT.certificate.fingerprint(hashes.SHA256())


def test_the_signing_purpose_is_an_unregistered_uuid() -> None:
    # ITU-T X.667: 2.25.<UUID as an integer>; a random UUID has version 4, variant 10.
    arc, number = SIGNING_OID.dotted_string.rsplit(".", 1)
    value = int(number)
    assert arc == "2.25"
    assert value.bit_length() <= 128
    assert value >> 76 & 15 == 4
    assert value >> 62 & 3 == 2
