"""Ten thousand clients in a round under a robust rule, and as many at work at any time: the memory.

    python -m umbel.tests.large_rows [CASE ...] [--clients 10000]        some minutes; `make large`

    median, trimmed-mean, multi-krum    one round: a row of 60,430 parameters a client, 2.4 GB
    buffered                            an asynchronous run, a tenth of the clients a buffer

A real run each, in a process of its own: a perceptron of 784-76-10 on clients of 50 examples, cut
out of one array. Prints one JSON object a case: seconds of a round, the process's peak of resident
memory with what it maps. Ends with an error where that is beyond `MOST`, or a client was lost.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import umbel

MOST = 4 << 30
"""Bytes."""
POOL, EACH = 5000, 50
RULES = ("median", "trimmed-mean", "multi-krum")
CASES = (*RULES, "buffered")
ROUNDS = 30
FLEET = """
[cohorts.phones]
share = 1.0
samples = 50
speed = { lognormal = { median = 0.02, sigma = 0.6 } }
bandwidth = 1e6
"""


class Blobs(umbel.Task):
    """784 inputs, ten classes; a client's examples are 50 rows of one pool."""

    optimizer = umbel.SGD(lr=0.1)
    batch_size = 10

    def __init__(self) -> None:
        """Make the pool: normal prototypes, and noise."""
        rng = np.random.default_rng(1)
        self._labels = rng.integers(10, size=POOL)
        prototypes = rng.standard_normal((10, 784), np.float32)
        noise = rng.standard_normal((POOL, 784), np.float32)
        self._inputs = np.float32(0.6) * prototypes[self._labels] + noise

    def model(self) -> Any:
        """Return a perceptron of 60,430 parameters."""
        return umbel.MLP(784, 76, 10)

    def train_data(self, site: umbel.Site) -> Any:
        """Return 50 examples that follow each other."""
        start = 13 * site.index % (POOL - EACH)
        return self._inputs[start : start + EACH], self._labels[start : start + EACH]


def settings(case: str, clients: int, folder: Path) -> dict[str, Any]:
    """Return what the run is asked for."""
    if case == "buffered":
        fleet = folder / "fleet.toml"
        fleet.write_text(FLEET, "utf-8")
        return {
            "fleet": str(fleet), "clients": 2 * clients, "cohort": clients,
            "buffer": clients // 10, "rounds": ROUNDS,
        }  # fmt: skip
    return {
        "clients": clients,
        "rounds": 1,
        "robust": case,
        "robust-byzantine": clients // 10,
        "min-survivors": clients // 2,
    }


def play(case: str, clients: int, folder: Path, tier: str = "T0") -> dict[str, Any]:
    """Play one case and return its figures.

    Raises:
        SystemExit: A round failed, or took more memory than it may.
    """
    asked = settings(case, clients, folder) | {"tier": tier}
    options = umbel.Options(secure=False, run="large", home=folder, settings=asked)
    began = time.perf_counter()
    result = umbel.simulate(Blobs(), options)
    took = time.perf_counter() - began
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = {len(record.survivors) for record in result.records}
    wanted = {asked["buffer"] if case == "buffered" else clients}
    if result.failure is not None or sizes != wanted:
        raise SystemExit(f"large_rows: {case}: {result.failure or f'rounds of {sizes}'}")
    if peak > MOST:
        raise SystemExit(f"large_rows: {case}: {peak >> 20} MiB of at most {MOST >> 20}")
    seconds = {name: round(value, 2) for name, value in result.records[-1].seconds.items()}
    return {
        "case": case,
        "clients": clients,
        "rounds": len(result.records),
        "run_s": round(took, 2),
        "last_round_s": seconds,
        "peak_mib": peak >> 20,
    }


def main(arguments: list[str]) -> None:
    """Play the cases, each in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--here", action="store_true")
    chosen = parser.parse_args(arguments)
    if not chosen.here:
        again = [sys.executable, "-m", "umbel.tests.large_rows", "--here"]
        for case in chosen.cases:
            subprocess.run([*again, "--clients", str(chosen.clients), case], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen.cases:
            print(json.dumps(play(case, chosen.clients, Path(folder))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
