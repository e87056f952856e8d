"""Keys that remember what was good: never a yes to another question, nor to one who was removed."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.certificates import Authority
from umbel.protocol.errors import BadCertificate, Revoked
from umbel.protocol.members import LIFE, MemberList
from umbel.simulation import remembered
from umbel.simulation.remembered import Remembered, SharedMembership

if TYPE_CHECKING:
    from collections.abc import Callable

Octets = bytes | bytearray | memoryview
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
NOW = datetime.now(UTC)


class Counted(Remembered):
    """A key that counts what is asked of it."""

    asked = 0

    def verify(self, signature: Octets, data: Octets) -> None:
        """Count, then verify."""
        self.asked += 1
        super().verify(signature, data)


def test_a_good_signature_is_computed_once_and_a_bad_one_each_time() -> None:
    inner = Counted(PRIVATE.public_key())
    key = Remembered(inner)
    good = PRIVATE.sign(b"data")
    for _ in range(3):
        key.verify(good, b"data")
    assert inner.asked == 1
    for number in range(2):
        with pytest.raises(InvalidSignature):
            key.verify(OTHER.sign(b"data"), b"data")
        assert inner.asked == 2 + number
    for signature, data in ((good, b"dat"), (good[:-1], good[-1:] + b"data"), (good, b"data\0")):
        with pytest.raises(InvalidSignature):
            key.verify(signature, data)
    with pytest.raises(InvalidSignature):
        Remembered(OTHER.public_key()).verify(good, b"data")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_it_answers_as_the_library(asked: list[tuple[bool, int, int]]) -> None:
    key, plain = Remembered(PRIVATE.public_key()), PRIVATE.public_key()
    for own, signed, data in asked:
        signature = (PRIVATE if own else OTHER).sign(bytes([signed]))
        assert _answer(key, signature, data) == _answer(plain, signature, data)


def _answer(key: Ed25519PublicKey, signature: bytes, data: int) -> bool:
    try:
        key.verify(signature, bytes([data]))
    except InvalidSignature:
        return False
    return True


def test_it_forgets_before_it_grows_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "LIMIT", 2)
    inner = Counted(PRIVATE.public_key())
    key = Remembered(inner)
    for data in (b"a", b"b", b"c", b"c", b"a"):
        key.verify(PRIVATE.sign(data), data)
    assert inner.asked == 4


def test_it_is_a_key_like_the_one_it_stands_for() -> None:
    key, plain = Remembered(PRIVATE.public_key()), PRIVATE.public_key()
    assert key.public_bytes_raw() == plain.public_bytes_raw()
    assert key.public_bytes(Encoding.Raw, PublicFormat.Raw) == plain.public_bytes_raw()
    assert key == Remembered(PRIVATE.public_key())
    assert key != Remembered(OTHER.public_key())
    assert key != "a key"
    assert len({key, Remembered(PRIVATE.public_key())}) == 1
    assert copy.copy(key) is copy.deepcopy(key) is key


# ---- members ---------------------------------------------------------------------------------


def enrolled() -> tuple[SharedMembership, Authority, bytes, Callable[[datetime], bytes]]:
    authority = Authority.create("f", NOW)
    leaf = authority.issue_signing(PRIVATE.public_key(), bytes(16), "site", NOW)
    membership = SharedMembership(authority.certificate, "f")
    return (
        membership, authority, leaf.public_bytes(Encoding.DER),
        lambda now: MemberList("f", 2, now, now + LIFE, frozenset([bytes(16)])).sign(authority),
    )  # fmt: skip


def test_a_member_has_one_key_that_remembers() -> None:
    membership, _, der, _ = enrolled()
    first, again = (membership.verifier.member(der, NOW) for _ in range(2))
    assert first is again
    assert isinstance(first.public, Remembered)
    assert first.public.public_bytes_raw() == PRIVATE.public_key().public_bytes_raw()
    with pytest.raises(BadCertificate):
        membership.verifier.member(der, NOW, claimed=bytes(15) + b"x")


def test_who_is_removed_or_expired_is_no_member_any_more() -> None:
    membership, _, der, removing = enrolled()
    membership.verifier.member(der, NOW)
    with pytest.raises(BadCertificate, match="expired"):
        membership.verifier.member(der, NOW + timedelta(days=4000))
    membership.take(removing(NOW), NOW)
    with pytest.raises(Revoked):
        membership.verifier.member(der, NOW)
