"""A secure round of a thousand simulated clients, whose sum is compared with other integers.

    python -m umbel.tests.large_secure [--clients 1000] [--params 100000]     a minute; `make large`

Every client has keys, certificate, policy and session; only the training is a table of numbers.
What the sum must be is made here with numpy's integers and pycryptodome's ChaCha20, and nothing of
the package (integers.py, for more clients at once). Prints one JSON object: seconds of the whole
round, milliseconds a client, this process's peak of resident memory. Ends with an error where the
model is not what the integers make of it, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import resource
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from Crypto.Cipher import ChaCha20

import umbel
from umbel.clients.child import InProcess
from umbel.protocol.plan import Params
from umbel.server.settings import RunSettings
from umbel.simulation.engine.work import Report
from umbel.simulation.federation import Federation
from umbel.simulation.seats import Cohort

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from umbel.simulation.engine.work import Reduced, Work

RANGE, CAP = 0.5, 64
PARAMS = Params(value_range=RANGE, weight_cap=CAP, min_members=3, min_survivors=3)


def weight(client: int) -> int:
    """Return a client's number of examples, below the cap."""
    return 11 + 2 * (client % 12)


def update(client: int, params: int) -> NDArray[np.float32]:
    """Return a client's update, a few values of which are beyond the value range."""
    values = np.random.default_rng(client).standard_normal(params, np.float32)
    return values * np.float32(0.12)


class Numbers(umbel.Task):
    """A model of zeros, so that the first model is the mean itself."""

    def __init__(self, params: int) -> None:
        """Take the number of parameters."""
        self.params = params

    def model(self) -> Any:
        """Return it."""
        return {"w": np.zeros(self.params, np.float32)}

    def loss(self, arrays: Any, batch: Any) -> Any:
        """Return no loss: nobody trains by it."""
        return 0.0, arrays

    def declarations(self) -> Any:
        """Return nothing beside the number of examples."""
        return {}


class Table:
    """The tier: everybody's update is `update`."""

    name = "table"

    def __init__(self, params: int) -> None:
        """Take the number of parameters."""
        self.params = params

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Write the updates."""
        for row, client in zip(out, work.clients.tolist(), strict=True):
            row[:] = update(client, self.params)
        examples = np.array([weight(client) for client in work.clients.tolist()], np.int64)
        return Report(
            verdicts=np.zeros(len(examples), np.uint8),
            weights=examples,
            examples=examples,
            losses=np.zeros(len(examples)),
        )

    def reduce(self, work: Work) -> Reduced:
        """Refuse: a secure run needs rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


def expected(clients: int, params: int) -> NDArray[np.float32]:
    """Return the model that the integers make: sum of codes over scale and weights."""
    q_max = 2 ** (32 - math.ceil(math.log2(clients)) - 1) - 1
    scale = q_max / (RANGE * CAP)
    total = np.zeros(params, np.int64)
    for client in range(clients):
        label = (b"umbel/rounding/1", b"0", b"1", b"%d" % client, b"train")
        key = hashlib.sha256(b"".join(struct.pack("<Q", len(f)) + f for f in label)).digest()
        stream = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(4 * params))
        y = (scale * weight(client)) * update(client, params).astype(np.float64)
        low = np.floor(y)
        up = np.frombuffer(stream, "<u4") / 2**32 < y - low  # both are exact
        total += np.clip(low.astype(np.int64) + up, -q_max, q_max)
    model: NDArray[np.float32] = np.asarray(
        total / (scale * sum(map(weight, range(clients)))), np.float32
    )
    return model


def play(home: Path, clients: int, params: int) -> dict[str, Any]:
    """Play one round and return its figures.

    Raises:
        SystemExit: The round failed, or its model is another.
    """
    task = Numbers(params)
    settings = RunSettings(run="large-secure", rounds=1, params=PARAMS, final_evaluation=False)
    began = time.perf_counter()
    cohort = Cohort(Table(params), task, InProcess(task))
    federation = Federation(cohort, settings, clients=clients, home=home)
    ready = time.perf_counter()
    result = federation.run()
    took = time.perf_counter() - ready
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if result.failure is not None or len(result.records[0].survivors) != clients:
        raise SystemExit(f"large_secure: {result.failure or 'some were lost'}")
    if result.model["w"].tobytes() != expected(clients, params).tobytes():
        raise SystemExit("large_secure: the model is not what the integers make")
    return {
        "clients": clients,
        "params": params,
        "enrolled_s": round(ready - began, 2),
        "round_s": round(took, 2),
        "client_ms": round(1e3 * took / clients, 2),
        "peak_mib": peak >> 20,
        "exact": True,
    }


def main(arguments: list[str]) -> None:
    """Play it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--params", type=int, default=100_000)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(play(Path(home), chosen.clients, chosen.params)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
