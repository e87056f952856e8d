"""Times of devices: conjugate formulas against a grid, and known numbers that are found again."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from umbel.simulation.fitting.hours import online
from umbel.simulation.fitting.losses import Share, correlation, lasts, losses
from umbel.simulation.fitting.times import WEAK, Belief, fitted, nig


def test_nig_is_what_a_grid_over_mean_and_variance_says() -> None:
    """Mean and variance of the next logarithm, by summing prior times likelihood."""
    y, before = np.array([0.2, -0.4, 0.9, 0.1]), Belief(math.exp(0.3), 0.0, 0.5, 2.0, 6.0, 1.0)
    mu = np.linspace(-3, 3, 601)[:, None]
    v = np.exp(np.linspace(math.log(0.01), math.log(30), 1500))[None, :]
    log = -0.5 * ((y[:, None, None] - mu) ** 2 / v + np.log(v)).sum(axis=0)
    log += -0.5 * (before.weight * (mu - 0.3) ** 2 / v + np.log(v))  # mu given v
    log += -(before.degrees / 2 + 1) * np.log(v) - before.degrees * before.spread**2 / (2 * v)
    mass = np.exp(log - log.max()) * v  # the grid of v is even in its logarithm
    mass /= mass.sum()
    mean = float((mass * mu).sum())
    variance = float((mass * (v + (mu - mean) ** 2)).sum())
    median, spread = nig(np.exp(y).tolist(), before)
    assert math.log(median) == pytest.approx(mean, abs=1e-3)
    assert spread**2 == pytest.approx(variance, rel=0.01)


def test_one_device_is_nig_with_a_flat_mean() -> None:
    """With tau far larger than the errors nothing pulls at the device."""
    values = np.exp(np.random.default_rng(1).normal(0.5, 0.3, 400)).tolist()
    wide = WEAK._replace(between=50.0)
    found = fitted([values], [[]], wide)
    assert found.medians[0] == pytest.approx(nig(values, WEAK)[0], rel=1e-3)
    assert found.spreads[0] == pytest.approx(nig(values, WEAK)[1], rel=0.01)


def draws(devices: int, rounds: int, between: float, spread: float, seed: int = 3) -> np.ndarray:
    """Return seconds, shape (devices, rounds), around 2 s."""
    rng = np.random.default_rng(seed)
    theta = math.log(2.0) + between * rng.standard_normal(devices)
    return np.exp(theta[:, None] + spread * rng.standard_normal((devices, rounds)))


def test_known_numbers_are_found_again() -> None:
    seconds = draws(60, 30, between=0.5, spread=0.25)
    found = fitted(seconds.tolist(), [[]] * 60, WEAK)
    # Errors of estimation: 0.5 / sqrt(60) of mu, 1 / sqrt(2 n) of a deviation; four of them.
    assert abs(math.log(found.median / 2.0)) < 4 * 0.5 / math.sqrt(60)
    assert found.between == pytest.approx(0.5, rel=4 / math.sqrt(120))
    assert found.spread == pytest.approx(0.25, rel=4 / math.sqrt(2 * 60 * 29) + 0.02)
    errors = np.log(found.medians) - np.log(seconds).mean(axis=1)
    assert np.abs(errors).max() < 0.05  # hardly drawn together: they do differ


def test_devices_of_which_little_is_known_are_drawn_together() -> None:
    seconds = draws(200, 2, between=0.3, spread=0.6)
    found = fitted(seconds.tolist(), [[]] * 200, WEAK)
    theta = math.log(2.0) + 0.3 * np.random.default_rng(3).standard_normal(200)
    shrunk = np.mean((np.log(found.medians) - theta) ** 2)
    plain = np.mean((np.log(seconds).mean(axis=1) - theta) ** 2)
    assert shrunk < 0.55 * plain  # tau^2 / (tau^2 + s^2 / 2) = 1/3 of the error's variance is best


def test_who_was_not_waited_for_is_a_bound() -> None:
    seconds = draws(40, 40, between=0.3, spread=0.3, seed=8)
    closed = np.sort(seconds, axis=0)[24]  # each round takes the first 25
    took = [row[row <= closed].tolist() for row in seconds]
    bounds = [closed[row > closed].tolist() for row in seconds]
    found = fitted(took, bounds, WEAK)
    naive = fitted(took, [[]] * 40, WEAK)
    truth = float(np.exp(np.log(seconds).mean()))
    assert abs(math.log(naive.median / truth)) > 0.1
    assert abs(math.log(found.median / truth)) < 0.03
    assert found.spread == pytest.approx(0.3, abs=0.03)
    assert naive.spread < 0.27


def test_nothing_seen_is_what_was_thought() -> None:
    found = fitted([[], []], [[], []], WEAK._replace(median=3.0))
    assert found.median == pytest.approx(3.0)
    assert found.medians == pytest.approx([3.0, 3.0])
    assert nig([], WEAK._replace(median=3.0)) == (3.0, WEAK.spread)


def test_shares_are_beta() -> None:
    assert Share(0.1, 10.0).after(5, 20) == pytest.approx(6 / 30)
    assert Share(0.01, 1.0).after(0, 0) == 0.01


def test_a_silent_hour_is_the_sites() -> None:
    trials = [
        Counter(asked=10, lost=1), Counter(asked=8, lost=7, crashed=1), Counter(asked=2, lost=2),
        Counter(asked=10, crashed=2),
    ]  # fmt: skip
    found = losses({(0, hour): counts for hour, counts in enumerate(trials)})
    assert (found.asked, found.crashed, found.lost, found.hours, found.silent) == (22, 2, 3, 4, 1)


def test_how_long_an_outage_lasts_follows_from_the_hours_after_one() -> None:
    gone, here = Counter(asked=5, lost=5), Counter(asked=5)
    row = [here, gone, gone, gone, here, gone]  # the run ends there, and another one is asked later
    trials = {(0, hour): counts for hour, counts in enumerate(row)} | {(1, 6): gone, (1, 8): here}
    found = losses(trials)
    assert (found.silent, found.followed, found.went_on) == (5, 3, 2)
    # 3 hours were thought, of which the next is silent with 1 - 0.9 / 3 = 0.7: worth 10
    stays = (0.7 * 10 + 2) / 13
    assert lasts(3.0, 0.1, found, 10.0) == pytest.approx(0.9 / (1 - stays))
    assert lasts(3.0, 0.1, losses({(0, 1): gone, (0, 3): here}), 10.0) == 3.0
    assert lasts(1.0, 0.1, losses({(0, 1): gone, (0, 2): here}), 1.0) == 1.0


def test_the_correlation_of_known_classes_is_found() -> None:
    rng = np.random.default_rng(5)
    for rho in (0.05, 0.2, 0.5):
        p = rng.beta(0.1 * (1 / rho - 1), 0.9 * (1 / rho - 1), 6000)
        sizes = rng.integers(2, 30, 6000)
        pairs = zip(sizes.tolist(), rng.binomial(sizes, p).tolist(), strict=True)
        assert correlation(pairs) == pytest.approx(rho, abs=0.03)
    sizes = rng.integers(2, 30, 6000)
    independent = rng.binomial(sizes, 0.1)
    assert (correlation(zip(sizes.tolist(), independent.tolist(), strict=True)) or 0.0) < 0.01
    assert correlation([(5, 5), (5, 0), (5, 0)]) == 1.0
    assert correlation([(5, 0), (5, 0)]) is None
    assert correlation([(5, 2)]) is None


def test_hours_online() -> None:
    def day(share: dict[int, int]) -> list[tuple[float, int, int]]:
        return [((day * 24 + h) * 3600.0, share[h], 10) for day in range(30) for h in range(24)]

    always = day(dict.fromkeys(range(24), 10))
    assert online(always) is None
    assert online(always[:19]) is None
    night = day({h: 10 if h >= 20 or h < 4 else 0 for h in range(24)})
    found = online(night)
    assert found is not None
    assert found.hours == pytest.approx(8.0, abs=0.1)
    assert found.begins == pytest.approx(20 - 2.4, abs=1.0)
