"""The round table: how one attempt at one round runs at the coordinator, as one dict.

    inviting -> sharing -> summing -> voting -> unmasking -> summed -> finished
                (plain: inviting -> summing -> summed; reopened: inviting -> voting)

Each phase waits for the members that can still answer, until all have answered or its
deadline has come; then it goes on with those it has, or fails. Failure is a phase: `aborted`
before the sum (too few members), `void` after it (the sum must not be used). The model moves
on the step from `summed` to `finished` only.
"""

from __future__ import annotations

from enum import StrEnum


class RoundPhase(StrEnum):
    """Where an attempt stands."""

    INVITING = "inviting"
    SHARING = "sharing"
    SUMMING = "summing"
    VOTING = "voting"
    UNMASKING = "unmasking"
    SUMMED = "summed"
    FINISHED = "finished"
    ABORTED = "aborted"
    VOID = "void"


class RoundEvent(StrEnum):
    """What moves it."""

    FROZEN = "roster frozen"
    FROZEN_PLAIN = "roster frozen, masks off"
    SHARED = "shares routed"
    SUMMED_PLAIN = "updates folded, masks off"
    UPLOADED = "survivors frozen"
    REOPENED = "reopened from disk"
    QUORUM = "quorum of votes"
    OPENED = "masks removed"
    COMMITTED = "committed"
    TOO_FEW = "too few members"
    UNUSABLE = "sum unusable"


P, E = RoundPhase, RoundEvent

ROUND_TABLE: dict[tuple[RoundPhase, RoundEvent], RoundPhase] = {
    (P.INVITING, E.FROZEN): P.SHARING,
    (P.INVITING, E.FROZEN_PLAIN): P.SUMMING,
    (P.INVITING, E.REOPENED): P.VOTING,
    (P.SHARING, E.SHARED): P.SUMMING,
    (P.SUMMING, E.UPLOADED): P.VOTING,
    (P.SUMMING, E.SUMMED_PLAIN): P.SUMMED,
    (P.VOTING, E.QUORUM): P.UNMASKING,
    (P.UNMASKING, E.OPENED): P.SUMMED,
    (P.SUMMED, E.COMMITTED): P.FINISHED,
    (P.INVITING, E.TOO_FEW): P.ABORTED,
    (P.SHARING, E.TOO_FEW): P.ABORTED,
    (P.SUMMING, E.TOO_FEW): P.ABORTED,
    (P.VOTING, E.TOO_FEW): P.ABORTED,
    (P.UNMASKING, E.TOO_FEW): P.ABORTED,
    (P.UNMASKING, E.UNUSABLE): P.VOID,
    (P.SUMMED, E.UNUSABLE): P.VOID,
}
"""Every state change of a round; nothing else changes `Attempt.phase`."""

OVER = frozenset({P.FINISHED, P.ABORTED, P.VOID})
"""Phases in which nothing more is waited for."""


def moved(phase: RoundPhase, event: RoundEvent) -> RoundPhase:
    """Return the phase that `event` leads to.

    Raises:
        KeyError: The table has no such step: a fault of the coordinator.
    """
    return ROUND_TABLE[phase, event]
