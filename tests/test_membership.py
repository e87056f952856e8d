"""Who is a member by the newest list: what is taken over, what is refused, what stays revoked."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients import member_file
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.errors import Refused, Revoked, SettingsError, StateError
from umbel.protocol.members import MemberList
from umbel.protocol.membership import Membership

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEDERATION = "north-clinics"
ROOT = Authority.create(FEDERATION, NOW)
ABOVE = Authority.create(FEDERATION, NOW, above_issuing=True)
FIRST, SECOND = (ABOVE.issue_authority(NOW + days * DAY, 30) for days in (0, 20))
ONE, TWO = b"\1" * 16, b"\2" * 16


def signed(
    by: Authority = ROOT, epoch: int = 1, *gone: bytes, now: datetime = NOW, days: float = 7
) -> bytes:
    return MemberList(FEDERATION, epoch, now, now + days * DAY, frozenset(gone)).sign(by)


def known(root: Authority = ROOT) -> Membership:
    return Membership(root.certificate, FEDERATION)


def leaf(by: Authority, node: bytes = ONE) -> bytes:
    public = Ed25519PrivateKey.generate().public_key()
    return by.issue_signing(public, node, "ward 7", NOW).public_bytes(Encoding.DER)


def why(membership: Membership, raw: bytes, now: datetime = NOW) -> str:
    """Return why a list is not taken over; the list before stays."""
    before, epoch = membership.list, membership.epoch
    with pytest.raises(Refused) as caught:
        membership.take(raw, now)
    assert caught.value.reason == pb.REASON_MEMBER_LIST
    assert (membership.list, membership.epoch) == (before, epoch)
    return str(caught.value)


def unlisted(membership: Membership, now: datetime = NOW) -> str:
    with pytest.raises(Refused) as caught:
        membership.check(now)
    assert caught.value.reason == pb.REASON_MEMBER_LIST
    return str(caught.value)


# ---- in force, or not --------------------------------------------------------------------------


def test_without_a_list_nobody_goes_on() -> None:
    assert "none of this federation has come" in unlisted(known())


def test_a_list_is_in_force_until_its_expiry() -> None:
    membership = known()
    assert membership.take(signed(), NOW)
    membership.check(NOW + 7 * DAY - timedelta(seconds=1))
    assert "expired on 2026-03-08 12:00 UTC" in unlisted(membership, NOW + 7 * DAY)


def test_the_same_list_again_is_no_news() -> None:
    membership = known()
    assert membership.take(signed(), NOW)
    assert not membership.take(signed(), NOW)
    assert membership.take(signed(now=NOW + DAY), NOW + DAY)  # signed anew
    membership.check(NOW + 7.5 * DAY)


def test_an_older_epoch_an_expired_list_and_another_signers_are_refused() -> None:
    membership = known()
    membership.take(signed(ROOT, 6), NOW)
    assert "epoch 5 is older than 6, seen before" in why(membership, signed(ROOT, 5))
    assert "expired on" in why(membership, signed(ROOT, 7, days=1), NOW + DAY)
    assert "after today: check the clock" in why(membership, signed(ROOT, 7, now=NOW + 2 * DAY))
    stranger = Authority.create(FEDERATION, NOW)
    assert "not the issuing CA's" in why(membership, signed(stranger, 7))
    membership.check(NOW)


# ---- who is revoked ----------------------------------------------------------------------------


def test_a_node_on_the_list_is_no_member_though_it_was_seen_before() -> None:
    membership, der = known(), leaf(ROOT)
    assert membership.verifier.member(der, NOW).id == ONE
    membership.take(signed(ROOT, 2, ONE), NOW)
    with pytest.raises(Revoked, match="is revoked"):
        membership.verifier.member(der, NOW)


def test_what_an_authentic_list_revokes_stays_revoked_whatever_becomes_of_the_list() -> None:
    membership = known()
    membership.take(signed(ROOT, 6, ONE), NOW)
    why(membership, signed(ROOT, 5, TWO))
    membership.take(signed(ROOT, 7), NOW)
    assert membership.revoked() == {ONE, TWO}


# ---- issuing CAs -------------------------------------------------------------------------------


def test_an_issuing_ca_that_the_root_vouches_for_signs_members_and_their_list() -> None:
    membership, der = known(ABOVE), leaf(FIRST)
    assert "not the issuing CA's" in why(membership, signed(FIRST))  # nobody has shown it yet
    membership.learn([FIRST.der])
    assert membership.take(signed(FIRST), NOW)
    assert membership.verifier.member(der, NOW).id == ONE


def test_while_two_cas_are_in_force_both_sign_and_afterwards_the_newer_alone() -> None:
    membership = known(ABOVE)
    membership.learn([SECOND.der, FIRST.der])
    both, later = NOW + 20 * DAY, NOW + 31 * DAY
    assert membership.take(signed(FIRST, 4, now=both), both)
    assert membership.take(signed(SECOND, 5, now=both), both)
    assert "not the issuing CA's" in why(membership, signed(FIRST, 6, now=later), later)
    assert membership.take(signed(SECOND, 6, now=later), later)


def test_a_root_above_an_issuing_ca_signs_no_list() -> None:
    membership = known(ABOVE)
    membership.learn([FIRST.der])
    assert "not the issuing CA's" in why(membership, signed(ABOVE))


def test_a_ca_of_another_root_signs_nothing_nor_does_a_member() -> None:
    membership, other = known(ABOVE), Authority.create(FEDERATION, NOW, above_issuing=True)
    stranger = other.issue_authority(NOW)
    membership.learn([stranger.der, FIRST.der, leaf(FIRST), b"no certificate"])
    assert "not the issuing CA's" in why(membership, signed(stranger))
    assert membership.take(signed(FIRST), NOW)


def test_a_root_that_signs_members_has_no_ca_below_it() -> None:
    membership, flat = known(), ROOT.issue_authority(NOW)
    membership.learn([flat.der])
    assert "not the issuing CA's" in why(membership, signed(flat))


# ---- what is kept ------------------------------------------------------------------------------


def test_lists_of_a_higher_epoch_are_kept_and_no_others() -> None:
    seen: list[bytes] = []
    membership = Membership(ROOT.certificate, FEDERATION, keep=seen.append)
    first, anew, second = signed(ROOT, 4), signed(ROOT, 4, now=NOW + DAY), signed(ROOT, 5, ONE)
    for raw in (first, anew, second):
        membership.take(raw, NOW + DAY)
    assert seen == [first, second]


def test_an_older_list_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    member_file.keep(tmp_path, signed(ROOT, 6, ONE))
    membership = known()
    membership.recall(member_file.read(tmp_path) or b"", NOW)
    membership.check(NOW)
    assert membership.revoked() == {ONE}
    assert "epoch 5 is older than 6" in why(membership, signed(ROOT, 5))


def test_of_a_list_that_has_expired_since_the_epoch_is_remembered(tmp_path: Path) -> None:
    member_file.keep(tmp_path, signed(ROOT, 6))
    membership, later = known(), NOW + 8 * DAY
    membership.recall(member_file.read(tmp_path) or b"", later)
    assert "of epoch 6 or higher" in unlisted(membership, later)
    assert "epoch 5 is older than 6" in why(membership, signed(ROOT, 5, now=later), later)


def test_no_older_list_takes_the_place_of_a_newer_one_on_disk(tmp_path: Path) -> None:
    assert member_file.read(tmp_path) is None
    member_file.keep(tmp_path, signed(ROOT, 6, ONE))
    kept = (tmp_path / member_file.FILE).read_bytes()
    member_file.keep(tmp_path, signed(ROOT, 5))
    assert member_file.read(tmp_path) == kept
    assert [path.name for path in tmp_path.iterdir()] == [member_file.FILE]
    assert stat.S_IMODE((tmp_path / member_file.FILE).stat().st_mode) == 0o600


def test_a_damaged_file_and_one_that_others_can_write_are_no_list(tmp_path: Path) -> None:
    file = tmp_path / member_file.FILE
    file.write_bytes(b"umbel/members/1 and no more")
    file.chmod(0o600)
    with pytest.raises(StateError, match=r"members.list: expected a member list"):
        member_file.read(tmp_path)
    with pytest.raises(StateError, match=r"members.list: expected a member list"):
        member_file.keep(tmp_path, signed())
    file.write_bytes(signed())
    file.chmod(0o666)
    with pytest.raises(SettingsError, match="no write permission but the owner's"):
        member_file.read(tmp_path)


def test_a_list_that_cannot_be_kept_is_said_and_revokes_all_the_same(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    membership = Membership(
        ROOT.certificate, FEDERATION, keep=lambda raw: member_file.keep(gone, raw)
    )
    with pytest.raises(StateError, match="until it can keep the list"):
        membership.take(signed(ROOT, 3, ONE), NOW)
    assert (membership.epoch, membership.revoked()) == (3, frozenset({ONE}))
