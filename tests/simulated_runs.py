"""Runs of a simulated population for tests: a small app, and a process that is killed.

    python -m umbel.tests.simulated_runs HOME [SETTING=VALUE ...]

runs or takes up the run `r` of `Points` and prints each round.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel import MLP, Options, simulate
from umbel.server.run_config import parsed
from umbel.strategies.optimizers import SGD
from umbel.strategies.task import Site, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from umbel.server.ledger import RoundRecord
    from umbel.simulation.federation import Result

CLIENTS, ROUNDS = 20, 30
STAYS = "POINTS_STAYS"
"""Variable: the process that has run waits to be killed; whoever kills it may come late."""
SLEEP = "POINTS_SLEEP_S"
"""Variable: seconds that a client's examples take to come, so a run is long enough to be killed."""


class Points(Task):
    """Three classes in five dimensions; client i has i + 1 examples."""

    optimizer = SGD(lr=0.2, momentum=0.5)
    batch_size = 7

    def model(self) -> MLP:
        """Return two layers."""
        return MLP(5, 8, 3)

    def train_data(self, site: Site) -> tuple[Any, Any]:
        """Return one client's."""
        time.sleep(float(os.environ.get(SLEEP, "0")))
        return points(site.index + 1, site.index)

    def test_data(self) -> tuple[Any, Any]:
        """Return 60."""
        return points(60, 999)


class TorchPoints(Points):
    """The same with torch, for the tiers that compile it."""

    def model(self) -> Any:
        """Return two layers."""
        from torch import nn  # noqa: PLC0415 - a run of `Points` needs no torch

        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def points(count: int, seed: int) -> tuple[Any, Any]:
    """Return examples: a class shifts the mean."""
    rng = np.random.default_rng([17, seed])
    labels = rng.integers(3, size=count)
    return (rng.normal(size=(count, 5)) + labels[:, None]).astype(np.float32), labels


def digest(result: Result) -> str:
    """Return one hash over the last model's arrays."""
    found = hashlib.sha256()
    for name, array in sorted(result.model.items()):
        found.update(name.encode() + array.tobytes())
    return found.hexdigest()


def run(home: Path, settings: Mapping[str, Any], *, resume: bool = False) -> Result:
    """Run `Points`, or take it up; the setting `model` may say that it is torch's."""
    settings = dict(settings)
    task = TorchPoints() if settings.pop("model", "") == "torch" else Points()
    known = {"clients": CLIENTS, "rounds": ROUNDS, "cohort": 6, "tier": "T3", **settings}
    options = Options(run="r", home=home, secure=False, settings=known, resume=resume)
    return simulate(task, options, _say)


def killed(
    home: Path, settings: Mapping[str, Any], line: int, after: float, slow: float = 0.002
) -> int:
    """Run it in a process, and kill that some time after a line; return how many lines came."""
    words = [f"{key}={value}" for key, value in settings.items()]
    with subprocess.Popen(
        [sys.executable, "-m", "umbel.tests.simulated_runs", str(home), *words],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {SLEEP: str(slow), STAYS: "1"},
    ) as process:
        lines = 0
        for _ in process.stdout or ():
            lines += 1
            if lines == line:
                time.sleep(after)
                os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return lines


def _say(record: RoundRecord) -> None:
    print(record.round, record.outcome, flush=True)


def main() -> None:
    """Run, or go on."""
    home, *words = sys.argv[1:]
    settings = {key: parsed(value) for key, _, value in (word.partition("=") for word in words)}
    print("begins", flush=True)
    run(Path(home), settings, resume=(Path(home) / "runs" / "r" / "ledger.sqlite").exists())
    if STAYS in os.environ:
        signal.pause()


if __name__ == "__main__":
    main()
