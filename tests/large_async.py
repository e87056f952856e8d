"""A process that runs 10,000 clients asynchronously and says what memory it took.

    python -m umbel.tests.large_async HOME FLEET.toml

A thousand are at work, a hundred updates of 60,430 parameters make a round. Prints one JSON object:
how many rounds were finished, how many versions the oldest update was behind, and the peak in bytes
of this process and of the largest that it started.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from umbel import MLP, Options, Site, Task, simulate
from umbel.strategies.optimizers import SGD

ROUNDS = 60
SETTINGS: dict[str, bool | int | float | str] = {
    "clients": 10_000,
    "rounds": ROUNDS,
    "cohort": 1000,
    "buffer": 100,
    "tier": "T3",
    "test-every": 0,
}


class Pictures(Task):
    """20 noisy pictures a client."""

    optimizer = SGD(lr=0.05)
    batch_size = 10

    def model(self) -> MLP:
        """Return the benchmark's MLP: 784, 76 and 10."""
        return MLP(784, 76, 10)

    def train_data(self, site: Site) -> tuple[Any, Any]:
        """Return one client's."""
        rng = np.random.default_rng(site.index)
        return rng.normal(size=(20, 784)).astype(np.float32), rng.integers(10, size=20)


def main() -> None:
    """Run it."""
    home, fleet = map(Path, sys.argv[1:])
    options = Options(home=home, run="r", secure=False, fleet=fleet, settings=SETTINGS)
    result = simulate(Pictures(), options)
    ages = [int(k.partition(".")[2]) for r in result.records for k in r.metrics if "staleness" in k]
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = sum(resource.getrusage(one).ru_maxrss for one in who) * 1024
    finished = sum(record.outcome == "finished" for record in result.records)
    print(json.dumps({"finished": finished, "oldest": max(ages), "peak": peak}))


if __name__ == "__main__":
    main()
