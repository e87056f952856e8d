"""A member of scheme A: what it signs, journals, masks, deals, releases and forgets.

What a lying server cannot make it do is in test_attacks*.py.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from umbel.protocol import journal
from umbel.protocol.context import RosterEntry
from umbel.protocol.errors import Refused
from umbel.protocol.scheme_a import State
from umbel.tests import transcript
from umbel.tests.actors import SPLIT, Game
from umbel.tests.transcript import lp, sha

if TYPE_CHECKING:
    from umbel.protocol.member import MemberSide
    from umbel.protocol.standpoint import Identity


def signed(who: Identity, message: str, signature: bytes, *fields: bytes) -> None:
    """Check a signature with the library alone; it raises if it is none."""
    label = b"umbel/A/1/" + message.encode()
    who.signing.public_key().verify(signature, label + lp(*fields))


def bits(places: tuple[int, ...], n: int) -> bytes:
    return sum(1 << i for i in places).to_bytes(-(-n // 8), "little")


def test_the_whole_course_of_one_member() -> None:
    """Every message with its context, its signature and its record, field by field."""
    game = Game(5)
    zero, who, terms = game.members[0], game.people[0], game.terms
    first = zero.begin()
    ctx0, mine = terms.ctx0(), first.message.keys
    assert first.message.ctx == ctx0
    assert first.record == journal.Keyed(ctx0)
    signed(who, "keys", mine.signature, ctx0, who.id, mine.mask_pk, mine.seal_pk)
    zero.begin = lambda: first  # type: ignore[method-assign]  # its keys are out already
    rosters = game.gather()
    roster = sha(rosters[0].entries)
    ctx = sha(lp(b"umbel/ctx", ctx0, roster, bytes(32)))
    second = zero.roster(rosters[0])
    dealt = second.message.shares
    assert second.record is None
    assert (second.message.ctx, zero.ctx) == (ctx, ctx)
    hashes = b"".join(b.mask_share_hash + b.seed_share_hash for b in dealt.blobs)
    blobs = sha(b"".join(b.blob for b in dealt.blobs))
    signed(who, "shares", dealt.signature, ctx, who.id, dealt.commitment, hashes, blobs)
    game.server.shares(who.id, dealt)
    for place in range(1, 5):
        step = game.members[place].roster(rosters[place])
        game.server.shares(game.people[place].id, step.message.shares)
    game.fix_u2()
    vector = bytearray(game.plain[0])
    third = zero.inbox(game.inboxes[0], vector, SPLIT)
    masked, u2 = third.message.masked, sha(bits((0, 1, 2, 3, 4), 5))
    assert third.message.ctx == ctx
    assert masked.bytes == len(vector)
    assert third.record == journal.Masked(ctx, terms.run, terms.model, sha(bytes(vector)))
    assert (masked.header.u2_hash, masked.header.y_hash) == (u2, sha(bytes(vector)))
    signed(who, "masked", masked.header.signature, ctx, who.id, u2, sha(bytes(vector)))


def test_vote_and_release_are_signed_and_journalled() -> None:
    game = Game(5).to_masked(lost=(3,))
    zero, who = game.members[0], game.people[0]
    calls = game.server.end_uploads()
    step = zero.survivors(calls[who.id])
    assert step is not None
    u2, u = sha(bits((0, 1, 2, 3, 4), 5)), sha(bits((0, 1, 2, 4), 5))
    ids = tuple(sorted(game.people[i].id for i in (0, 1, 2, 4)))
    assert step.record == journal.Voted(zero.ctx, u2, ids)
    assert step.message.ctx == zero.ctx
    assert (step.message.vote.u2_hash, step.message.vote.u_hash) == (u2, u)
    signed(who, "survivors", step.message.vote.signature, zero.ctx, u2, u)
    assert zero.survivor_ids() == frozenset(ids)
    for place in (1, 2, 4):
        ballot = game.vote(place, calls[game.people[place].id])
        assert ballot is not None
        game.server.vote(game.people[place].id, ballot)
    game.server.vote(who.id, step.message.vote)
    last = zero.votes(game.server.quorum()[who.id])
    assert last.record == journal.Released(zero.ctx)
    assert last.message.ctx == zero.ctx


@pytest.mark.parametrize(("n", "lost"), [(3, ()), (5, (1,)), (7, (0, 6)), (34, (5, 11, 12))])
def test_the_vector_is_hidden_under_its_own_and_its_neighbours_streams(
    n: int, lost: tuple[int, ...]
) -> None:
    """Y = x + PRG(self) + or - PRG(pair) over N(u) and U2: the smaller id adds."""
    game = Game(n).to_shared(silent=lost)
    entries = RosterEntry.unpack_all(game.rosters[0].entries)
    k = game.server.numbers.k if game.server.numbers else 0
    around = range(1, n) if k == n - 1 else [*range(-k // 2, 0), *range(1, k // 2 + 1)]
    for place in range(n):
        if place in lost:
            continue
        member, own = game.members[place], game.people[place].id
        assert member._mask is not None
        secret, seed = bytes(member._mask.secret), bytes(member._seed)
        streams = [(transcript.self_key(seed, member.ctx, own), 1)]
        for offset in around:
            at = (place + offset) % n
            if at not in lost:
                other = entries[at]
                key = transcript.pair_key(secret, other.mask_pk, member.ctx, own, other.id)
                streams.append((key, 1 if own < other.id else -1))
        game.mask(place)
        assert bytes(game.masked[place]) == transcript.moved(game.plain[place], SPLIT, streams)


def test_any_t_holders_have_the_secrets_and_the_owner_has_no_share() -> None:
    game = Game(6).to_masked()
    owner, p = game.members[2], game.server.numbers
    assert p is not None
    assert owner._mask is not None
    held = {
        # The point of a holder is 1 + its place in the owner's ring order, here +1 .. +5.
        (holder - 2) % 6: game.members[holder]._held[2]
        for holder in range(6)
        if holder != 2
    }
    assert 2 not in owner._held
    shares = [(x, bytes(mask + seed)) for x, (mask, seed) in held.items()]
    secret = bytes(owner._mask.secret + owner._seed)
    for chosen in combinations(shares, p.t):
        assert transcript.combined(chosen) == secret
    for chosen in combinations(shares, p.t - 1):
        assert transcript.combined(chosen) != secret
    commitment = transcript.commitment(secret[32:], owner.ctx, game.people[2].id)
    assert game.server._shares[2].commitment == commitment


def test_it_releases_a_seed_share_of_the_living_and_a_key_share_of_the_lost() -> None:
    game = Game(7).to_shared(silent=(6,))
    for place in range(6):
        game.mask(place)
    for place in range(5):
        game.upload(place)  # 5 is lost after its shares, 6 before them
    ballots = game.ballots(game.server.end_uploads())
    for place, ballot in ballots.items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    held = {
        place: {v: (bytes(a), bytes(b)) for v, (a, b) in game.members[place]._held.items()}
        for place in range(5)
    }
    for place in range(5):
        order = [v % 7 for v in range(place + 1, place + 7) if v % 7 != 6]
        expected = [held[place][v][0 if v == 5 else 1] for v in order]
        assert list(game.release(place).shares) == expected


# ---- secrets ---------------------------------------------------------------------------------


def secrets_of(member: MemberSide) -> list[bytearray]:
    """Return the very buffers in which a member keeps its secrets."""
    pairs = [pair.secret for pair in (member._mask, member._seal) if pair is not None]
    return [*pairs, member._seed, *(half for both in member._held.values() for half in both)]


@pytest.mark.parametrize("end", ["release", "excluded", "close", "wipe"])
def test_secrets_are_zeroed_at_the_end(end: str) -> None:
    game = Game(5)
    if end == "release":
        game.to_released(silent=(0,))
    else:
        game.to_masked()
    zero = game.members[0]
    kept = secrets_of(zero)
    assert len(kept) == 3 + 2 * 4
    assert all(any(buffer) for buffer in kept)
    if end == "release":
        game.release(0)
    elif end == "excluded":
        assert zero.survivors(game.call(0, (1, 2, 3, 4))) is None
    elif end == "close":
        zero.close()
    else:
        zero.wipe()
    assert not any(any(buffer) for buffer in kept)
    assert (zero._mask, zero._seal, zero._held) == (None, None, {})


def test_the_keys_that_open_shares_are_zeroed_with_the_vector_masked_or_the_attempt_over() -> None:
    game = Game(5).to_shared()
    masking, giving_up = game.members[0], game.members[1]
    for member, end in ((masking, lambda: game.mask(0)), (giving_up, giving_up.wipe)):
        kept = list(member._opening.values())
        assert len(kept) == 4
        assert all(any(key) for key in kept)
        end()
        assert not any(any(key) for key in kept)
        assert member._opening == {}


def test_closing_is_journalled_for_the_context_there_is() -> None:
    game = Game(3)
    early, late = game.members[0], game.members[1]
    early.begin()
    assert early.close() == journal.Closed(early.ctx0)
    assert early.close() == journal.Closed(early.ctx0)  # as often as one likes
    game = Game(3).to_shared()
    late = game.members[1]
    assert late.close() == journal.Closed(late.ctx)
    assert late.ctx != late.ctx0
    assert late.state is State.CLOSED


def test_nothing_secret_is_shown() -> None:
    game = Game(3).to_shared()
    zero, who = game.members[0], game.people[0]
    assert zero._mask is not None
    shown = repr(who) + repr(zero) + repr(zero._at) + repr(zero._mask)
    assert "Ed25519" not in shown
    assert "entropy" not in shown
    for secret in (zero._mask.secret, zero._seed):
        assert bytes(secret).hex() not in shown
        assert repr(bytes(secret)) not in shown


def test_every_attempt_has_its_own_keys() -> None:
    games = [Game(4).to_shared() for _ in range(2)]
    buffers = [bytes(b) for game in games for m in game.members for b in secrets_of(m)]
    assert len(set(buffers)) == len(buffers) == 2 * 4 * 3


# ---- what it does not know yet ---------------------------------------------------------------


def test_a_certificate_that_never_came_is_refused_by_name() -> None:
    game = Game(4)
    rosters = game.gather()
    del game.certificates[game.people[2].fingerprint]
    with pytest.raises(Refused, match=r"^certificate: "):
        game.members[0].roster(rosters[0])
    game.members[2].close()
