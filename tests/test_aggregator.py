"""The server's engine of scheme A: what it routes, counts, tolerates and takes off the sum.

What members can do to it, and who is named for it, is in test_attacks_members.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from umbel.protocol.context import RosterEntry
from umbel.protocol.errors import TooFewMembers
from umbel.protocol.graph import Parameters
from umbel.protocol.scheme_a import State
from umbel.tests.actors import PARAMS, Game, agreed, verified
from umbel.tests.transcript import lp, sha

TOLERATED = {3: 0, 4: 0, 5: 1, 6: 1, 7: 2}
"""Losses D of n members with A = 1, from the published table."""


# ---- what it routes --------------------------------------------------------------------------


def test_the_roster_stands_in_the_order_of_arrival() -> None:
    game = Game(5)
    order = (3, 0, 4, 1, 2)
    bodies = {place: game.members[place].begin().message.keys for place in order}
    for place in order:
        game.server.keys(verified(game.people[place]), bodies[place])
    assert game.server.gathered == 5
    rosters = game.server.freeze()
    entries = [
        RosterEntry(who.id, who.fingerprint, bodies[i].mask_pk, bodies[i].seal_pk)
        for i in order
        for who in [game.people[i]]
    ]
    packed = b"".join(b"".join(e) for e in entries)
    for at, place in enumerate(order):
        message = rosters[game.people[place].id]
        assert message.entries == packed
        assert message.members == 5
        # On the complete graph the neighbours stand behind the member, around the ring.
        around = [order[(at + i) % 5] for i in range(1, 5)]
        assert list(message.keys_signatures) == [bodies[i].signature for i in around]
    assert game.server.ctx == sha(lp(b"umbel/ctx", game.terms.ctx0(), sha(packed), bytes(32)))
    assert game.server.numbers == Parameters(5, 4, 3, 1, 1, 4)
    assert game.server.ids((0, 4)) == (game.people[3].id, game.people[2].id)


def test_who_left_before_the_freeze_is_in_no_roster() -> None:
    game = Game(4)
    for who, member in zip(game.people, game.members, strict=True):
        game.server.keys(verified(who), member.begin().message.keys)
    game.server.drop(game.people[2].id)
    game.server.drop(b"nobody")
    rosters = game.server.freeze()
    assert set(rosters) == {game.people[i].id for i in (0, 1, 3)}
    assert game.server.numbers == Parameters(3, 2, 2, 1, 0, 3)


def test_on_the_ring_only_neighbours_get_blobs_and_headers() -> None:
    """N = 40: k = 14, so seven places to either side; 3 sent no shares, 6 no vector."""
    game = Game(40).to_shared(silent=(3,))
    whole = [v for v in range(40) if v not in {3, 6}]
    ring = [*range(-7, 0), *range(1, 8)]
    for place, inbox in game.inboxes.items():
        around = [(place + i) % 40 for i in ring]
        assert len(inbox.blobs) == len([v for v in around if v != 3])
        assert inbox.u2 == (2**40 - 1 - 2**3).to_bytes(5, "little")
    for place in whole:
        game.mask(place)
        game.upload(place)
    for who, call in game.server.end_uploads().items():
        around = [(game.place(who) + i) % 40 for i in ring]
        expected = [game.headers[v] for v in around if v in whole]
        assert list(call.masked) == expected
        assert call.u == (2**40 - 1 - 2**3 - 2**6).to_bytes(5, "little")
    assert game.server.u == tuple(whole)


# ---- what it tolerates -----------------------------------------------------------------------


@pytest.mark.parametrize("n", TOLERATED)
def test_every_trip_bears_d_losses_and_names_the_tolerance_at_one_more(n: int) -> None:
    d = TOLERATED[n]
    words = f": {n} members tolerate {d} losses"
    gone = tuple(range(d + 1))
    with pytest.raises(TooFewMembers, match=f"{n - d - 1} of {n} sent shares{words}"):
        Game(n).to_shared(silent=gone)
    with pytest.raises(TooFewMembers, match=f"{n - d - 1} of {n} sent a whole vector{words}"):
        Game(n).to_masked(lost=gone).server.end_uploads()
    game = Game(n).to_released(silent=gone)
    assert not game.server.solvable
    with pytest.raises(TooFewMembers, match=f"of {n} sent shares of the others{words}"):
        game.server.finish()
    assert len(Game(n).to_shared(silent=gone[:d]).inboxes) == n - d
    assert len(Game(n).to_masked(lost=gone[:d]).server.end_uploads()) == n - d
    assert Game(n).to_released(silent=gone[:d]).server.solvable


@pytest.mark.parametrize(("n", "q"), [(3, 3), (4, 3), (5, 4), (6, 4), (7, 5), (10, 6)])
def test_a_quorum_is_q_votes(n: int, q: int) -> None:
    game = Game(n).to_masked()
    ballots = game.ballots(game.server.end_uploads())
    for place in range(q - 1):
        game.server.vote(game.people[place].id, ballots[place])
    assert not game.server.has_quorum
    with pytest.raises(TooFewMembers, match=f"{q - 1} votes, the quorum is {q}: {n} members"):
        game.server.quorum()
    assert game.server.state is State.VOTING
    game.server.vote(game.people[q - 1].id, ballots[q - 1])
    assert game.server.has_quorum
    votes = game.server.quorum()
    assert set(votes) == {who.id for who in game.people}
    assert [v.position for v in votes[game.people[0].id].votes] == list(range(q))


def test_the_floors_hold_whatever_d_says() -> None:
    strict = replace(PARAMS, min_survivors=5)
    game = Game(5, terms=agreed(strict)).to_masked(lost=(0,))
    with pytest.raises(TooFewMembers, match="4 survivors, at least 5 are needed"):
        game.server.end_uploads()
    small = Game(2)
    for who, member in zip(small.people, small.members, strict=True):
        small.server.keys(verified(who), member.begin().message.keys)
    with pytest.raises(TooFewMembers, match=r"2 members sent keys: .*at least 3 members, got 2"):
        small.server.freeze()


def test_a_failed_trip_leaves_the_state_where_it_was() -> None:
    game = Game(3)
    game.server.keys(verified(game.people[0]), game.members[0].begin().message.keys)
    with pytest.raises(TooFewMembers):
        game.server.freeze()
    assert str(game.server.state) == "gathering keys"
    for who, member in list(zip(game.people, game.members, strict=True))[1:]:
        game.server.keys(verified(who), member.begin().message.keys)
    game.server.freeze()
    with pytest.raises(TooFewMembers):
        game.server.end_shares()
    assert str(game.server.state) == "gathering shares"


# ---- what it takes off -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_the_opened_sum_is_the_sum_of_the_survivors(n: int) -> None:
    """Every way of losing up to D members between the shares and the releases, one of each."""
    d = TOLERATED[n]
    for count in range(d + 1):
        for gone in combinations(range(n), count):
            for split in range(count + 1):
                unshared, lost = gone[:split], gone[split:]
                game = Game(n).to_shared(unshared)
                for place in set(range(n)) - set(unshared):
                    game.mask(place)
                    if place not in lost:
                        game.upload(place)
                alive = [v for v in range(n) if v not in gone]
                _release(game, alive)
                streams = game.server.finish()
                assert game.opened(alive, streams) == game.truth(alive)
                assert len(streams) == len(alive) + len(lost) * len(alive)
                assert game.server.faults == []


def _release(game: Game, alive: list[int]) -> None:
    ballots = game.ballots(game.server.end_uploads())
    for place in alive:
        game.server.vote(game.people[place].id, ballots[place])
    game.counted = game.server.quorum()
    for place in alive:
        game.server.release(game.people[place].id, game.release(place))


def test_the_sum_of_a_ring_opens_with_losses_at_every_trip() -> None:
    game = Game(40).to_shared(silent=(0,))
    alive = [v for v in range(1, 40) if v not in {20, 21}]
    for place in range(1, 40):
        game.mask(place)
        if place in alive:
            game.upload(place)
    ballots = game.ballots(game.server.end_uploads())
    voting = [v for v in alive if v != 30]
    for place in voting:
        game.server.vote(game.people[place].id, ballots[place])
    game.counted = game.server.quorum()
    for place in voting:
        game.server.release(game.people[place].id, game.release(place))
    assert game.server.solvable
    assert game.opened(alive, game.server.finish()) == game.truth(alive)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_it_is_solvable_at_the_first_moment_that_it_is(n: int) -> None:
    """Each of t + 1 releasing survivors lacks its own share: t holders are left to it."""
    t = n // 2 + 1
    game = Game(n).to_masked()
    ballots = game.ballots(game.server.end_uploads())
    for place, ballot in ballots.items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    found = []
    for place in range(t + 1):
        game.server.release(game.people[place].id, game.release(place))
        found.append(game.server.solvable)
    assert found == [False] * t + [True]
    everybody = list(range(n))
    assert game.opened(everybody, game.server.finish()) == game.truth(everybody)
