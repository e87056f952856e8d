"""Scheme A, SecAgg+ hardened: every state change of both roles, as one table.

Five trips after local training: keys, shares, the masked vector, a vote on the survivor
set, shares again. The vote is what stops a server that declares a victim's neighbours
dead: no share leaves a device before a quorum of the survivors has signed one survivor
set (rules.py). `member.py` holds what a member does at each step and `aggregator.py` what
the server does; neither changes its phase except through `TABLE`.

After Bell et al., CCS 2020, section 4, with the vote and the signed share hashes of
docs/protocol.md, section 5. `diagram()` draws the state diagrams of its section 5.1.
"""

from __future__ import annotations

from enum import StrEnum

from .errors import UmbelError


class Role(StrEnum):
    """Who holds the state."""

    MEMBER = "member"
    SERVER = "server"


class State(StrEnum):
    """Where one attempt stands for one role."""

    TRAINED = "trained"
    KEYED = "keyed"
    SHARED = "shared"
    MASKED = "masked"
    SENT = "sent"
    VOTED = "voted"
    RELEASED = "released"
    GATHERING = "gathering keys"
    SHARING = "gathering shares"
    SUMMING = "gathering vectors"
    VOTING = "gathering votes"
    UNMASKING = "gathering releases"
    SUMMED = "summed"
    CLOSED = "closed"


class Event(StrEnum):
    """What may happen; the wire's messages, and the server's own decisions."""

    BEGIN = "begin"
    ROSTER = "roster"
    INBOX = "inbox"
    DELIVERED = "delivered"
    SURVIVORS = "survivors"
    EXCLUDED = "excluded"
    VOTES = "votes"
    KEYS = "keys"
    FREEZE = "freeze"
    SHARES = "shares"
    END_SHARES = "end of shares"
    HEADER = "masked header"
    END_UPLOADS = "end of uploads"
    VOTE = "vote"
    QUORUM = "quorum"
    RELEASE = "release"
    FINISH = "finish"
    REOPEN = "reopen"
    CLOSE = "close"


M, S = Role.MEMBER, Role.SERVER

TABLE: dict[tuple[Role, State, Event], State] = {
    # The member: each message once, in this order.
    (M, State.TRAINED, Event.BEGIN): State.KEYED,
    (M, State.KEYED, Event.ROSTER): State.SHARED,
    (M, State.SHARED, Event.INBOX): State.MASKED,
    (M, State.MASKED, Event.DELIVERED): State.SENT,
    # A member whose vector is not whole may be outside U, and then it has nothing to say.
    (M, State.MASKED, Event.EXCLUDED): State.CLOSED,
    (M, State.SENT, Event.EXCLUDED): State.CLOSED,
    (M, State.SENT, Event.SURVIVORS): State.VOTED,
    (M, State.VOTED, Event.VOTES): State.RELEASED,
    # Asked again by a server that was started anew: the same answer, whose secrets may be gone.
    (M, State.VOTED, Event.SURVIVORS): State.VOTED,
    (M, State.RELEASED, Event.SURVIVORS): State.RELEASED,
    (M, State.RELEASED, Event.VOTES): State.RELEASED,
    (M, State.TRAINED, Event.CLOSE): State.CLOSED,
    (M, State.KEYED, Event.CLOSE): State.CLOSED,
    (M, State.SHARED, Event.CLOSE): State.CLOSED,
    (M, State.MASKED, Event.CLOSE): State.CLOSED,
    (M, State.SENT, Event.CLOSE): State.CLOSED,
    (M, State.VOTED, Event.CLOSE): State.CLOSED,
    (M, State.RELEASED, Event.CLOSE): State.CLOSED,
    (M, State.CLOSED, Event.CLOSE): State.CLOSED,
    # The server: it gathers, and closes each gathering once.
    (S, State.GATHERING, Event.KEYS): State.GATHERING,
    (S, State.GATHERING, Event.FREEZE): State.SHARING,
    (S, State.SHARING, Event.SHARES): State.SHARING,
    (S, State.SHARING, Event.END_SHARES): State.SUMMING,
    # Out of a transcript: what was gathered before is there, and nothing is gathered anew.
    (S, State.SHARING, Event.REOPEN): State.SUMMING,
    (S, State.SUMMING, Event.HEADER): State.SUMMING,
    (S, State.SUMMING, Event.DELIVERED): State.SUMMING,
    (S, State.SUMMING, Event.END_UPLOADS): State.VOTING,
    (S, State.VOTING, Event.VOTE): State.VOTING,
    (S, State.VOTING, Event.QUORUM): State.UNMASKING,
    (S, State.UNMASKING, Event.RELEASE): State.UNMASKING,
    (S, State.UNMASKING, Event.FINISH): State.SUMMED,
}


class OutOfOrder(UmbelError):
    """An event that the table does not have for this state; its caller says whose fault it is."""


def after(role: Role, state: State, event: Event) -> State:
    """Return the state that `event` leads to.

    Raises:
        OutOfOrder: The table has no such step.
    """
    try:
        return TABLE[role, state, event]
    except KeyError:
        raise OutOfOrder(f"{role} in state `{state}` cannot take `{event}`") from None


def diagram(role: Role) -> str:
    """Return one role's part of the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (who, state, event), target in TABLE.items():
        if who is role:
            lines.append(f"    {_node(state)} --> {_node(target)}: {event}")
    return "\n".join(lines)


def _node(state: State) -> str:
    return state.replace(" ", "_")
