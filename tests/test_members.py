"""The member list: what a device takes over from it, and every reason to refuse it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.errors import Refused, SettingsError
from umbel.protocol.members import LABEL, MAX_BYTES, MemberList

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
FEDERATION = "north-clinics"
AUTHORITY = Authority.create(FEDERATION, NOW)
ISSUER = AUTHORITY.key.public_key()
GONE = frozenset({b"\x02" * 16, b"\x01" * 16})
LIST = MemberList(FEDERATION, 5, NOW, NOW + 7 * DAY, GONE)


def refusal(
    raw: bytes,
    *,
    federation: str = FEDERATION,
    now: datetime = NOW,
    newest: int = 0,
    issuer: ec.EllipticCurvePublicKey = ISSUER,
) -> str:
    with pytest.raises(Refused) as caught:
        MemberList.open(raw, [issuer], federation).check(now, newest)
    assert caught.value.reason == pb.REASON_MEMBER_LIST
    return str(caught.value)


def test_a_list_reads_back() -> None:
    other = Authority.create(FEDERATION, NOW).key.public_key()
    assert MemberList.open(LIST.sign(AUTHORITY), [other, ISSUER], FEDERATION) == LIST


def test_the_signed_bytes_by_hand() -> None:
    def field(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    # date -u -d '2026-03-01 12:00' +%s: 1772366400; seven days are 604800 seconds.
    body = b"umbel/members/1" + b"".join(
        field(value)
        for value in (
            b"north-clinics",
            b"5",
            b"1772366400",
            b"1772971200",
            b"\x01" * 16 + b"\x02" * 16,
        )
    )
    raw = LIST.sign(AUTHORITY)
    assert raw.startswith(body)
    length, signature = raw[len(body) :][:8], raw[len(body) + 8 :]
    assert int.from_bytes(length, "little") == len(signature)
    ISSUER.verify(signature, body, ec.ECDSA(hashes.SHA256()))


def test_an_empty_list_is_a_list() -> None:
    empty = MemberList(FEDERATION, 1, NOW, NOW + DAY)
    assert MemberList.open(empty.sign(AUTHORITY), [ISSUER], FEDERATION).revoked == frozenset()


def test_an_older_epoch_is_refused_and_the_same_one_is_not() -> None:
    raw = LIST.sign(AUTHORITY)
    assert "epoch 5 is older than 6, seen before" in refusal(raw, newest=6)
    MemberList.open(raw, [ISSUER], FEDERATION).check(NOW, newest=5)


def test_a_list_is_in_force_from_issue_to_expiry() -> None:
    raw = LIST.sign(AUTHORITY)
    early, late = NOW - DAY, NOW + 7 * DAY  # by a clock that is slow, too
    for now in (early, late - SECOND):
        MemberList.open(raw, [ISSUER], FEDERATION).check(now)
    assert "expired on 2026-03-08 12:00 UTC" in refusal(raw, now=late)
    assert "after today: check the clock" in refusal(raw, now=early - SECOND)


def test_another_federation_is_refused_even_by_the_same_ca() -> None:
    raw = LIST.sign(AUTHORITY)
    assert "of the federation 'north-clinics'" in refusal(raw, federation="south-clinics")


def test_another_ca_is_refused() -> None:
    raw = LIST.sign(Authority.create(FEDERATION, NOW))
    assert "signature is not the issuing CA's" in refusal(raw)


def test_a_list_longer_in_force_than_seven_days_is_refused_on_both_sides() -> None:
    long = MemberList(FEDERATION, 5, NOW, NOW + 7 * DAY + SECOND)
    with pytest.raises(SettingsError, match="life: expected more than 0, at most 7 days"):
        long.sign(AUTHORITY)
    body = long._body()
    signature = AUTHORITY.key.sign(body, ec.ECDSA(hashes.SHA256()))
    raw = body + len(signature).to_bytes(8, "little") + signature
    assert "in force for more than 7 days" in refusal(raw)


def test_no_flipped_bit_passes_as_another_list() -> None:
    raw = LIST.sign(AUTHORITY)
    for place in range(8 * len(raw)):
        broken = bytearray(raw)
        broken[place // 8] ^= 1 << place % 8
        refusal(bytes(broken))


def test_a_cut_or_prolonged_list_is_refused() -> None:
    raw = LIST.sign(AUTHORITY)
    for end in range(len(raw)):
        refusal(raw[:end])
    assert "left over" in refusal(raw + b"\0")
    assert f"at most {MAX_BYTES} bytes" in refusal(bytes(MAX_BYTES + 1))


def test_a_certificate_is_no_list_and_no_list_a_certificate() -> None:
    leaf = AUTHORITY.issue_signing(
        Ed25519PrivateKey.generate().public_key(), bytes(16), "ward 7", NOW
    )
    assert not leaf.tbs_certificate_bytes.startswith(LABEL[:1])
    assert "does not begin with umbel/members/1" in refusal(leaf.tbs_certificate_bytes)
    with pytest.raises(ValueError, match="error parsing asn1"):
        x509.load_der_x509_certificate(LIST.sign(AUTHORITY))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MemberList("south", 1, NOW, NOW + DAY), "expected north-clinics, got 'south'"),
        (MemberList(FEDERATION, 0, NOW, NOW + DAY), "an epoch from 1 up"),
        (MemberList(FEDERATION, 1, NOW, NOW), "life: expected more than 0"),
        (MemberList(FEDERATION, 1, NOW, NOW + DAY, frozenset({b"x"})), "16-byte ids"),
    ],
)
def test_the_authority_signs_no_other_list(wrong: MemberList, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        wrong.sign(AUTHORITY)
