"""How likely a secure round has no sum: in fractions, drawn, and beside the real coordinator."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from umbel.cli import main
from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.losses import Group, Losses
from umbel.simulation.capacity.rosters import Rosters
from umbel.simulation.capacity.rounds import rounds
from umbel.simulation.drops import Drop
from umbel.simulation.fleet.declared import Site
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.rounds import Stage, settings

if TYPE_CHECKING:
    from pathlib import Path

F = Fraction

BEARS = {3: 0, 4: 0, 5: 1, 6: 1, 7: 2, 8: 2, 9: 3}
"""D of small rosters by hand, A = 1: k = n - 1, t = floor((k + 1) / 2) + 1,
q = floor((n + 1) / 2) + 1, D = min(k - t, n - q, n - 3)."""


def job(clients: int, cohort: int, invited: int, rounds_: int, attempts: int = 1) -> Job:
    return Job(
        clients=clients, cohort=cohort, invited=invited, quorum=3, rounds=rounds_,
        attempts=attempts, deadline=100.0, load=Load(), parameters=1000, secure=True,
    )  # fmt: skip


def binomial(n: int, p: F, k: int) -> F:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def without_a_sum(cohort: int, invited: int, crash: F, dropout: F, outage: F) -> F:
    """How likely a round has none, of devices at one site, for cohorts of up to 9."""
    found = F(0)
    for ready in range(invited + 1):
        n = min(cohort, ready)
        void = F(1)
        if n >= 3:
            void -= sum(binomial(n, dropout, lost) for lost in range(min(BEARS[n], n - 3) + 1))
        found += binomial(invited, 1 - crash, ready) * (outage + (1 - outage) * void)
    return found


FLEET = """seed = 1
[cohorts.a]
count = {}
samples = 10
speed = 0.5
bandwidth = 1e6
dropout = 0.1
crash = 0.05
site = "north"
"""


def test_all_odds_of_a_round_are_those_of_fractions() -> None:
    crash, dropout, outage = F(1, 20), F(1, 10), F(1, 50)
    exact = without_a_sum(7, 9, crash, dropout, outage)
    group = Group(size=9, finishes=0.95, dropout=0.1, site="north")
    losses = Losses([group], {"north": Site(outage=0.02)})
    assert Rosters(job(9, 7, 9, 1)).missed(losses) == pytest.approx(float(exact), rel=1e-12)
    endless = Losses([Group(size=100_000, finishes=0.95, dropout=0.1)], {})
    exact = without_a_sum(9, 9, crash, dropout, F(0))
    assert Rosters(job(100_000, 9, 9, 1)).missed(endless) == pytest.approx(float(exact), rel=1e-9)


def test_a_plan_says_how_likely_a_secure_round_has_no_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        FLEET.format(9).replace("crash = 0.05\n", "") + "[sites.north]\noutage = 0.02\n"
    )
    command = ["plan", str(path), "--parameters", "1000", "--rounds", "3", "-c", "deadline=100"]
    assert main([*command, "-c", "min-survivors=3", "--format", "json"]) == 0
    quorum = json.loads(capsys.readouterr().out)["quorum"]
    exact = without_a_sum(9, 9, F(0), F(1, 10), F(1, 50))
    alone = without_a_sum(9, 9, F(0), 1 - F(98, 100) * F(9, 10), F(0))
    assert quorum["miss"] == pytest.approx(float(exact), rel=1e-9)
    assert quorum["independent"] == pytest.approx(float(alone), rel=1e-9)
    assert "have no sum whose masks come off (independence would claim 1.5 %)" in quorum["line"]


@pytest.mark.parametrize("clients", [9, 20_000])
def test_drawn_rounds_have_no_sum_as_often(clients: int, tmp_path: Path) -> None:
    """Few devices are followed one by one, many as curves."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(clients))
    exact = without_a_sum(7, 9, F(1, 20), F(1, 10), F(0))
    found = rounds(read(path), job(clients, 7, 9, 100), seed=4)
    draws = 50_000
    within = 4 * math.sqrt(float(exact) / draws)
    assert found.miss == pytest.approx(float(exact), abs=within)
    plain = job(clients, 7, 9, 100)
    object.__setattr__(plain, "secure", False)
    other = rounds(read(path), plain, seed=4)
    for share in (0.1, 0.5, 0.9):  # what a try takes is that of a plain one
        assert found.seconds.at(share) == pytest.approx(other.seconds.at(share), rel=0.01)


def test_a_void_sum_is_tried_again_and_its_time_has_passed(tmp_path: Path) -> None:
    """Nobody breaks off; a round with a loss waits for its deadline of 100 s, others take 5 s."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(9).replace("crash = 0.05\n", ""))
    void = without_a_sum(9, 9, F(0), F(1, 10), F(0))
    lost = 1 - (1 - void**2) ** 20
    found = rounds(read(path), job(9, 9, 9, 20, attempts=2), seed=4)
    assert found.run_lost == pytest.approx(float(lost), abs=4 * math.sqrt(float(lost) / 500))
    one = 5 + 95 * (1 - F(9, 10) ** 9)
    tries = 20 * (1 + void)
    assert found.tries == pytest.approx(float(tries), rel=0.01)
    assert found.seconds.mean == pytest.approx(float(one), rel=0.02)


@pytest.mark.parametrize("n", [5, 8, 9])
def test_a_roster_bears_as_many_losses_as_the_coordinator_lets_it(n: int, tmp_path: Path) -> None:
    least = Rosters(job(n, n, n, 1)).need(n)
    assert least == n - BEARS[n]
    for lost, outcome in ((n - least, "finished"), (n - least + 1, "aborted")):
        drop = Drop("inbox", tuple(range(lost)), 1)
        with Stage(tmp_path / str(lost), n, settings(rounds=1, attempts=1), drops=[drop]) as stage:
            stage.play()
            assert [record.outcome for record in stage.records] == [outcome]
