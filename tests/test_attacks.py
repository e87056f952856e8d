"""A server that lies about who survived, played against real members.

Attacks 1 to 3d and 16 of docs/protocol.md, section 10.2.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol import graph, keys, rules, unmasking
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.context import bitmap
from umbel.protocol.member import MemberSide
from umbel.protocol.scheme_a import State
from umbel.tests.actors import SPLIT, Game, names, refuses

if TYPE_CHECKING:
    from collections.abc import Callable

VICTIM = 50


def _votes(ballots: dict[int, pb.Vote]) -> pb.Votes:
    counted = [pb.CountedVote(position=p, signature=b.signature) for p, b in ballots.items()]
    return pb.Votes(votes=counted)


# ---- 3a: the neighbourhood of a victim ----------------------------------------------------------


def test_a_server_that_declares_a_victims_neighbours_dead_gets_no_share() -> None:
    game = Game(100).to_masked()
    numbers = game.server.numbers
    assert numbers == graph.Parameters(n=100, k=32, t=22, a=10, d=10, q=56)
    dead = set(game.around(VICTIM))
    alive = set(range(100)) - dead
    # Inconsistently: each holder of the victim's shares is told that it is alive itself.
    for place in dead:
        refuses(pb.REASON_SURVIVORS, partial(game.vote, place, game.call(place, alive | {place})))
    # Consistently: one list for all, in which the victim lives and its neighbours do not.
    for place in alive:
        refuses(
            pb.REASON_SURVIVORS, partial(game.vote, place, game.call(place, alive)), "32 of 100"
        )
    for place in dead:
        assert game.vote(place, game.call(place, alive)) is None
    # Nobody voted, so nobody can be made to release.
    for member in game.members:
        refuses(pb.REASON_VOTES, partial(member.votes, pb.Votes()))


class Trusting(MemberSide):
    """Scheme A with the vote and rule 3's look at the bitmap taken out, nothing else."""

    def believe(self, message: pb.Survivors) -> None:
        """Take the survivor set as the server says it."""
        self._u = self._positions(message.u, pb.REASON_SURVIVORS)
        self._check_survivors(self._u, message)
        self.state = State.VOTED


def test_that_server_unmasks_its_victim_where_vote_and_bitmap_checks_are_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "survivor_set", lambda *_: None)
    monkeypatch.setattr(rules, "quorum", lambda *_: None)
    game = Game(100).to_masked()
    dead = set(game.around(VICTIM))
    alive = set(range(100)) - dead
    answers: dict[int, list[bytes]] = {}
    for place, member in enumerate(game.members):
        member.__class__ = Trusting
        member.believe(game.call(place, alive))  # type: ignore[attr-defined]
        answers[place] = list(member.votes(pb.Votes()).message.release.shares)
    # Each holder answered once, for one list: nobody is in two of them.
    assert game.truth([VICTIM]) == _stripped(game, alive, answers)


def _stripped(game: Game, alive: set[int], answers: dict[int, list[bytes]]) -> bytearray:
    """Return the victim's vector without the masks that released shares take off."""
    p = game.server.numbers
    assert p is not None
    shares: dict[int, list[tuple[int, bytes]]] = {place: [] for place in range(p.n)}
    for holder, given in answers.items():
        for owner, share in zip(game.around(holder), given, strict=True):
            shares[owner].append((graph.point(owner, holder, p.n, p.k), share))
    commitments = {place: game.server._shares[place].commitment for place in range(p.n)}
    # Only the victim is in the sum; the masks it shares with anyone are those with the dead.
    everybody = frozenset({VICTIM} | set(game.around(VICTIM)))
    material = unmasking.Material(
        game.server.ctx, game.server.entries, p, everybody, frozenset({VICTIM}), commitments
    )
    return game.opened([VICTIM], unmasking.streams(material, shares))


def test_a_server_that_declares_one_more_dead_than_tolerated_gets_no_vote() -> None:
    game = Game(10).to_masked()
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(0, game.call(0, range(6))), "lost, 3 may be")
    assert game.vote(0, game.call(0, range(7))) is not None


# ---- 3: two survivor sets ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, 11])
def test_a_server_that_shows_two_halves_different_survivors_opens_at_most_one(n: int) -> None:
    """With one corrupt member that votes for both, as A = 1 allows."""
    game = Game(n).to_masked()
    p = game.server.numbers
    assert p is not None
    assert (p.a, p.q) == (1, (n + 1) // 2 + 1)
    first, second = set(range(n)) - {n - 1}, set(range(n)) - {n - 2}
    corrupt = game.people[0]
    half = 1 + (n - 2) // 2
    ballots: list[dict[int, pb.Vote]] = [{}, {}]
    for which, alive, voters in ((0, first, range(1, half)), (1, second, range(half, n - 2))):
        for place in voters:
            ballot = game.vote(place, game.call(place, alive))
            assert ballot is not None
            ballots[which][place] = ballot
        u2, u = (hashlib.sha256(bitmap(s, n)).digest() for s in (range(n), alive))
        forged = keys.sign(corrupt.signing, "survivors", game.server.ctx, u2, u)
        ballots[which][0] = pb.Vote(signature=forged)
    for which, voters in ((0, range(1, half)), (1, range(half, n - 2))):
        for place in voters:
            refuses(pb.REASON_VOTES, partial(game.members[place].votes, _votes(ballots[which])))


def test_a_server_that_mixes_the_votes_of_two_sets_releases_nothing() -> None:
    game = Game(10).to_masked()
    first, second = set(range(10)) - {9}, set(range(10)) - {8}
    ballots = {p: game.vote(p, game.call(p, first)) for p in range(5)}
    ballots |= {p: game.vote(p, game.call(p, second)) for p in range(5, 8)}
    mixed = {p: b for p, b in ballots.items() if b is not None}
    assert len(mixed) == 8
    for place in (0, 7):
        refuses(
            pb.REASON_VOTES,
            partial(game.members[place].votes, _votes(mixed)),
            "not for this survivor set",
        )


def test_two_sets_open_neither_secret_twice_even_where_the_vote_is_taken_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2t > k + A: the second wall. Half of the holders think that the victim is dead."""
    monkeypatch.setattr(rules, "quorum", lambda *_: None)
    game = Game(10).to_masked()
    p = game.server.numbers
    assert p is not None
    victim, everybody = 9, set(range(10))
    counts = {True: 0, False: 0}
    for holder in range(9):
        alive = everybody if holder % 2 else everybody - {victim}
        game.vote(holder, game.call(holder, alive))
        shares = game.members[holder].votes(pb.Votes()).message.release.shares
        share = shares[game.around(holder).index(victim)]
        sealed = game.server._blob(victim, holder)
        known = {True: sealed.seed_share_hash, False: sealed.mask_share_hash}
        counts[victim in alive] += hashlib.sha256(share).digest() == known[victim in alive]
    assert counts == {True: 4, False: 5}
    # The corrupt one answers for both.
    assert min(counts.values()) + p.a < p.t


# ---- 1 and 2: both secrets, twice ----------------------------------------------------------------


def test_a_server_that_asks_for_both_secrets_of_one_owner_gets_one_of_them() -> None:
    """Which of the two a holder gives follows from the agreed bitmap: no message can say more."""
    game = Game(6).to_released(lost=[5])
    for holder, release in game.released.items():
        for owner, share in zip(game.around(holder), release.shares, strict=True):
            sealed = game.server._blob(owner, holder)
            given = hashlib.sha256(share).digest()
            assert given == (sealed.mask_share_hash if owner == 5 else sealed.seed_share_hash)
    # A request is a list of votes, an answer one share an owner: there is no field to ask more.
    assert list(pb.Votes.DESCRIPTOR.fields_by_name) == ["votes"]
    assert list(pb.Release.DESCRIPTOR.fields_by_name) == ["shares"]


def test_a_server_that_asks_again_gets_the_same_bytes_and_for_another_set_nothing() -> None:
    """A server that lost its memory may ask again; whoever asks for something else is refused."""
    everybody = set(range(6))
    game = Game(6).to_masked()
    game.vote(2, game.call(2, everybody))
    voted = game.members[2].survivors(game.call(2, everybody))
    assert voted is not None
    assert voted.record is None
    first = game.members[2].survivors(game.call(2, everybody))
    assert first is not None
    assert first.message.SerializeToString() == voted.message.SerializeToString()
    refuses(pb.REASON_SURVIVORS, lambda: game.members[2].survivors(game.call(2, everybody - {5})))
    refuses(pb.REASON_SURVIVORS, lambda: game.members[2].survivors(game.call(2, everybody - {2})))

    game = Game(6).to_released()
    member, counted = game.members[2], game.counted[game.people[2].id]
    again, twice = member.votes(counted), member.votes(counted)
    assert (again.record, twice.record) == (None, None)
    assert again.message.release == game.released[2]
    assert again.message.SerializeToString() == twice.message.SerializeToString()
    refuses(pb.REASON_VOTES, lambda: member.votes(pb.Votes(votes=counted.votes[:1])))
    refuses(pb.REASON_SURVIVORS, lambda: member.survivors(game.call(2, everybody - {5})))
    member.close()
    refuses(pb.REASON_VOTES, lambda: member.votes(counted))
    refuses(pb.REASON_SURVIVORS, lambda: member.survivors(game.call(2, everybody)))


def test_a_server_that_asks_for_a_second_mask_or_other_keys_is_refused() -> None:
    game = Game(6).to_shared()
    game.mask(2)
    refuses(pb.REASON_SHARES, lambda: game.mask(2))
    refuses(pb.REASON_ROSTER, game.members[2].begin)
    refuses(pb.REASON_ROSTER, lambda: game.members[2].roster(pb.Roster()))


# ---- 3b: a thinner U2 ----------------------------------------------------------------------------


def test_a_client_that_was_shown_a_thinner_u2_is_left_out_and_its_neighbours_abort() -> None:
    game = Game(7).to_shared()
    thin = game.inbox(0, set(range(7)) - {6})
    header = game.mask(0, thin)
    for place in range(1, 7):
        game.mask(place)
        game.upload(place)
    # The honest server leaves it out, by name.
    names(game.people[0].id, lambda: game.server.header(game.people[0].id, header), "another set")
    # The lying one counts it as a survivor: every neighbour sees what it masked against.
    everybody = set(range(7))
    for place in range(1, 7):
        call = game.call(place, everybody)
        refuses(pb.REASON_SURVIVORS, partial(game.vote, place, call), "another U2")
        # And relabelling the header is no way out: it is signed.
        for one in call.masked:
            one.u2_hash = hashlib.sha256(bitmap(everybody, 7)).digest()
        refuses(pb.REASON_SURVIVORS, partial(game.vote, place, call), "did not sign")


def test_a_server_that_hides_the_header_of_a_thinned_client_gets_no_vote() -> None:
    game = Game(6).to_masked()
    short = game.call(1, range(6))
    del short.masked[2]
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(1, short), "4 headers")
    doubled = game.call(1, range(6))
    doubled.masked[2].CopyFrom(doubled.masked[3])
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(1, doubled), "did not sign its vector")


def test_a_server_that_drops_too_many_share_senders_gets_no_vector() -> None:
    game = Game(7).to_shared()  # D = 2
    refuses(pb.REASON_SHARES, lambda: game.mask(0, game.inbox(0, range(4))), "3 of 7")
    refuses(pb.REASON_SHARES, lambda: game.mask(0, game.inbox(0, range(1, 7))), "not among")


# ---- 3c: the member's own bit --------------------------------------------------------------------


def test_a_client_whose_vector_is_not_whole_never_votes_for_itself() -> None:
    game = Game(6).to_shared()
    for place in range(6):
        game.mask(place)
        if place:
            game.upload(place)
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(0, game.call(0, range(6))))


def test_a_client_outside_the_survivors_neither_votes_nor_releases() -> None:
    game = Game(6).to_masked()
    others = range(1, 6)
    assert game.vote(0, game.call(0, others)) is None
    ballots = {p: b for p in others if (b := game.vote(p, game.call(p, others))) is not None}
    refuses(pb.REASON_VOTES, lambda: game.members[0].votes(_votes(ballots)))
    # Not even if it is told afterwards that it is in.
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(0, game.call(0, range(6))))


# ---- rule 3's other checks, rule 4 ---------------------------------------------------------------


def test_a_server_that_names_a_survivor_which_sent_no_shares_gets_no_vote() -> None:
    game = Game(7).to_shared(silent=[6])
    for place in range(6):
        game.mask(place)
        game.upload(place)
    game.headers[6] = game.headers[5]
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(0, game.call(0, range(7))), "sent no shares")


def test_a_server_that_writes_survivors_beyond_the_roster_gets_no_vote() -> None:
    """Two bitmaps for one set would have two hashes."""
    game = Game(6).to_masked()
    for bits in (b"\x7f", b"\x3f\x00", b""):
        call = game.call(0, range(6))
        call.u = bits
        refuses(pb.REASON_SURVIVORS, partial(game.vote, 0, call))


def test_a_server_that_reports_other_counts_than_the_bitmap_changes_nothing() -> None:
    """3d: `members` of a roster is for plain rounds; the roster's own length decides."""
    game = Game(6)
    rosters = game.gather()
    for roster in rosters:
        roster.members = 100
    game.deal(rosters)
    assert [member.numbers for member in game.members] == [graph.parameters(6)] * 6
    assert list(pb.Survivors.DESCRIPTOR.fields_by_name) == ["u", "masked"]  # no count at all


def _short_of_quorum(ballots: dict[int, pb.Vote]) -> list[pb.CountedVote]:
    return list(_votes(dict(list(ballots.items())[:4])).votes)


def _with_a_repeated_vote(ballots: dict[int, pb.Vote]) -> list[pb.CountedVote]:
    four = _short_of_quorum(ballots)
    return [*four, four[0]]


def _with_a_forged_vote(ballots: dict[int, pb.Vote]) -> list[pb.CountedVote]:
    four = _short_of_quorum(ballots)
    return [*four, pb.CountedVote(position=5, signature=four[0].signature)]


def _with_the_vote_of_a_lost_member(ballots: dict[int, pb.Vote]) -> list[pb.CountedVote]:
    """It is corrupt, and votes for the set that it is not in."""
    return [*_short_of_quorum(ballots), pb.CountedVote(position=6, signature=ballots[6].signature)]


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        (_short_of_quorum, "4 votes, the quorum is 5"),
        (_with_a_repeated_vote, "two votes"),
        (_with_a_forged_vote, "not for this survivor set"),
        (_with_the_vote_of_a_lost_member, "no survivor"),
    ],
)
def test_a_server_without_a_quorum_of_distinct_survivors_gets_no_share(
    votes: Callable[[dict[int, pb.Vote]], list[pb.CountedVote]], words: str
) -> None:
    game = Game(7).to_masked(lost=[6])
    ballots = game.ballots(game.server.end_uploads())
    u2, u = (hashlib.sha256(bitmap(range(size), 7)).digest() for size in (7, 6))
    signature = keys.sign(game.people[6].signing, "survivors", game.server.ctx, u2, u)
    ballots[6] = pb.Vote(signature=signature)
    refuses(pb.REASON_VOTES, lambda: game.members[0].votes(pb.Votes(votes=votes(ballots))), words)


# ---- 16: a late vector ---------------------------------------------------------------------------


def test_a_vector_that_arrives_after_the_freeze_is_never_unmasked() -> None:
    game = Game(6).to_released(lost=[5])
    late = game.people[5].id
    names(late, lambda: game.server.header(late, game.headers[5]))
    names(late, lambda: game.server.delivered(late, hashlib.sha256(game.masked[5]).digest()))
    streams = game.server.finish()
    assert game.opened(range(5), streams) == game.truth(range(5))
    # The server knows every pair mask of the late vector, and takes it off. Its own mask, of
    # which nobody gave a share away, stays: this is what the double mask is for.
    pairs = [(key, -sign) for key, sign in streams[5:]]
    assert len(pairs) == 5
    bare = np.frombuffer(game.opened([5], pairs)[:SPLIT], "<u4")
    hidden = np.frombuffer(game.truth([5])[:SPLIT], "<u4")
    own = bare - hidden
    assert len(set(own.tolist())) == own.size
    assert np.unpackbits(own.view(np.uint8)).mean() == pytest.approx(0.5, abs=0.08)  # 2048 bits
