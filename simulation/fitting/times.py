"""Times of devices: logarithms that are normal, with devices that differ; what is expected next.

    log y_dr = theta_d + e_dr            e_dr   normal, variance s_d^2: a round's own
    theta_d  normal, mean mu, deviation tau: what the device is
    s_d^2    scaled inverse chi^2 of DEVICE degrees around the group's s^2
    s^2      scaled inverse chi^2 of `degrees` around `spread`^2 before the first observation
    tau^2    the same of `devices` around `between`^2;  mu  normal, worth `weight` devices

With one device and s^2 of that device this is Normal-Inverse-Gamma, and `nig` is just that. With
several, s^2 is as in it, from the squares within the devices; tau is estimated by moments and then
taken as known for mu and theta (empirical Bayes: Morris 1983; Gelman et al., Bayesian Data
Analysis, 3rd ed., sections 3.3 and 5.4). A device that was not waited for is a bound from below:
what it took is put at its mean given the bound, again and again (EM: Dempster, Laird and Rubin
1977).

What comes next is a t distribution; here it is a normal one of the same variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Reals = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Floats = NDArray[np.floating[Any]]

DEVICE = 10.0
"""Degrees of freedom with which a device's own variance keeps to its group's."""
_STEPS = 40
_FAR = 6.0


class Belief(NamedTuple):
    """What is thought of some devices' log seconds before they are observed."""

    median: float
    """Seconds; exp(mu)."""
    between: float
    """tau."""
    spread: float
    """s."""
    weight: float
    """Devices that mu is worth."""
    degrees: float
    """Observations that s^2 is worth."""
    devices: float
    """Devices that tau^2 is worth."""


WEAK = Belief(median=1.0, between=0.3, spread=0.3, weight=0.01, degrees=3.0, devices=1.0)
"""Where nobody says anything."""
SAID = Belief(median=1.0, between=0.0, spread=0.0, weight=1.0, degrees=10.0, devices=3.0)
"""How sure somebody is taken to be who has written a fleet.toml."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """What is thought of them afterwards."""

    median: float
    """exp(mu)."""
    between: float
    """tau."""
    spread: float
    """Of a round of any of these devices."""
    medians: Reals
    """exp(theta_d), in the order in which devices were given."""
    spreads: Reals
    """s_d, with what is not known of theta_d."""
    observations: int


def fitted(
    took: Sequence[Sequence[float]], beyond: Sequence[Sequence[float]], before: Belief
) -> Fitted:
    """Return what observations make of a belief.

    Args:
        took: For each device the seconds that it took; some may have none.
        beyond: For each the bounds from below of others.
        before: What was thought.
    """
    y, of, bound = _flat(took, beyond)
    devices, count = len(took), np.bincount(of, minlength=len(took)).astype(float)
    theta, s2 = _start(y, of, count, before), np.full(devices, before.spread**2)
    values, extra = y, np.zeros(len(y))
    steps = _STEPS if bound.any() else 1
    mu = tau2 = group = 0.0
    doubt = np.zeros(devices)
    for _ in range(steps):
        if bound.any():
            values, extra = _filled(y, bound, theta[of], np.sqrt(s2[of]))
        means = np.bincount(of, values, devices) / np.maximum(count, 1)
        squares = np.bincount(of, (values - means[of]) ** 2 + extra, devices)
        free = np.maximum(count - 1, 0)
        degrees = before.degrees + free.sum()
        group = _variance(before.degrees * before.spread**2 + squares.sum(), degrees)
        s2 = _variances(DEVICE * group + squares, DEVICE + free)
        mu, tau2 = _groups(means, count, s2, before)
        precise = count / s2
        doubt = 1 / (precise + 1 / tau2)
        theta = (precise * means + mu / tau2) * doubt
    return Fitted(
        median=math.exp(mu),
        between=math.sqrt(tau2),
        spread=math.sqrt(group + (float(doubt.mean()) if devices else 0.0)),
        medians=np.exp(theta),
        spreads=np.sqrt(s2 + doubt),
        observations=len(y),
    )


def nig(seconds: Sequence[float], before: Belief) -> tuple[float, float]:
    """Return median and spread of what comes next, out of seconds that were seen.

    Normal-Inverse-Gamma with kappa = `weight` and 2 alpha = `degrees`, beta / alpha = spread^2.
    """
    y, n = np.log(np.asarray(seconds, np.float64)), len(seconds)
    if not n:
        return before.median, before.spread
    prior, weight = math.log(before.median), before.weight
    mean, kappa, degrees = float(y.mean()), weight + n, before.degrees + n
    squares = before.degrees * before.spread**2 + float(((y - mean) ** 2).sum())
    squares += weight * n / kappa * (mean - prior) ** 2
    middle = (weight * prior + n * mean) / kappa
    return math.exp(middle), math.sqrt(_variance(squares, degrees) * (1 + 1 / kappa))


def _flat(
    took: Sequence[Sequence[float]], beyond: Sequence[Sequence[float]]
) -> tuple[Reals, Ids, NDArray[np.bool_]]:
    """Return logarithms, whose they are, and which are bounds."""
    both = [(*known, *bounds) for known, bounds in zip(took, beyond, strict=True)]
    y = np.log(np.array([value for values in both for value in values], np.float64))
    of = np.repeat(np.arange(len(both)), [len(values) for values in both])
    bound = [
        place >= len(known)
        for known, values in zip(took, both, strict=True)
        for place in range(len(values))
    ]
    return y, of, np.array(bound, bool)


def _start(y: Reals, of: Ids, count: Reals, before: Belief) -> Reals:
    mean = float(y.mean()) if len(y) else math.log(before.median)
    sums = np.bincount(of, y, len(count))
    return np.where(count > 0, sums / np.maximum(count, 1), mean)


def _groups(means: Reals, count: Reals, s2: Reals, before: Belief) -> tuple[float, float]:
    """Return mu, and tau^2 by moments: what the means scatter beyond what their errors make."""
    seen = count > 0
    tau2 = before.between**2 * before.devices
    free = float(max(seen.sum() - 1, 0))
    errors = s2[seen] / count[seen]
    if free:
        scatter = float(((means[seen] - means[seen].mean()) ** 2).sum())
        tau2 += max(0.0, scatter - free * float(errors.mean()))
    tau2 = max(tau2 / (before.devices + free), 1e-8)
    weights = tau2 / (tau2 + errors)
    whole = before.weight + float(weights.sum())
    mu = (before.weight * math.log(before.median) + float(weights @ means[seen])) / whole
    return mu, tau2


def _filled(y: Reals, bound: NDArray[np.bool_], mean: Reals, spread: Reals) -> tuple[Reals, Reals]:
    """Return values with the bounds replaced by what is expected beyond them, and its variance."""
    values, extra = y.copy(), np.zeros(len(y))
    a = (y[bound] - mean[bound]) / spread[bound]
    density = np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    tail = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in a])
    far = a > _FAR
    hazard = np.where(far, a + 1 / np.maximum(a, 1.0), density / np.where(far, 1.0, tail))
    values[bound] = mean[bound] + spread[bound] * hazard
    extra[bound] = spread[bound] ** 2 * np.clip(1 + a * hazard - hazard**2, 0.0, 1.0)
    return values, extra


def _variance(squares: float, degrees: float) -> float:
    """Return the variance of a t of so many degrees whose scale^2 is squares / degrees."""
    return max(squares / max(degrees - 2.0, 1.0), 1e-8)


def _variances(squares: Floats, degrees: Floats) -> Reals:
    found: Reals = np.maximum(squares / np.maximum(degrees - 2.0, 1.0), 1e-8)
    return found
