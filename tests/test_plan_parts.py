"""The parts of a plan: ranks by hand, rates as they were measured, variants, words, bands."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from umbel.protocol.graph import parameters
from umbel.simulation.capacity import ranks, words
from umbel.simulation.capacity.band import _hourly, _share
from umbel.simulation.capacity.chances import dropout_for
from umbel.simulation.capacity.costs import Used, costs
from umbel.simulation.capacity.facts import tried
from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.sample import Sample
from umbel.simulation.capacity.variants import variants
from umbel.simulation.fleet.counter import Purpose
from umbel.simulation.fleet.declared import Pool, Prices
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.strategies.robust_rules import Robust

ROOT = Path(__file__).resolve().parents[1]
PHONES = ROOT / "examples" / "fleets" / "phones.toml"
HOSPITALS = ROOT / "examples" / "fleets" / "hospitals.toml"
JOB = Job(
    clients=1000, cohort=100, invited=120, quorum=50, rounds=10, deadline=60.0,
    load=Load(down=1000, up=2000, epochs=1), parameters=250, secure=False,
)  # fmt: skip


# ---- what the server needs ---------------------------------------------------------------------


def test_ranks_by_hand() -> None:
    """77 GB fold in 10 s on one core; a tenth of a round of 50 s is 5 s."""
    work = ranks.Arithmetic(7.7e10, 0.0, None, 100)
    assert work.seconds(None) == pytest.approx(10.0)
    assert ranks.ranks(work, 50.0, {}) == (2, None, 0.0, ())
    assert ranks.ranks(work, 1000.0, {}).needed == 1
    assert ranks.ranks(work, math.inf, {}).needed == 1


def test_the_cheapest_pool_that_has_enough() -> None:
    work = ranks.Arithmetic(7.7e10, 0.0, None, 100)
    pools = {
        "small": Pool(kind="core", count=1, hourly=0.01),
        "cores": Pool(kind="core", count=4, hourly=0.1, reserve=0.5),
        "gpus": Pool(kind="gpu", count=2, hourly=2.0),
    }
    assert ranks.ranks(work, 50.0, pools) == (2, "cores", 0.2, ())
    found = ranks.ranks(work, 5.0, {"cores": pools["cores"]})  # 20 are needed, 2 are free
    assert (found.needed, found.hourly) == (2, 0.2)
    assert "pool cores: 20 would keep" in found.lines[0]
    measured = {"own": replace(pools["gpus"], fold=1e9)}
    assert ranks.ranks(work, 500.0, measured).needed == 2  # 77 s, and 50 are allowed


def test_masks_come_off_for_each_member_and_for_the_neighbours_of_who_is_lost() -> None:
    graph = parameters(100)
    assert ranks.masks_bytes(1000, graph, 3.0) == 4000 * (100 + 3 * graph.k)
    assert ranks.masks_bytes(1000, None, 3.0) == 0.0


@pytest.mark.parametrize(
    ("bench", "case", "rate"),
    [
        ("fold", "ring/ranks=1", ranks.FOLD),
        ("ranks", "unmask/ranks=1", ranks.UNMASK),
        ("robust", "median/n=32", ranks.BY_COLUMN),
        ("robust", "trimmed/n=32", ranks.BY_COLUMN),
        ("robust", "multikrum/n=32", ranks.BY_DISTANCE),
        ("robust", "trimmed-stream/n=32", ranks.STREAMED),
    ],
)
def test_a_rate_is_no_more_than_was_measured(bench: str, case: str, rate: float) -> None:
    lines = (ROOT / "benchmarks" / "results" / f"{bench}.jsonl").read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r["case"] == case]
    assert records
    newest = records[-1]
    assert newest["unit"] == "GB/s"
    assert 0.5 * newest["worst"] <= rate / 1e9 <= 1.05 * newest["umbel"]


def test_a_robust_rule_is_slower() -> None:
    trimmed = Robust(rule="trimmed-mean", cut=0.1)
    for rule, rate in (("median", 7.5e9), ("multi-krum", 4.0e9)):
        work = ranks.Arithmetic(3e10, 0.0, Robust(rule=rule), 100)
        assert work.seconds(None) == pytest.approx(3e10 / rate)
    assert ranks.Arithmetic(2.7e9, 0.0, trimmed, 100).seconds(None) == pytest.approx(1.0)


def test_costs_by_hand() -> None:
    used = {
        "a": Used(seconds=7200.0, joules=7.2e6, priced=3.0, down=2e9, up=1e9, line=0.6),
        "b": Used(seconds=3600.0, joules=0.0, priced=0.0, down=1e9, up=0.0, line=0.0),
    }
    prices = Prices(egress=0.1, ingress=0.2, energy=0.25)
    found = costs(used, prices, total=1800.0, hourly=4.0)
    assert (found.down, found.up, found.hours, found.kwh) == (3e9, 1e9, 3.0, 2.0)
    assert found.parts == pytest.approx(
        {"devices": 3.0, "lines": 0.6, "egress": 0.3, "ingress": 0.2, "energy": 0.5, "pool": 2.0}
    )
    assert found.money == pytest.approx(6.6)


def test_a_round_is_tried_until_it_has_its_quorum() -> None:
    assert tried(0.0, 5) == 1.0
    assert tried(0.5, 3) == 1.75
    assert tried(1.0, 4) == 4.0


# ---- what matters ------------------------------------------------------------------------------


def test_each_variant_is_a_tenth_worse_and_nothing_else() -> None:
    fleet = read(PHONES)
    found = {v.name: v for v in variants(fleet, JOB, scarce=False)}
    assert list(found) == [
        "training time", "bandwidth", "dropout", "crash", "hours online", "outage of sites",
        "correlation of sites", "server's own part", "model bytes", "cohort", "clients asked",
        "deadline",
    ]  # fmt: skip
    ids = np.arange(1000)
    before = fleet.fleet(1000, 0).times(ids, 1, JOB.load)
    slower = found["training time"].description.fleet(1000, 0).times(ids, 1, JOB.load)
    assert slower.train == pytest.approx(1.1 * before.train, rel=1e-5)
    assert slower.up == pytest.approx(before.up)
    thinner = found["bandwidth"].description.fleet(1000, 0).times(ids, 1, JOB.load)
    # what is clipped at the least bandwidth is a tenth lower, too
    assert thinner.up == pytest.approx(before.up / 0.9, rel=1e-5)
    assert thinner.down == pytest.approx(before.down / 0.9, rel=1e-5)
    assert found["model bytes"].job.load == Load(down=1100, up=2200, epochs=1)
    assert found["clients asked"].job.invited == 108
    assert found["cohort"].job.cohort == 110
    assert found["deadline"].job.deadline == pytest.approx(54.0)
    lost = [cohort.behaviour.dropout for cohort in found["dropout"].description.cohorts]
    assert lost == pytest.approx([0.044, 0.132])
    assert found["outage of sites"].description.sites["carrier"].outage == pytest.approx(0.011)
    assert found["outage of sites"].job == JOB


def test_fewer_clients_matter_where_too_few_are_there() -> None:
    by_share = [v for v in variants(read(PHONES), JOB, scarce=True) if v.name == "clients"]
    assert by_share[0].job.clients == 900
    fleet, job = read(HOSPITALS), replace(JOB, clients=12, cohort=9, invited=12, quorum=3)
    by_count = next(v for v in variants(fleet, job, scarce=True) if v.name == "clients")
    assert by_count.job.clients == by_count.description.clients == 11  # 4, 5 and 2
    full = replace(job, cohort=12)
    assert "clients" not in {v.name for v in variants(fleet, full, scarce=True)}


def test_hours_online_stay_within_a_day() -> None:
    fleet = read(PHONES)
    found = {v.name: v for v in variants(fleet, JOB, scarce=False)}["hours online"]
    numbers = np.arange(100, dtype=np.uint64)
    for before, after in zip(fleet.cohorts, found.description.cohorts, strict=True):
        assert before.hours is not None
        assert after.hours is not None
        drawn = (c.draw(7, Purpose.DUTY, numbers) for c in (before.hours, after.hours))
        was, now = drawn
        assert now == pytest.approx(0.9 * was)


# ---- what is said ------------------------------------------------------------------------------


def test_the_setting_that_asks_so_many() -> None:
    """The table of the Capacity planning reference: 10 of 14 at 10 %, 100 of 139 at 20 %."""
    for cohort, asked, most in ((10, 14, 0.1), (100, 139, 0.2), (500, 756, 0.3), (10, 10, 0.0)):
        assert dropout_for(cohort, asked) <= most
    assert dropout_for(10, 10) == 0.0
    assert dropout_for(100, 139) > 0.19


def test_bands_are_binomial_quantiles() -> None:
    """Of 20 updates each is of the cohort with 1/2: 6 to 14 are p5 and p95."""
    assert _share(20, np.array([0.5]), 0.0) == {
        "low": 0.3, "high": 0.7, "low3": 0.15, "high3": 0.85,
    }  # fmt: skip
    cut = _share(20, np.array([0.5 * 0.9]), 0.1)  # in a tenth of the hours none comes
    assert (cut["low"], cut["low3"], cut["high"]) == (0.0, 0.0, 0.7)
    assert _share(20, np.array([0.0]), 0.0) == dict.fromkeys(("low", "high", "low3", "high3"), 0.0)
    mixed = _share(20, np.array([0.1, 0.9]), 0.0)  # two kinds of hours
    assert mixed["low"] <= 0.05
    assert mixed["high"] >= 0.95


@pytest.mark.parametrize(
    ("correlation", "outage", "expected"),
    [
        (0.0, 0.0, None),
        (0.02, 0.0, None),
        (0.03, 0.0, 0.025),
        (0.0, 0.0001, None),  # 25 hours without one: 0.9975
        (0.0, 0.001, 0.025),  # 0.9753
    ],
)
def test_rounds_of_one_hour_go_together_where_it_matters(
    correlation: float, outage: float, expected: float | None
) -> None:
    """A thousand rounds in 25 hours."""
    site = SimpleNamespace(correlation=correlation, outage=outage, outage_hours=1.0)
    fleet: Any = SimpleNamespace(sites={"north": site})
    run: Any = SimpleNamespace(seconds=Sample.of([90.0]), tries=1000.0)
    assert _hourly(fleet, run) == expected
    site.outage_hours = 5.0  # five of 25 hours: outage 0.001 is met with 0.5 %
    assert _hourly(fleet, run) == (None if correlation <= 0.02 else expected)


def test_words() -> None:
    assert [words.seconds(s) for s in (0.25, 62.3, 150, 240, 7200, 3 * 3600, 3 * 86400)] == [
        "0.25 s", "62.3 s", "150 s", "4 min", "120 min", "3 h", "3 days",
    ]  # fmt: skip
    assert words.seconds(math.inf) == "never"
    assert [words.share(p) for p in (0, 1, 0.5, 0.0123, 0.9912, 1e-9)] == [
        "0 %", "100 %", "50 %", "1.2 %", "99.12 %", "below 0.0001 %",
    ]  # fmt: skip
    assert words.change(0.0821) == "+8.2 %"
    assert words.money(1234.5, "EUR") == "1,234.50 EUR"
    assert [words.amount(v) for v in (0.0, 0.1, 0.00389, 2.78e-5)] == [
        "0.00", "0.10", "0.00389", "0.0000278",
    ]  # fmt: skip
