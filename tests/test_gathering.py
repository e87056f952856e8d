"""When a first round begins, and when it never will."""

from __future__ import annotations

import pytest

from umbel.protocol.errors import TooFewMembers
from umbel.server.deadlines import LEASE_S
from umbel.server.gathering import START_S, Gathering


class Asked:
    """Nodes of which so many may still come."""

    def __init__(self, possible: int, why: str = "", **busy: str) -> None:
        self._possible, self._why, self._busy = possible, why, busy

    def busy(self) -> dict[str, str]:
        """Return who is busy in which run."""
        return self._busy

    def possible(self) -> int:
        """Return how many."""
        return self._possible

    def why(self) -> str:
        """Return why the others do not."""
        return self._why


@pytest.mark.parametrize(
    ("here", "possible", "after", "begins"),
    [
        (5, 5, 0.0, True),
        (4, 5, START_S, False),
        (4, 5, START_S + 1, True),  # without the fifth
        (3, 5, START_S + 1, True),
        (4, 4, 1.0, False),  # one has failed, and may come after all
        (0, 3, START_S, False),
    ],
)
def test_a_round_begins(here: int, possible: int, after: float, begins: bool) -> None:
    assert Gathering(5, 3, 100.0).look(here, Asked(possible), 100.0 + after) is begins


def test_time_is_over() -> None:
    found = Gathering(5, 3, 0.0).look(2, Asked(5), START_S + 1)
    assert isinstance(found, TooFewMembers)
    assert str(found) == "2 nodes joined in 120 s, 3 are needed"


def test_nobody_is_left_who_could_come() -> None:
    found = Gathering(5, 3, 0.0).look(1, Asked(2, "edge-4 left: policy"), 1.0)
    assert str(found) == "edge-4 left: policy: 2 of the nodes could still join, 3 are needed"


def test_who_is_busy_in_another_run_is_waited_for_until_its_lease_is_over() -> None:
    gathering = Gathering(5, 3, 0.0)
    busy, free = Asked(5, edge="run-1"), Asked(5)
    for now in (1.0, START_S + 1, LEASE_S - 1):
        assert gathering.look(2, busy, now) is False
    assert gathering.look(2, free, LEASE_S - 1) is False  # from now on they have their time
    assert gathering.look(2, free, LEASE_S + START_S - 2) is False
    assert isinstance(gathering.look(2, free, LEASE_S + START_S), TooFewMembers)
    late = Gathering(5, 3, 0.0)
    assert isinstance(late.look(2, busy, LEASE_S + 1), TooFewMembers)


def test_enough_nodes_wait_for_no_busy_one() -> None:
    assert Gathering(5, 3, 0.0).look(3, Asked(5, edge="run-1"), START_S + 1) is True
