"""When a run has left its plan: bounds by hand, by exact fractions, and by a simulated chain."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from umbel.server.alarms import false_alarm
from umbel.server.causes import of_refusals
from umbel.server.ledger import RoundRecord
from umbel.server.tails import beta_binomial, binomial
from umbel.server.watch import Watch
from umbel.server.watch_terms import SIGNALS, Band, Expected, Finding, Group, Seen

BAND = Band(20.0, 60.0, 10.0, 90.0)
LINE = Band(0.4, 0.6, 0.3, 0.7)


def entry(n: int, outcome: str = "finished", **changed: object) -> RoundRecord:
    made = RoundRecord(
        round=n, attempt=0, phase="train", outcome=outcome,
        roster=tuple(map(str, range(10))), survivors=tuple(map(str, range(10))),
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


def seen(n: int, **changed: object) -> Seen:
    return replace(Seen(record=entry(n)), **changed)  # type: ignore[arg-type]


def raised(watch: Watch, rounds: list[Seen]) -> list[tuple[int, str]]:
    """Return the rounds that raised an item, with its signal."""
    return [(found.round, found.signal) for one in rounds for found in watch.look(one)]


def watch(expected: Expected, *signals: str) -> Watch:
    return Watch(expected, signals or SIGNALS)


# -- stretches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "at"),
    [
        ([30, 40, 50], []),
        ([30, 91, 40], [2]),  # far outside, once
        ([30, 9, 40], [2]),
        ([61, 61, 61], [3]),  # outside three times
        ([61, 61, 40, 61, 61], []),
        ([61, 61, 19, 61, 61], []),  # not on the same side
        ([19, 19, 19], [3]),
        ([61, 61, 61, 61, 61, 95], [3]),  # one item a stretch
        ([91, 95, 40, 91], [1, 4]),
    ],
)
def test_one_item_for_a_stretch_outside(seconds: list[float], at: list[int]) -> None:
    rounds = [seen(n, seconds=s) for n, s in enumerate(seconds, 1)]
    found = raised(watch(Expected(duration=BAND)), rounds)
    assert found == [(n, "duration") for n in at]


def test_a_signal_that_nobody_asked_for_raises_nothing() -> None:
    assert not raised(watch(Expected(duration=BAND), "site"), [seen(1, seconds=1000.0)])


def test_false_alarms_are_those_of_every_run_written_out() -> None:
    """All sequences of four rounds, each outcome with its exact probability, judged by the rule."""
    near, far = Fraction(495, 10000), Fraction(5, 10000)
    kinds = {5.0: far, 15.0: near, 40.0: 1 - 2 * (near + far), 70.0: near, 95.0: far}
    total = Fraction(0)
    for run in itertools.product(kinds, repeat=4):
        rounds = [seen(n, seconds=s) for n, s in enumerate(run, 1)]
        if raised(watch(Expected(duration=BAND)), rounds):
            total += math.prod((kinds[s] for s in run), start=Fraction(1))
    assert false_alarm(4) == pytest.approx(float(total), rel=1e-12)
    one = {15.0: Fraction(1, 20) - far, 5.0: far, 40.0: Fraction(19, 20)}
    expected = sum(
        (
            math.prod((one[s] for s in run), start=Fraction(1))
            for run in itertools.product(one, repeat=4)
            if 5.0 in run or run[:3] == (15.0,) * 3 or run[1:] == (15.0,) * 3
        ),
        start=Fraction(0),
    )
    assert false_alarm(4, sides=1) == pytest.approx(float(expected), rel=1e-12)


# -- tails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "p"), [(1, Fraction(1, 3)), (7, Fraction(1, 1000)), (12, Fraction(4, 5))]
)
def test_the_binomial_tail_is_its_exact_sum(n: int, p: Fraction) -> None:
    for k in range(n + 1):
        exact = sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
        assert binomial(n, k, float(p)) == pytest.approx(float(exact), rel=1e-9)


def test_the_beta_binomial_tail_is_polyas_urn() -> None:
    """Draw by draw: after a lost and b kept the next is lost with a / (a + b)."""
    lost, kept, n = 2, 9, 4
    half = Fraction(1, 2)
    exact = [Fraction(0)] * (n + 1)
    for draws in itertools.product((0, 1), repeat=n):
        chance, a, b = Fraction(1), lost + half, kept + half
        for draw in draws:
            chance *= (a if draw else b) / (a + b)
            a, b = (a + 1, b) if draw else (a, b + 1)
        exact[sum(draws)] += chance
    for k in range(n + 1):
        assert beta_binomial(n, k, 2.5, 9.5) == pytest.approx(float(sum(exact[k:])), rel=1e-9)


# -- each signal -----------------------------------------------------------------------------------


def sites(n: int, north: int, south: int) -> Seen:
    return seen(n, sites={"north": Group(6, north), "south": Group(6, south)})


def test_a_site_that_is_gone_is_named_at_once_after_a_few_rounds() -> None:
    rounds = [*(sites(n, 6, 6) for n in range(1, 5)), sites(5, 0, 6)]
    looker = watch(Expected())
    found = [one for r in rounds for one in looker.look(r)]
    (item,) = found
    assert (item.signal, item.round, item.value) == ("site", 5, 0)
    # 48 of 48 came, so a loss of (1/2) / 49 is worth 8 devices, beside 24 of 24 of its own.
    due = 6 * (1 - Fraction(8, 2 * 49) / 32)
    assert item.low == pytest.approx(float(due / 2))
    assert item.cause == "site north: 0 updates of 6 that were asked, before 100%"


def test_a_site_of_one_device_needs_three_rounds_and_a_lost_one_teaches_nothing() -> None:
    def one(n: int, b: int) -> Seen:
        return seen(n, sites={name: Group(1, 1) for name in "acde"} | {"b": Group(1, b)})

    rounds = [*(one(n, 1) for n in range(1, 7)), *(one(n, 0) for n in range(7, 20))]
    assert raised(watch(Expected()), rounds) == [(9, "site")]


def test_a_slow_site_is_compared_with_its_own_past() -> None:
    """Of the north all come, of the south half: which is no news after some rounds, but none is."""
    steady = [sites(n, 6, 2 + n % 3) for n in range(1, 41)]
    looker = watch(Expected())
    assert not raised(looker, steady)
    gone = [sites(n, 6, 0) for n in range(41, 44)]
    assert raised(looker, gone) == [(43, "site")]


def test_a_site_by_the_plans_own_losses() -> None:
    expected = Expected(losses={"north": 0.5, "south": 0.1})
    # north: 1 of 12 used is as likely as 13 / 4096, and due are 6: outside, not far outside.
    few = [seen(n, sites={"north": Group(12, 1), "south": Group(12, 11)}) for n in range(1, 4)]
    assert raised(watch(expected), few) == [(3, "site")]
    none = [seen(1, sites={"north": Group(12, 0), "south": Group(12, 11)})]  # 1 / 4096
    assert raised(watch(expected), none) == [(1, "site")]


def test_participation_is_a_cohorts_share_of_the_updates() -> None:
    expected = Expected(participation={"fast": LINE})
    whole = seen(1, cohorts={"fast": Group(60, 50), "slow": Group(60, 50)})
    gone = seen(2, cohorts={"fast": Group(60, 20), "slow": Group(60, 60)})
    looker = watch(expected)
    assert not looker.look(whole)
    (item,) = looker.look(gone)
    assert item[:5] == ("participation", 2, 0.25, 0.4, 0.6)
    assert item.cause == "cohort fast: 20 updates of 60 that were asked"


def refused(n: int, count: int) -> Seen:
    record = entry(n, survivors=tuple(map(str, range(10 - count))))
    codes = {"REASON_LIMITS": count} if count else {}
    return seen(n, record=record, refused=codes, refused_at={"north": count} if count else {})


def test_rejections_without_a_plan() -> None:
    # 1 of 10 where each has 0.001: 0.00996, outside; 2 of 10: 0.0000448, far outside.
    assert raised(watch(Expected()), [refused(n, 1) for n in range(1, 4)]) == [(3, "rejections")]
    (item,) = watch(Expected()).look(refused(1, 2))
    assert item == Finding(
        "rejections", 1, 0.2, -math.inf, 0.0, "2 x REASON_LIMITS; 2 of 2 at site north"
    )
    assert not watch(Expected()).look(refused(1, 0))
    simulated = replace(refused(1, 2), cohorts={"north": Group(10, 8)})
    assert of_refusals(simulated) == "2 x REASON_LIMITS; 2 of 2 of cohort north"


def test_rejections_by_the_plan() -> None:
    expected = Expected(rejections=Band(0.0, 0.2, 0.0, 0.5))
    assert not raised(watch(expected), [refused(n, 2) for n in range(1, 9)])
    assert raised(watch(expected), [refused(n, 3) for n in range(1, 4)]) == [(3, "rejections")]
    assert raised(watch(expected), [refused(1, 6)]) == [(1, "rejections")]


def test_a_plan_that_expects_no_rejection_does_not_stop_at_the_first() -> None:
    expected = Expected(rejections=Band(0.0, 0.0, 0.0, 0.0))
    assert not raised(watch(expected), [refused(1, 1)])
    assert raised(watch(expected), [refused(1, 2)]) == [(1, "rejections")]


def test_rejections_of_an_attempt_without_a_result_count() -> None:
    record = entry(1, "aborted", survivors=(), cause="2 updates count, at least 3 are needed")
    assert raised(watch(Expected()), [seen(1, record=record, refused={"REASON_LIMITS": 8})]) == [
        (1, "rejections")
    ]


def measured(values: list[float]) -> list[Seen]:
    return [
        seen(n, record=entry(n, metrics={"test.accuracy": value, "train.loss": 1 / n}))
        for n, value in enumerate(values, 1)
    ]


def test_accuracy_below_its_best_three_times_in_a_row() -> None:
    values = [0.5, 0.9, 0.84, 0.86, 0.84, 0.84, 0.3, 0.3]
    looker = watch(Expected())
    found = [item for one in measured(values) for item in looker.look(one)]
    (item,) = found
    assert (item.round, item.value) == (7, 0.3)
    assert item.low == pytest.approx(0.85)
    assert item.cause == (
        "test.accuracy was 0.9 in round 2, its best; train.loss was 0.5 then and is 0.1429 now"
    )


def test_accuracy_by_tests_that_come_after_their_rounds() -> None:
    looker = watch(Expected(drop=0.2))
    said = [looker.tested(n, {"test.accuracy": v}) for n, v in enumerate([0.9, 0.6, 0.6, 0.6], 1)]
    assert [len(items) for items in said] == [0, 0, 0, 1]


def test_a_loss_stands_for_accuracy_where_there_is_none() -> None:
    losses = [2.0, 1.0, 1.05, 1.2, 1.2, 1.2]
    rounds = [seen(n, record=entry(n, metrics={"test.loss": v})) for n, v in enumerate(losses, 1)]
    looker = watch(Expected())
    (item,) = [found for one in rounds for found in looker.look(one)]
    assert (item.round, item.low) == (6, -math.inf)
    assert item.high == pytest.approx(1.0 + 0.05 * 2.0)


def test_attempts_below_quorum_in_a_row() -> None:
    aborted = [seen(n, record=entry(n, "aborted", cause="too few")) for n in range(1, 4)]
    # 0.02^2 = 0.0004 is less likely than 0.0005, 0.05^2 is not, 0.05^3 is.
    assert raised(watch(Expected(miss=0.02), "quorum"), aborted) == [(2, "quorum")]
    assert raised(watch(Expected(miss=0.05), "quorum"), aborted) == [(3, "quorum")]
    apart = [aborted[0], seen(2), aborted[2]]
    assert not raised(watch(Expected(miss=0.02), "quorum"), apart)


def test_retries_of_one_round_and_of_rounds_in_a_row() -> None:
    bad = seen(1, record=entry(1, "void", cause="masks did not cancel"))
    looker = watch(Expected(), "retries")
    (item,) = [found for one in (bad, bad, bad) for found in looker.look(one)]
    assert item[:5] == ("retries", 1, 3, -math.inf, 0)
    assert item.cause == "masks did not cancel"
    rounds = [one for n in range(1, 4) for one in (seen(n, record=entry(n, "aborted")), seen(n))]
    assert raised(watch(Expected(), "retries"), rounds) == [(3, "retries")]


def test_bytes_beside_the_plans_mean() -> None:
    def both(n: int, up: int) -> Seen:
        return seen(n, record=entry(n, bytes_up=up, bytes_down=500))

    expected = Expected(traffic=1000.0)
    assert raised(watch(expected), [both(1, 1501)]) == [(1, "bytes")]
    assert raised(watch(expected), [both(n, 751) for n in range(1, 4)]) == [(3, "bytes")]
    assert not raised(watch(expected), [both(n, 750) for n in range(1, 4)])


# -- causes ----------------------------------------------------------------------------------------


def timed(n: int, seconds: float, parts: Mapping[str, float], north: int = 6) -> Seen:
    groups = {"north": Group(6, north), "south": Group(6, 6)}
    return seen(n, seconds=seconds, parts=parts, sites=groups)


def test_the_phase_that_grew_is_the_cause() -> None:
    looker = watch(Expected(duration=BAND), "duration")
    for n in range(1, 6):
        assert not looker.look(timed(n, 30.0, {"inviting": 25.0, "summing": 5.0}))
    (item,) = looker.look(timed(6, 95.0, {"inviting": 27.0, "summing": 68.0}))
    assert item.cause == "the uploads took 68 s, before 5 s"


def test_the_site_that_stayed_away_is_the_cause_where_no_phase_is_known() -> None:
    looker = watch(Expected(duration=BAND), "duration")
    for n in range(1, 6):
        assert not looker.look(timed(n, 30.0, {}))
    (item,) = looker.look(timed(6, 95.0, {}, north=1))
    assert item.cause == "site north: 1 updates of 6 that were asked, before 100%"
    looker = watch(Expected(duration=BAND), "duration")
    (item,) = looker.look(timed(1, 95.0, {}))
    assert item.cause == "no part of the round stands out"
