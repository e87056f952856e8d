"""A round over a model of 2.5 GB, plain and secure, and the memory that the core service takes.

    python -m umbel.tests.large_model [--bytes 2500000000]        about four minutes; `make large`

FedAvg, one slot, three devices that make their frames (large_devices.py), and no setting that
speaks of a size. Prints one JSON object a round: seconds, the core's peak of resident memory,
shared memory in it, and that in models. Ends with an error where that is more than `MOST` of them,
or the model is not what it must be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.protocol.codec import Codec
from umbel.tests.federations import PARAMS, Run, addressed, core, made
from umbel.tests.gateway import Numbers
from umbel.tests.large_devices import VALUE, WEIGHT
from umbel.tests.test_crowd import Crowd

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 4.0


class Zeros(Numbers):
    """A model of zeros, without a gap in its message."""

    def __init__(self, nbytes: int) -> None:
        """Take so many bytes."""
        super().__init__()
        self._rows = nbytes // 64

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return it."""
        return {"w": np.zeros((self._rows, 16), np.float32)}


class Devices(Crowd):
    """The three devices in a process of their own."""

    module = "umbel.tests.large_devices"


def peak(pid: int) -> dict[str, int]:
    """Return what the kernel says of a process's memory, in bytes."""
    rows = dict(row.split(":") for row in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: 1024 * int(rows[name].split()[0]) for name in ("VmHWM", "VmRSS", "RssShmem")}


def play(folder: Path, scheme: str, nbytes: int) -> dict[str, Any]:
    """Play one round and return its figures."""
    secure = scheme == "A"
    federation = made(folder / "federation", secure=secure)
    with (folder / "core.log").open("w") as log, core(federation, log, ("--slots", "1")) as port:
        addressed(federation, f"127.0.0.1:{port}", secure=secure)
        pid = json.loads((federation.folder / "core.json").read_text())["pid"]
        before = peak(pid)["VmHWM"]
        run = Run(
            federation, folder, f"large-{scheme}", trainer=Zeros(nbytes), scheme=scheme, rounds=1,
            behind=True, final_evaluation=False,
        )  # fmt: skip
        devices = Devices("", run, range(3))
        try:
            began = time.monotonic()
            run.joined(3)
            run.coordinator.begin(time.monotonic())
            run.pump(lambda: run.coordinator.done, 1800.0)
            seconds = time.monotonic() - began
            (record,) = run.records
            check(run, record.outcome == "finished", record.cause)
            found, after = peak(pid), run.coordinator.model
            codec = Codec(3, PARAMS.value_range, PARAMS.weight_cap)
            code = round(codec.scale * WEIGHT * VALUE)
            expected = np.float32(3 * code / (codec.scale * 3 * WEIGHT))
            check(run, bool((after["w"][::7] == expected).all()), "the model is another")
            run.core.goodbye()
            rounds = devices.answer()["rounds"]
        finally:
            devices.kill()
            run.close()
    model = run.coordinator.manifest.total_bytes
    return {
        "scheme": scheme, "model": model, "seconds": round(seconds, 1), "rounds": rounds,
        "phases": record.seconds, "before": before, **found,
        "models": round(found["VmHWM"] / model, 3),
    }  # fmt: skip


def check(run: Run, good: bool, what: str) -> None:
    """End with an error, and with what the ledger says."""
    if not good:
        events = [(e.kind, e.node[:8], e.code) for e in run.directory.ledger.events()]
        log = (run.federation.folder.parent / "core.log").read_text()
        raise SystemExit(f"{what}: {events}\n{log}")


def main() -> None:
    """Play both rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=2_500_000_000)
    parser.add_argument("--scheme", choices=("plain", "A"), action="append")
    asked = parser.parse_args()
    worst = 0.0
    for scheme in asked.scheme or ("plain", "A"):
        with tempfile.TemporaryDirectory() as folder:
            found = play(Path(folder), scheme, asked.bytes)
        print(json.dumps(found), flush=True)
        worst = max(worst, found["models"])
    if worst > MOST:
        sys.exit(f"{worst} models of memory, at most {MOST}")


if __name__ == "__main__":
    main()
