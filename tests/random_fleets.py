"""Fleets by chance, as texts of fleet.toml, each with a run that fits it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SITES = ("north", "south", "east", "west")


class Case(NamedTuple):
    """A fleet, and how its rounds go."""

    text: str
    clients: int
    cohort: int
    invited: int
    quorum: int
    deadline: float
    down: int
    up: int


def case(seed: int) -> Case:
    """Return the fleet of a number: 1 to 4 cohorts, 20 to 100,000 devices, all kinds of chance."""
    draw = np.random.Generator(np.random.Philox(seed))
    clients = int(draw.choice([20, 60, 300, 2000, 20_000, 100_000]))
    cohorts = int(draw.integers(1, 5))
    cohort = int(draw.integers(5, min(200, clients // 3) + 1))
    invited = int(np.ceil(cohort * draw.choice([1.0, 1.3, 1.6, 2.0], p=[0.1, 0.3, 0.3, 0.3])))
    scale = float(np.exp(draw.uniform(np.log(2), np.log(300))))  # seconds of a usual device
    counts = _parts(clients, cohorts, draw)
    sites = draw.random() < 0.3
    texts = [f"seed = {seed}"]
    for number, count in enumerate(counts):
        texts.append(_cohort(number, count, scale, sites, draw))
    if sites:
        for name in {SITES[number % 2] for number in range(cohorts)}:
            outage, tie = draw.choice([0.0, 0.02, 0.1]), draw.choice([0.0, 0.05, 0.3])
            texts.append(f"[sites.{name}]\noutage = {outage}\ncorrelation = {tie}")
    return Case(
        text="\n".join(texts) + "\n",
        clients=clients,
        cohort=cohort,
        invited=invited,
        quorum=max(1, int(cohort * draw.choice([0.3, 0.6, 0.9]))),
        deadline=round(scale * float(draw.choice([1.5, 4.0, 10.0, 30.0])), 3),
        down=int(draw.integers(0, 3)) * 500_000,
        up=500_000,
    )


def _parts(clients: int, cohorts: int, draw: np.random.Generator) -> list[int]:
    shares = draw.dirichlet(np.full(cohorts, 2.0))
    counts = np.maximum(1, np.floor(shares * clients)).astype(int)
    counts[0] += clients - counts.sum()
    return [int(count) for count in counts]


def _cohort(number: int, count: int, scale: float, sites: bool, draw: np.random.Generator) -> str:
    samples = 50
    mid = scale / samples * float(np.exp(draw.uniform(-0.5, 0.5)))
    speed = draw.choice(
        [
            f"{{ lognormal = {{ median = {mid:.6g}, sigma = {draw.uniform(0.2, 0.9):.3f} }} }}",
            f"{{ loguniform = [{mid / 2:.6g}, {mid * 2:.6g}] }}",
            f"{{ choice = [{mid / 2:.4g}, {mid:.4g}, {mid * 2:.4g}], weights = [5, 3, 2] }}",
        ]
    )
    rate = 1e6 / scale * float(np.exp(draw.uniform(0, 3)))
    lines = [
        f"[cohorts.c{number}]",
        f"count = {count}",
        f"samples = {samples}",
        f"speed = {speed}",
        f"bandwidth = {{ loguniform = [{rate:.6g}, {rate * 5:.6g}] }}",
        f"dropout = {draw.choice([0.0, 0.02, 0.1, 0.25])}",
        f"crash = {draw.choice([0.0, 0.0, 0.03])}",
        draw.choice(["jitter = 0.1", "jitter = 0.4", "spread = 0.3", "spread = 0.05"]),
    ]
    if sites:
        lines.append(f'site = "{SITES[number % 2]}"')
    if draw.random() < 0.5:
        hours, first = draw.uniform(3, 16), draw.choice([0, 6])
        lines += [
            f"[cohorts.c{number}.online]",
            f"hours = {hours:.2f}",
            f"from = {{ uniform = [{first}, 24] }}",
        ]
    return "\n".join(lines)
