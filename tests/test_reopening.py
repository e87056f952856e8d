"""A server that forgot everything after the survivors were fixed, and its successor.

The sum is opened from what was kept and what the members still hold, whatever the moment of the
loss; the expected sum is that of the members' own vectors, added by numpy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import BadCertificate, Malformed, PeerError, TooFewMembers
from umbel.protocol.reopening import Reopenable
from umbel.protocol.scheme_a import OutOfOrder, State
from umbel.protocol.transcript import Transcript
from umbel.tests.actors import NOW, Game, agreed, refuses, verifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from umbel.protocol.verification import Member

MOMENTS = ("asked", "one vote", "quorum", "one release", "all released")


def member_of(der: bytes) -> Member:
    """Verify a certificate as a successor does."""
    return verifier().member(der, NOW)


def kept(game: Game) -> bytes:
    """Return what the game's server writes at this moment."""
    by_id = {who.id: who.certificate for who in game.people}
    return game.server.transcript(by_id.__getitem__).pack()


def lose(game: Game, moment: str) -> bytes:
    """Play to the moment at which the server is lost; return what it kept."""
    calls = game.server.end_uploads()
    data = kept(game)
    if moment == "asked":
        return data
    ballots = game.ballots(calls)
    if moment == "one vote":
        game.server.vote(game.people[min(ballots)].id, ballots[min(ballots)])
        return data
    for place, ballot in ballots.items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    if moment != "quorum":
        count = 1 if moment == "one release" else len(ballots)
        for place in sorted(ballots)[:count]:
            game.server.release(game.people[place].id, game.release(place))
    return data


def succeed(game: Game, data: bytes, silent: Iterable[int] = ()) -> Reopenable:
    """Let a successor go on with the members that still answer, to the releases."""
    gone = set(silent)
    game.server = Reopenable(game.terms)
    calls = game.server.reopen(Transcript.unpack(data), member_of)
    ballots = game.ballots(
        {who: call for who, call in calls.items() if game.place(who) not in gone}
    )
    for place, ballot in ballots.items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    for place in ballots:
        game.server.release(game.people[place].id, game.release(place))
    return game.server


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_a_successor_opens_the_sum_of_the_same_survivors(n: int, moment: str) -> None:
    """D losses before the survivors are fixed: 0, 0, 1 and 2, from the published table."""
    for lost in combinations(range(n), {3: 0, 4: 0, 5: 1, 7: 2}[n]):
        game = Game(n).to_masked(lost)
        alive = tuple(i for i in range(n) if i not in lost)
        server = succeed(game, lose(game, moment))
        assert server.u == alive
        assert game.opened(alive, server.finish()) == game.truth(alive)


def test_a_member_that_lost_its_secrets_with_the_server_counts_as_a_loss() -> None:
    """Seven members tolerate two losses in all; three are one too many."""
    game = Game(7).to_masked()
    data = lose(game, "quorum")
    everybody = tuple(range(7))
    server = succeed(game, data, silent=(2, 5))
    assert game.opened(everybody, server.finish()) == game.truth(everybody)
    with pytest.raises(TooFewMembers, match="4 votes, the quorum is 5: 7 members tolerate 2"):
        succeed(game, data, silent=(0, 2, 5))


def test_a_successor_keeps_what_its_predecessor_kept() -> None:
    game = Game(5).to_masked(lost=(3,))
    data = lose(game, "one vote")
    server = Reopenable(game.terms)
    server.reopen(Transcript.unpack(data), member_of)
    assert server.state is State.VOTING
    by_id = {who.id: who.certificate for who in game.people}
    assert server.transcript(by_id.__getitem__).pack() == data
    with pytest.raises((OutOfOrder, PeerError)):
        server.reopen(Transcript.unpack(data), member_of)


def test_only_the_same_attempt_is_taken_up() -> None:
    game = Game(5).to_masked()
    data = lose(game, "asked")
    other = Reopenable(agreed(attempt=1))
    with pytest.raises(PeerError, match="its keys are not signed for this round's ctx0"):
        other.reopen(Transcript.unpack(data), member_of)
    found = Transcript.unpack(data)
    changed = Transcript(
        ctx0=found.ctx0,
        ctx=bytes(32),
        members=found.members,
        shares=found.shares,
        headers=found.headers,
    )
    with pytest.raises(Malformed, match="transcript: context: expected that of these terms"):
        Reopenable(game.terms).reopen(changed, member_of)
    with pytest.raises(BadCertificate):
        Reopenable(game.terms).reopen(found, lambda _der: member_of(b"none"))


def test_too_few_survivors_in_a_transcript_open_nothing() -> None:
    """It is its own file, and whoever can write it must still not get a smaller set opened."""
    game = Game(7).to_masked()
    found = Transcript.unpack(lose(game, "asked"))
    fewer = Transcript(
        ctx0=found.ctx0,
        ctx=found.ctx,
        members=found.members,
        shares=found.shares,
        headers={i: found.headers[i] for i in (0, 1, 2, 3)},
    )
    with pytest.raises(TooFewMembers, match="4 of 7 sent a whole vector"):
        Reopenable(game.terms).reopen(fewer, member_of)
    # Another set within the tolerance is not what the members voted for: they refuse.
    game.ballots({who.id: game.server.call(i) for i, who in enumerate(game.people)})
    another = Transcript(
        ctx0=found.ctx0,
        ctx=found.ctx,
        members=found.members,
        shares=found.shares,
        headers={i: found.headers[i] for i in range(6)},
    )
    calls = Reopenable(game.terms).reopen(another, member_of)
    for place in range(6):
        call = calls[game.people[place].id]
        refuses(pb.REASON_SURVIVORS, partial(game.vote, place, call), "voted for another")


def test_a_transcript_whose_members_dealt_too_few_shares_is_refused() -> None:
    game = Game(5).to_masked()
    found = Transcript.unpack(lose(game, "asked"))
    shares = {i: pb.Shares(commitment=s.commitment) for i, s in found.shares.items()}
    with pytest.raises(Malformed, match=r"shares of a member: expected 4, got \[0\]"):
        Reopenable(game.terms).reopen(replace(found, shares=shares), member_of)
