"""The round table: what may follow what, written down by hand."""

from __future__ import annotations

import pytest

from umbel.protocol.round_table import OVER, ROUND_TABLE, RoundEvent, RoundPhase, moved

P, E = RoundPhase, RoundEvent
SECURE = [
    (P.INVITING, E.FROZEN), (P.SHARING, E.SHARED), (P.SUMMING, E.UPLOADED), (P.VOTING, E.QUORUM),
    (P.UNMASKING, E.OPENED), (P.SUMMED, E.COMMITTED),
]  # fmt: skip
REOPENED = [(P.INVITING, E.REOPENED), *SECURE[3:]]
PLAIN = [(P.INVITING, E.FROZEN_PLAIN), (P.SUMMING, E.SUMMED_PLAIN), (P.SUMMED, E.COMMITTED)]
BEFORE_THE_SUM = {P.INVITING, P.SHARING, P.SUMMING, P.VOTING, P.UNMASKING}


def expected() -> dict[tuple[RoundPhase, RoundEvent], RoundPhase]:
    table = {}
    for course in (SECURE, REOPENED, PLAIN):
        phases = [*(phase for phase, _ in course[1:]), P.FINISHED]
        table.update(dict(zip(course, phases, strict=True)))
    table.update({(phase, E.TOO_FEW): P.ABORTED for phase in BEFORE_THE_SUM})
    table.update({(phase, E.UNUSABLE): P.VOID for phase in (P.UNMASKING, P.SUMMED)})
    return table


@pytest.mark.parametrize("phase", RoundPhase)
@pytest.mark.parametrize("event", RoundEvent)
def test_the_table_has_these_steps_and_no_other(phase: RoundPhase, event: RoundEvent) -> None:
    target = expected().get((phase, event))
    if target is None:
        with pytest.raises(KeyError):
            moved(phase, event)
    else:
        assert moved(phase, event) is target


def test_every_phase_is_reached_and_every_event_occurs() -> None:
    assert {P.INVITING, *ROUND_TABLE.values()} == set(P)
    assert {event for _, event in ROUND_TABLE} == set(E)


def test_the_end_is_the_end() -> None:
    assert {P.FINISHED, P.ABORTED, P.VOID} == OVER
    assert not [phase for phase, _ in ROUND_TABLE if phase in OVER]


def test_the_model_moves_on_one_step_only() -> None:
    assert [step for step, to in ROUND_TABLE.items() if to is P.FINISHED] == [
        (P.SUMMED, E.COMMITTED)
    ]


def test_every_phase_that_waits_can_fail() -> None:
    for phase in set(P) - OVER:
        assert {to for (at, _), to in ROUND_TABLE.items() if at is phase} & {P.ABORTED, P.VOID}


def test_no_phase_comes_twice() -> None:
    order = [P.INVITING, P.SHARING, P.SUMMING, P.VOTING, P.UNMASKING, P.SUMMED, *OVER]
    assert all(order.index(to) > order.index(at) for (at, _), to in ROUND_TABLE.items())
