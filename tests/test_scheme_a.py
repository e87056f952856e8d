"""The table of scheme A, and that neither role takes a step that is not in it.

The order of the steps is written down here by hand; that docs/protocol.md draws the same table
is checked in test_docs.py.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import PeerError, Refused
from umbel.protocol.scheme_a import TABLE, Event, OutOfOrder, Role, State, after, diagram
from umbel.tests.actors import SPLIT, Game, verified

if TYPE_CHECKING:
    from collections.abc import Callable

    from umbel.protocol.member import MemberSide

M, S, E = Role.MEMBER, State, Event
MEMBER_COURSE = [
    (S.TRAINED, E.BEGIN), (S.KEYED, E.ROSTER), (S.SHARED, E.INBOX), (S.MASKED, E.DELIVERED),
    (S.SENT, E.SURVIVORS), (S.VOTED, E.VOTES), (S.RELEASED, E.CLOSE), (S.CLOSED, E.CLOSE),
]  # fmt: skip
SERVER_COURSE = [
    (S.GATHERING, E.FREEZE), (S.SHARING, E.END_SHARES), (S.SUMMING, E.END_UPLOADS),
    (S.VOTING, E.QUORUM), (S.UNMASKING, E.FINISH),
]  # fmt: skip
GATHERED = {
    S.GATHERING: [E.KEYS], S.SHARING: [E.SHARES], S.SUMMING: [E.HEADER, E.DELIVERED],
    S.VOTING: [E.VOTE], S.UNMASKING: [E.RELEASE],
}  # fmt: skip
ASKED_AGAIN = [(S.VOTED, E.SURVIVORS), (S.RELEASED, E.SURVIVORS), (S.RELEASED, E.VOTES)]


def expected() -> dict[tuple[Role, State, Event], State]:
    """Return the table as this page has it."""
    table = {}
    ends = [*(state for state, _ in MEMBER_COURSE[1:]), S.CLOSED]
    for (state, event), target in zip(MEMBER_COURSE, ends, strict=True):
        table[M, state, event] = target
        table[M, state, E.CLOSE] = S.CLOSED
    for state in (S.MASKED, S.SENT):
        table[M, state, E.EXCLUDED] = S.CLOSED
    table.update({(M, state, event): state for state, event in ASKED_AGAIN})
    ends = [*(state for state, _ in SERVER_COURSE[1:]), S.SUMMED]
    for (state, event), target in zip(SERVER_COURSE, ends, strict=True):
        table[Role.SERVER, state, event] = target
        table.update({(Role.SERVER, state, again): state for again in GATHERED[state]})
    table[Role.SERVER, S.SHARING, E.REOPEN] = S.SUMMING
    return table


def test_the_table_is_the_courses_of_the_two_roles() -> None:
    assert expected() == TABLE


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_what_the_table_does_not_have_is_out_of_order(
    role: Role, state: State, event: Event
) -> None:
    target = expected().get((role, state, event))
    if target is not None:
        assert after(role, state, event) is target
    else:
        with pytest.raises(OutOfOrder, match=f"{role} in state `{state}` cannot take `{event}`"):
            after(role, state, event)


@pytest.mark.parametrize(("role", "start"), [(M, S.TRAINED), (Role.SERVER, S.GATHERING)])
def test_every_state_is_reached_from_the_first(role: Role, start: State) -> None:
    reached, edge = {start}, [start]
    while edge:
        state = edge.pop()
        new = {to for (who, at, _), to in TABLE.items() if (who, at) == (role, state)} - reached
        reached |= new
        edge += new
    mentioned = {at for who, at, _ in TABLE if who is role}
    mentioned |= {to for (who, _, _), to in TABLE.items() if who is role}
    assert reached == mentioned


def test_a_member_says_everything_once_and_nothing_after_the_end() -> None:
    order = [state for state, _ in MEMBER_COURSE]
    for (who, at, event), to in TABLE.items():
        if who is M and (at, event) in ASKED_AGAIN:
            assert to is at
        elif who is M and event is not E.CLOSE:
            assert order.index(to) > order.index(at)
    assert {e for (who, at, e) in TABLE if (who, at) == (M, S.CLOSED)} == {E.CLOSE}
    assert {at for (who, at, e) in TABLE if who is M and e is E.VOTES} == {S.VOTED, S.RELEASED}


def test_the_server_closes_each_gathering_once() -> None:
    order = [state for state, _ in SERVER_COURSE] + [S.SUMMED]
    for before, then in pairwise(order):
        steps = {to for (who, at, _), to in TABLE.items() if (who, at) == (Role.SERVER, before)}
        assert steps == {before, then}
    assert not [key for key in TABLE if key[1] is S.SUMMED]


@pytest.mark.parametrize("role", Role)
def test_the_diagram_has_one_arrow_for_each_step(role: Role) -> None:
    first, *arrows = diagram(role).splitlines()
    assert first == "stateDiagram-v2"
    drawn = set()
    for line in arrows:
        at, rest = line.strip().split(" --> ")
        to, event = rest.split(": ")
        drawn.add((at.replace("_", " "), event, to.replace("_", " ")))
    steps = {(str(a), str(e), str(to)) for (who, a, e), to in TABLE.items() if who is role}
    assert drawn == steps
    assert len(arrows) == len(steps)


# ---- both roles keep to it -------------------------------------------------------------------


def member_at(state: State) -> tuple[Game, MemberSide]:
    """Return a game and its member 0, led to this state by the honest course."""
    game = Game(4)
    if state is S.KEYED:
        game.gather()
    elif state is S.SHARED:
        game.to_shared()
    elif state is S.MASKED:
        game.to_shared()
        game.mask(0)
    elif state is S.SENT:
        game.to_masked()
    elif state is not S.TRAINED:
        game.to_released(silent=(0,) if state is S.VOTED else ())
    zero = game.members[0]
    if state is S.CLOSED:
        zero.close()
    return game, zero


def member_steps(game: Game, zero: MemberSide) -> dict[Event, Callable[[], object]]:
    """Return what a server can make a member do, each with a message that fits the game."""
    roster = game.rosters[0] if game.rosters else pb.Roster()
    inbox = game.inboxes.get(0, pb.Inbox())
    counted = game.counted.get(game.people[0].id, pb.Votes())
    call = game.call(0, range(4)) if len(game.headers) == 4 else pb.Survivors(u=b"\x0f")
    return {
        E.BEGIN: zero.begin,
        E.ROSTER: lambda: zero.roster(roster),
        E.INBOX: lambda: zero.inbox(inbox, bytearray(game.plain[0]), SPLIT),
        E.DELIVERED: zero.delivered,
        E.SURVIVORS: lambda: zero.survivors(call),
        E.VOTES: lambda: zero.votes(counted),
    }


@pytest.mark.parametrize("state", [state for state, _ in MEMBER_COURSE])
def test_a_member_takes_no_other_step_than_its_next(state: State) -> None:
    game, zero = member_at(state)
    assert zero.state is state
    for event, step in member_steps(game, zero).items():
        if (M, state, event) not in TABLE:
            with pytest.raises(Refused):
                step()
            assert zero.state is state
    allowed = next((e for e in member_steps(game, zero) if (M, state, e) in TABLE), None)
    if allowed is not None:  # after all the refusals the honest step still goes through
        member_steps(game, zero)[allowed]()
        assert zero.state is TABLE[M, state, allowed]


def server_at(state: State) -> Game:
    """Return a game whose server is in this state, with every message of the trip received."""
    game = Game(4)
    if state is S.GATHERING:
        for who, member in zip(game.people, game.members, strict=True):
            game.server.keys(verified(who), member.begin().message.keys)
        return game
    if state is S.SHARING:
        for place, roster in enumerate(game.gather()):
            shares = game.members[place].roster(roster).message.shares
            game.server.shares(game.people[place].id, shares)
        return game
    game.to_masked() if state is not S.UNMASKING and state is not S.SUMMED else game.to_released()
    if state is S.VOTING:
        for place, ballot in game.ballots(game.server.end_uploads()).items():
            game.server.vote(game.people[place].id, ballot)
    if state is S.SUMMED:
        game.server.finish()
    return game


@pytest.mark.parametrize("state", [*GATHERED, S.SUMMED])
def test_the_server_takes_no_other_step_than_the_tables(state: State) -> None:
    game = server_at(state)
    server, who = game.server, game.people[0].id
    header = game.headers.get(0, pb.MaskedHeader())
    received: dict[Event, Callable[[], object]] = {
        E.KEYS: lambda: server.keys(verified(game.people[0]), pb.Keys()),
        E.SHARES: lambda: server.shares(who, pb.Shares()),
        E.HEADER: lambda: server.header(who, header),
        E.DELIVERED: lambda: server.delivered(who, sha256(b"").digest()),
        E.VOTE: lambda: server.vote(who, pb.Vote()),
        E.RELEASE: lambda: server.release(who, pb.Release()),
    }
    decided: dict[Event, Callable[[], object]] = {
        E.FREEZE: server.freeze, E.END_SHARES: server.end_shares,
        E.END_UPLOADS: server.end_uploads, E.QUORUM: server.quorum, E.FINISH: server.finish,
    }  # fmt: skip
    assert server.state is state
    for event, step in received.items():
        if (Role.SERVER, state, event) not in TABLE:
            with pytest.raises(PeerError, match=f"in state `{state}` cannot take `{event}`"):
                step()
    for event, step in decided.items():
        if (Role.SERVER, state, event) not in TABLE:
            with pytest.raises(OutOfOrder, match=f"in state `{state}` cannot take `{event}`"):
                step()
    assert server.state is state
    for event, step in decided.items():
        if (Role.SERVER, state, event) in TABLE:
            step()
            assert server.state is TABLE[Role.SERVER, state, event]
            break
