"""Random fleets: what a plan says of their rounds, beside 10,000 rounds of the virtual clock.

A quantile is compared with the clock's own. Where the clock's lies at a jump, as at a deadline that
closes about a tenth of the rounds, a small difference of the shares moves a quantile across all of
it: so it may be that of a share which differs by three standard errors of 10,000 rounds, and is
then compared in the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.rounds import rounds
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.random_fleets import Case, case

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.capacity.expected import Expected
    from umbel.simulation.fleet.description import Description

CLOSE = 0.05
ERRORS = 3.0
ENDS = ("used", "late", "lost", "offline", "crashed")


class Shown(NamedTuple):
    """Rounds of the clock."""

    seconds: NDArray[np.float64]
    opened: NDArray[np.float64]
    missed: NDArray[np.bool_]
    ends: NDArray[np.float64]
    """How many of a round, on average, had which outcome."""
    spent: NDArray[np.float64]
    """Seconds at work, bytes received and sent, on average."""


def predicted(fleet: Description, made: Case, count: int) -> Expected:
    job = Job(
        clients=made.clients, cohort=made.cohort, invited=made.invited, quorum=made.quorum,
        rounds=count, deadline=made.deadline, load=Load(down=made.down, up=made.up),
        parameters=1000,
    )  # fmt: skip
    return rounds(fleet, job, seed=0)


def shown(fleet: Description, made: Case, count: int) -> Shown:
    terms = Terms(
        cohort=made.cohort, invited=made.invited, quorum=made.quorum, deadline=made.deadline,
        load=Load(down=made.down, up=made.up), seed=1,
    )  # fmt: skip
    clock = Synchronous(fleet.fleet(made.clients, 0), terms)
    table, ends, spent = np.empty((3, count)), np.zeros(5), np.zeros(3)
    for place in range(count):
        one = clock.decide(place + 1)
        table[:, place] = one.closed - one.opened, one.opened, one.void is not None
        ends += np.bincount(one.outcomes, minlength=5)
        spent += one.seconds.sum(), one.received.sum(), one.sent.sum()
    return Shown(table[0], table[1], table[2] > 0, ends / count, spent / count)


def errors(hit: NDArray[np.bool_], opened: NDArray[np.float64]) -> float:
    """Return the standard error of a share of rounds; those of one hour may go together."""
    hours = np.floor(opened / 3600).astype(np.int64)
    sums = np.bincount(hours, hit - hit.mean())
    return max(float(np.sqrt((sums**2).sum())), math.sqrt(len(hit) * hit.mean())) / len(hit)


def check(fleet: Description, made: Case, count: int) -> None:
    found, clock = predicted(fleet, made, count), shown(fleet, made, count)
    ordered = np.sort(clock.seconds)
    for share in (0.5, 0.9):
        told = found.seconds.at(share)
        value = ordered[math.ceil(share * count) - 1]
        gap = ERRORS * math.sqrt(share * (1 - share) / count)
        low, high = ordered[[int((share - gap) * count), int((share + gap) * count)]]
        if high <= (1 + CLOSE) * low:  # no jump: the quantile itself
            low = high = value
        assert (1 - CLOSE) * low <= told <= (1 + CLOSE) * high, (share, told, value)
    within = ERRORS * errors(clock.missed, clock.opened) + 3 / count
    assert found.miss == pytest.approx(clock.missed.mean(), abs=within)
    for name, counted in zip(ENDS, clock.ends, strict=True):
        told = sum(getattr(took, name) for took in found.clients)
        assert told == pytest.approx(counted, abs=0.02 * made.invited), name
    for name, counted in zip(("work", "received", "sent"), clock.spent, strict=True):
        told = sum(getattr(took, name) for took in found.clients)
        assert told == pytest.approx(counted, rel=CLOSE), name
    assert sum(one.share for one in found.closers) == pytest.approx(1)


@pytest.mark.parametrize("seed", [14, 16])
def test_a_random_fleet_is_predicted_as_the_clock_shows_it(seed: int, tmp_path: Path) -> None:
    made = case(seed)
    (tmp_path / "fleet.toml").write_text(made.text, "utf-8")
    check(read(tmp_path / "fleet.toml"), made, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_random_fleets_are_predicted_as_10_000_rounds_show_them(
    seed: int, tmp_path: Path
) -> None:
    made = case(seed)
    (tmp_path / "fleet.toml").write_text(made.text, "utf-8")
    check(read(tmp_path / "fleet.toml"), made, 10_000)


def test_the_twenty_fleets_are_of_all_kinds() -> None:
    made = [case(seed) for seed in range(20)]
    assert {one.clients for one in made} >= {20, 100_000}
    assert len({one.cohort for one in made}) >= 10
    for word in (
        "lognormal", "loguniform", "choice", "online", "jitter", "spread", "outage", "crash = 0.03",
        "dropout = 0.25", "correlation = 0.05",
    ):  # fmt: skip
        assert any(word in one.text for one in made), word
    assert {one.text.count("[cohorts.c") - one.text.count("online]") for one in made} == {
        1,
        2,
        3,
        4,
    }
