"""Simulated clients per second: Umbel's tiers, a plain torch loop, Flower's engine, pfl-research.

    umbel/T0, T1, T2       FedAvg by a tier that hands over a sum, the next model included
    umbel/T3               an unchanged Flower app on our engine; umbel/T3-task: tier T3 on a Task
    umbel/rows             as T0 to T2, by rows of the fastest of them
    torch-loop             the plain loop, in one process
    flower, pfl            the peers, on their own; null where they are not installed

Clients a second are the cohort over the median time of a round after the first. Every figure is a
process of its own, with one thread of OpenMP; they take turns, `--runs` times. The peer is Flower's
engine, for T3 with the very same ClientApp; a second line of a case, `…/pfl`, has pfl-research
beside it. The limit is the machine's matrix product over the operations of a client. How each is
measured: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import simulation_work as work
from .record import Measurement
from ..host.spawned import THREADS, module_command
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OWN = (
    "umbel/T0", "umbel/T1", "umbel/T2", "umbel/T3", "umbel/T3-task", "umbel/rows", "torch-loop",
)  # fmt: skip
PEERS = ("flower", "pfl")
_KERNELS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that keep a library from the processor's own kernels."""
LONGEST_S = 1800.0
"""How long one process may take."""
_LINE = 300


def run(
    model: Annotated[str, typer.Option(help="mlp, cnn or cifar.")] = "mlp",
    runs: Annotated[int, typer.Option(help="Turns; a published figure needs five.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of our own cases, a turn.")] = 10,
    peer_rounds: Annotated[int, typer.Option(help="Rounds of the peers, a turn.")] = 4,
    only: Annotated[str, typer.Option(help="Cases with a comma between; empty for all.")] = "",
    peers_python: Annotated[
        str, typer.Option(help="Interpreter that has flwr with Ray, and pfl; else this one.")
    ] = "",
) -> Iterator[Measurement]:
    """Yield every case; the numbers are checked before anything starts."""
    cases = [case for case in only.split(",") if case] or [*OWN, *PEERS]
    for case in cases:
        if case not in {*OWN, *PEERS}:
            raise SettingsError("--only", f"cases among {', '.join((*OWN, *PEERS))}", case)
    if model not in work.WORKLOADS:
        raise SettingsError("--model", f"one of {', '.join(work.WORKLOADS)}", model)
    least = {"runs": (runs, 1), "rounds": (rounds, 2), "peer-rounds": (peer_rounds, 2)}
    for name, (value, low) in least.items():
        if value < low:
            raise SettingsError(f"--{name}", f"{low} or more", value)
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as folder:
        bench = _Bench(model, Path(folder), rounds, peer_rounds, peers_python or sys.executable)
        for turn in range(runs):
            for case in cases:
                _say(f"turn {turn + 1} of {runs}: {case}")
                bench.measure(case)
        yield from bench.measurements(cases)


class _Bench:
    """The figures of one model."""

    def __init__(
        self, model: str, folder: Path, rounds: int, peer_rounds: int, python: str
    ) -> None:
        """Make the data, and measure the limit in a quiet moment."""
        self._model, self._folder, self._python = model, folder, python
        self._rounds, self._peer_rounds = rounds, peer_rounds
        self._rates: dict[str, list[float]] = {}
        self._absent: dict[str, str] = {}
        work.write_data(model, folder)
        (folder / "packages").mkdir()
        (folder / "packages" / __package__.partition(".")[0]).symlink_to(
            Path(__file__).resolve().parents[1]
        )
        rates = self._child(sys.executable, "torch_simulation", "limit", model, "0")
        self._limit = rates[0] if isinstance(rates, list) else None

    def measure(self, case: str) -> None:
        """Measure a case once more, unless it is not to be had here."""
        if case in self._absent:
            return
        found = self._seconds(case)
        if isinstance(found, str):
            self._absent[case] = found
            return
        rate = work.WORKLOADS[self._model].cohort / statistics.median(found[1:])
        self._rates.setdefault(case, []).append(rate)

    def _seconds(self, case: str) -> list[float] | str:
        """Return the seconds of each round, or why there are none."""
        own, peer = str(self._rounds), str(self._peer_rounds)
        match case:
            case "flower":
                return self._child(self._python, "flower_simulation", case, self._model, peer)
            case "umbel/T3":
                return self._child(sys.executable, "flower_simulation", "T3", self._model, own)
            case "pfl":
                cores = str(len(os.sched_getaffinity(0)))
                launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
                command = [self._python, *launcher, cores, "-m", f"{__package__}.pfl_simulation"]
                return self._run([*command, self._model, str(self._folder), peer])
            case "umbel/rows":
                what = f"rows/{self._fastest()}"
                return self._child(sys.executable, "torch_simulation", what, self._model, own)
            case "torch-loop":
                arguments = (self._model, str(self._folder), own)
                return self._run(
                    module_command(sys.executable, __package__, "torch_workloads", *arguments)
                )
        what = case.removeprefix("umbel/").removesuffix("-task")
        return self._child(sys.executable, "torch_simulation", what, self._model, own)

    def _child(
        self, python: str, module: str, what: str, model: str, rounds: str
    ) -> list[float] | str:
        arguments = (what, model, str(self._folder), rounds)
        return self._run(module_command(python, __package__, module, *arguments))

    def _run(self, command: Sequence[str]) -> list[float] | str:
        """Return what a process prints last, or the last line of what it complains of."""
        package = __package__.partition(".")[0]
        environment = {
            **os.environ, **dict.fromkeys(THREADS, "1"), **_FLOWER,
            "PYTHONPATH": str(self._folder / "packages"), "UMBEL_HOME": str(self._folder / package),
        }  # fmt: skip
        for name in _KERNELS:
            environment.pop(name, None)
        try:
            done = subprocess.run(  # noqa: S603 - our own modules
                command, env=environment, capture_output=True, text=True, timeout=LONGEST_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("[", "{"))]
        if done.returncode or not lines:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            return said[-1][:_LINE] if said else f"exit status {done.returncode}"
        found: list[float] = json.loads(lines[-1])
        return found

    def measurements(self, cases: Sequence[str]) -> Iterator[Measurement]:
        """Yield the cases with their peers."""
        for case in cases:
            yield self._measurement(case, case, None if case in PEERS else "flower")
            if case not in PEERS and case in self._rates and "pfl" in self._rates:
                yield self._measurement(f"{case}/pfl", case, "pfl")

    def _measurement(self, name: str, case: str, peer: str | None) -> Measurement:
        found = self._rates.get(peer or "", [])
        return Measurement(
            bench="simulate",
            case=name,
            unit="clients/s",
            samples=self._rates.get(case, []),
            peer=found,
            peer_name=f"{peer}, {self._model}" if found else None,
            limit=self._limit,
            limit_name=None if self._limit is None else f"{self._model} as matrix products",
            absent=None if case in self._rates else self._absent.get(case, "not measured"),
        )

    def _fastest(self) -> str:
        """Return the tier to take rows of."""
        known = [case for case in OWN[:3] if case in self._rates]
        best = max(known, key=lambda case: statistics.median(self._rates[case]), default="T3")
        return best.removeprefix("umbel/")


_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench simulate: {line}", file=sys.stderr, flush=True)
