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


def play(
    folder: Path, scheme: str, nbytes: int, *, count: int = 3, rounds: int = 1
) -> tuple[dict[str, Any], list[int]]:
    """Play some rounds; return their figures, and the core's resident memory after each."""
    secure, resident = scheme == "A", list[int]()
    federation = made(folder / "federation", count, secure=secure)
    with (folder / "core.log").open("w") as log, core(federation, log, ("--slots", "1")) as port:
        addressed(federation, f"127.0.0.1:{port}", secure=secure)
        pid = json.loads((federation.folder / "core.json").read_text())["pid"]
        before = peak(pid)["VmHWM"]
        run = Run(
            federation, folder, f"large-{scheme}", trainer=Zeros(nbytes), scheme=scheme,
            rounds=rounds, behind=True, final_evaluation=False,
            around={"observe": lambda _record: resident.append(peak(pid)["VmRSS"])},
        )  # fmt: skip
        devices = Devices("", run, range(count))
        try:
            began = time.monotonic()
            run.joined(count)
            run.coordinator.begin(time.monotonic())
            run.pump(lambda: run.coordinator.done, 1800.0)
            seconds = time.monotonic() - began
            if run.disk is not None:
                run.disk.flush()
            records = run.directory.ledger.rounds()
            check(run, [r.outcome for r in records] == ["finished"] * rounds, records[-1].cause)
            found = peak(pid)
            check(run, _exact(run, count, rounds), "the model is another")
            run.core.goodbye()
            took_part = devices.answer()["rounds"]
        finally:
            devices.kill()
            run.close()
    model = run.coordinator.manifest.total_bytes
    figures = {
        "scheme": scheme, "model": model, "clients": count, "rounds": rounds,
        "took part": sum(took_part), "seconds": round(seconds, 1),
        "phases": records[-1].seconds, "before": before, **found,
        "models": round(found["VmHWM"] / model, 3),
    }  # fmt: skip
    return figures, resident


def _exact(run: Run, count: int, rounds: int) -> bool:
    """Say whether the model is so many times the mean of the one code that all devices send."""
    codec = Codec(count, PARAMS.value_range, PARAMS.weight_cap)
    total, value = count * round(codec.scale * WEIGHT * VALUE), np.float32(0.0)
    for _ in range(rounds):
        value += np.float32(total / (codec.scale * count * WEIGHT))
    return bool((run.coordinator.model["w"][::7] == value).all())


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
            found, _ = play(Path(folder), scheme, asked.bytes)
        print(json.dumps(found), flush=True)
        worst = max(worst, found["models"])
    if worst > MOST:
        sys.exit(f"{worst} models of memory, at most {MOST}")


if __name__ == "__main__":
    main()
