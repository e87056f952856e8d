"""Members with valid certificates against an honest server: who is named, and what still counts.

Attacks 4 and 10 to 13 of docs/protocol.md, section 10.2. The server names whoever breaks a rule;
one member must not be able to end a round without being named, nor have another one named.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol import keys, shamir
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.context import bitmap
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import TooFewMembers, VoidRound
from umbel.protocol.keys import KeyPair
from umbel.tests.actors import PARAMS, Game, agreed, identity, names, signed_keys, verified

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "00" * 31 + "80",
]
"""Points of order 1, 2, 4 and 8 on Curve25519 and its twist, also unreduced and with the bit that
is masked off: https://cr.yp.to/ecdh.html#validate."""


def _pair() -> KeyPair:
    return KeyPair.generate(entropy=os_entropy)


# ---- trip 1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("role", [0, 1])
def test_a_member_with_a_key_of_low_order_is_named_and_the_others_go_on(
    point: str, role: int
) -> None:
    """Everybody's secret with this key would be zero: no honest neighbour would go on."""
    game = Game(6)
    pks = [_pair().public, _pair().public]
    pks[role] = bytes.fromhex(point)
    attacker = game.people[5]
    forged = signed_keys(attacker, game.terms.ctx0(), *pks)
    names(attacker.id, lambda: game.server.keys(verified(attacker), forged), "low order")


def test_a_member_that_sends_one_key_in_two_roles_is_named() -> None:
    game, same = Game(5), _pair().public
    who = game.people[0]
    forged = signed_keys(who, game.terms.ctx0(), same, same)
    names(who.id, lambda: game.server.keys(verified(who), forged), "keys")


def test_a_member_that_sends_anothers_keys_or_keys_twice_is_named() -> None:
    game = Game(5)
    first, second = game.people[:2]
    body = game.members[0].begin().message.keys
    game.server.keys(verified(first), body)
    names(first.id, lambda: game.server.keys(verified(first), body), "already has")
    for pks in ((body.mask_pk, _pair().public), (_pair().public, body.mask_pk)):
        forged = signed_keys(second, game.terms.ctx0(), *pks)
        names(second.id, partial(game.server.keys, verified(second), forged), "already has")


def test_a_member_that_signs_with_another_key_or_for_another_member_is_named() -> None:
    game = Game(5)
    first, second = game.people[:2]
    body = game.members[0].begin().message.keys
    names(second.id, lambda: game.server.keys(verified(second), body), "not signed")
    impostor = replace(first, signing=Ed25519PrivateKey.generate())
    forged = signed_keys(impostor, game.terms.ctx0(), body.mask_pk, body.seal_pk)
    names(first.id, lambda: game.server.keys(verified(first), forged), "not signed")


def test_keys_after_the_freeze_and_rosters_that_are_too_small_end_there() -> None:
    game = Game(5)
    game.gather()
    late = game.newcomer(identity(7)).begin().message.keys
    names(identity(7).id, lambda: game.server.keys(verified(identity(7)), late))
    lonely = Game(2)
    with pytest.raises(TooFewMembers, match="2 members sent keys"):
        lonely.gather()


# ---- trip 2 --------------------------------------------------------------------------------------


def _dealt(game: Game) -> dict[int, pb.Shares]:
    """Return what every member would send in trip 2."""
    return {p: game.members[p].roster(r).message.shares for p, r in enumerate(game.gather())}


def _signed_again(game: Game, place: int, body: pb.Shares) -> pb.Shares:
    """Sign a member's altered shares, as the member itself can."""
    who = game.people[place]
    hashes = b"".join(b.mask_share_hash + b.seed_share_hash for b in body.blobs)
    sealed = hashlib.sha256(b"".join(b.blob for b in body.blobs)).digest()
    fields = (game.server.ctx, who.id, body.commitment, hashes, sealed)
    body.signature = keys.sign(who.signing, "shares", *fields)
    return body


@pytest.mark.parametrize("field", ["commitment", "blob", "mask_share_hash", "seed_share_hash"])
def test_shares_that_their_sender_did_not_sign_are_refused_by_name(field: str) -> None:
    game = Game(5)
    body = _dealt(game)[1]
    target = body if field == "commitment" else body.blobs[0]
    setattr(target, field, bytes(len(getattr(target, field))))
    who = game.people[1].id
    names(who, lambda: game.server.shares(who, body), "not signed")


def test_a_member_that_deals_too_few_or_twice_or_for_another_is_named() -> None:
    game = Game(5)
    dealt = _dealt(game)
    first, second = game.people[1].id, game.people[2].id
    names(second, lambda: game.server.shares(second, dealt[1]), "not signed")
    short = pb.Shares()
    short.CopyFrom(dealt[1])
    del short.blobs[3]
    short = _signed_again(game, 1, short)
    names(first, lambda: game.server.shares(first, short), "expected 4, got 3")
    game.server.shares(first, dealt[1])
    names(first, lambda: game.server.shares(first, dealt[1]), "twice")
    stranger = identity(9).id
    names(stranger, lambda: game.server.shares(stranger, dealt[1]), "not in this attempt")


# ---- trips 3 to 5 --------------------------------------------------------------------------------


def test_a_vector_other_than_the_signed_one_or_a_second_one_is_refused_by_name() -> None:
    game = Game(5).to_shared()
    who = game.people[1].id
    header = game.mask(1)
    names(who, lambda: game.server.delivered(who, header.y_hash), "does not hash")
    forged = pb.MaskedHeader()
    forged.CopyFrom(header)
    forged.y_hash = bytes(32)
    names(who, lambda: game.server.header(who, forged), "not signed")
    game.server.header(who, header)
    game.server.header(who, header)  # the same again is a resend
    names(who, lambda: game.server.delivered(who, bytes(32)), "does not hash")
    other = pb.MaskedHeader(u2_hash=header.u2_hash, y_hash=bytes(32))
    fields = (game.server.ctx, who, other.u2_hash, other.y_hash)
    other.signature = keys.sign(game.people[1].signing, "masked", *fields)
    names(who, lambda: game.server.header(who, other), "a second vector")


def test_a_vector_of_a_member_that_dealt_no_shares_is_refused_by_name() -> None:
    """Nobody could take its masks off again."""
    game = Game(6).to_shared(silent=[5])
    who = game.people[5]
    u2_hash = hashlib.sha256(bitmap(range(5), 6)).digest()
    header = pb.MaskedHeader(u2_hash=u2_hash, y_hash=bytes(32))
    fields = (game.server.ctx, who.id, header.u2_hash, header.y_hash)
    header.signature = keys.sign(who.signing, "masked", *fields)
    names(who.id, lambda: game.server.header(who.id, header), "without having sent shares")


def test_votes_that_are_forged_doubled_or_of_outsiders_are_refused_by_name() -> None:
    game = Game(6).to_masked(lost=[5])
    ballots = game.ballots(game.server.end_uploads())
    first, second, lost = (game.people[p].id for p in (0, 1, 5))
    names(second, lambda: game.server.vote(second, ballots[0]), "another survivor set")
    names(lost, lambda: game.server.vote(lost, ballots[0]), "no survivor")
    game.server.vote(first, ballots[0])
    names(first, lambda: game.server.vote(first, ballots[0]), "twice")
    assert not game.server.has_quorum
    with pytest.raises(TooFewMembers, match="1 votes, the quorum is 4"):
        game.server.quorum()


def test_losses_beyond_the_tolerance_or_the_floor_end_before_anybody_votes() -> None:
    with pytest.raises(TooFewMembers, match="7 members tolerate 2 losses"):
        Game(7).to_shared(silent=[4, 5, 6])
    with pytest.raises(TooFewMembers, match="7 members tolerate 2 losses"):
        Game(7).to_masked(lost=[4, 5, 6]).server.end_uploads()
    floor = agreed(replace(PARAMS, min_survivors=6))
    with pytest.raises(TooFewMembers, match="5 survivors, at least 6"):
        Game(7, terms=floor).to_masked(lost=[5, 6]).server.end_uploads()


def test_a_vote_for_another_set_does_not_count_towards_this_one() -> None:
    game = Game(6).to_masked()
    game.server.end_uploads()
    who = game.people[0]
    u2, u = (hashlib.sha256(bitmap(s, 6)).digest() for s in (range(6), range(5)))
    ballot = pb.Vote(signature=keys.sign(who.signing, "survivors", game.server.ctx, u2, u))
    names(who.id, lambda: game.server.vote(who.id, ballot), "another survivor set")


def test_releases_that_are_doubled_or_of_outsiders_or_too_long_are_refused_by_name() -> None:
    game = Game(6).to_released(lost=[5], silent=[1])
    first, silent, lost = (game.people[p].id for p in (0, 1, 5))
    names(first, lambda: game.server.release(first, game.released[0]), "nobody asked")
    names(lost, lambda: game.server.release(lost, game.released[0]), "nobody asked")
    longer = pb.Release(shares=[*game.released[0].shares, bytes(32)])
    names(silent, lambda: game.server.release(silent, longer), "expected 5, got 6")


# ---- 11: wrong shares ----------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [(), (3,)])  # with t + 1 other answers, and with exactly t
def test_a_holder_that_releases_a_share_it_was_not_dealt_is_named_and_the_sum_comes_out(
    silent: tuple[int, ...],
) -> None:
    game = Game(7).to_released(silent=(0, *silent))
    liar, release = game.people[0], game.release(0)
    owners = [game.around(0)[place] for place in (2, 5)]
    release.shares[2] = bytes(32)
    release.shares[5] = release.shares[4]
    game.server.release(liar.id, release)
    assert game.server.faults == [
        (liar.id, f"released a share that {game.people[o].id.hex()} never dealt") for o in owners
    ]
    streams = game.server.finish()
    assert game.opened(range(7), streams) == game.truth(range(7))


def test_a_holder_that_releases_the_other_secrets_share_is_named() -> None:
    game = Game(7).to_masked(lost=[6])
    wrong = [bytes(half) for half in game.members[0]._held[6]][1]
    ballots = game.ballots(game.server.end_uploads())
    for place, ballot in ballots.items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    release = game.release(0)
    release.shares[5] = wrong
    game.server.release(game.people[0].id, release)
    assert game.server.faults[0][0] == game.people[0].id


def test_too_few_good_shares_make_the_round_void_by_name() -> None:
    game = Game(7).to_released(silent=(0, 1, 2))
    for place in (0, 1, 2):
        release = game.release(place)
        release.shares[game.around(place).index(6)] = bytes(32)
        game.server.release(game.people[place].id, release)
    with pytest.raises(VoidRound, match=f"3 good shares of member {game.people[6].id.hex()}, 4"):
        game.server.finish()
    assert [who for who, _ in game.server.faults] == [game.people[p].id for p in (0, 1, 2)]


def _owner_of_another_seed(game: Game, owner: int) -> None:
    """Commit to another seed than the one that is dealt and masked with."""
    body = game.members[owner].roster(game.rosters[owner]).message.shares
    body.commitment = bytes(32)
    game.server.shares(game.people[owner].id, _signed_again(game, owner, body))


def _owner_of_another_key(game: Game, owner: int) -> None:
    """Deal shares of another mask key than the advertised one."""
    pair = game.members[owner]._keys()[0]
    genuine, pair.secret = pair.secret, _pair().secret
    body = game.members[owner].roster(game.rosters[owner]).message.shares
    pair.secret = genuine
    game.server.shares(game.people[owner].id, body)


def _owner_of_no_polynomial(game: Game, owner: int) -> None:
    """Deal one share that lies on no polynomial with the others, its hash signed."""
    with pytest.MonkeyPatch.context() as patch:
        split = shamir.split

        def crooked(*args: Any, **options: Any) -> NDArray[np.uint8]:
            shares = split(*args, **options)
            shares[:2] ^= 1
            return shares

        patch.setattr(shamir, "split", crooked)
        body = game.members[owner].roster(game.rosters[owner]).message.shares
    game.server.shares(game.people[owner].id, body)


@pytest.mark.parametrize(
    ("cheat", "lost", "words"),
    [
        (_owner_of_another_seed, False, "another seed than its own"),
        (_owner_of_another_key, True, "another mask key"),
        (_owner_of_no_polynomial, False, "another seed than its own"),
        (_owner_of_no_polynomial, True, "another mask key"),
    ],
)
@pytest.mark.parametrize("silent", [(), (4,)])
def test_an_owner_whose_shares_give_another_secret_is_named_and_the_round_is_void(
    cheat: Callable[[Game, int], None], lost: bool, words: str, silent: tuple[int, ...]
) -> None:
    game, owner = Game(7), 6
    rosters = game.gather()
    for place in range(6):
        step = game.members[place].roster(rosters[place])
        game.server.shares(game.people[place].id, step.message.shares)
    cheat(game, owner)
    game.fix_u2()
    game.to_released(lost=[owner] if lost else [], silent=silent)
    with pytest.raises(VoidRound, match=words) as caught:
        game.server.finish()
    assert caught.value.member == game.people[owner].id
    assert game.server.faults == []  # no holder is blamed for it


def test_an_owner_that_seals_bad_blobs_is_named_when_more_than_a_holders_say_so() -> None:
    """Each holder alone could be lying; of A + 1 = 2 one is honest."""
    game, owner = Game(5), 4  # k = 4, t = 3: two bad blobs are enough to void the round
    for place, body in _dealt(game).items():
        if place == owner:
            for sealed in body.blobs[:2]:
                sealed.blob = bytes(81)
            body = _signed_again(game, owner, body)  # noqa: PLW2901
        game.server.shares(game.people[place].id, body)
    game.fix_u2()
    game.to_released()
    with pytest.raises(VoidRound, match="bad shares") as caught:
        game.server.finish()
    assert caught.value.member == game.people[owner].id


def test_a_holder_that_keeps_a_share_back_has_nobody_named() -> None:
    game = Game(7).to_released(silent=[0])
    release = game.release(0)
    release.shares[5] = b""
    game.server.release(game.people[0].id, release)
    streams = game.server.finish()
    assert game.opened(range(7), streams) == game.truth(range(7))
    assert game.server.faults == []
