"""A plan of a million devices: what `umbel plan` takes before a run of 1,000 rounds.

    devices=1e6/seconds                 from the command's start to its end, as a shell sees it
    devices=1e6/memory                  MiB that its process held at most, Python among it
    devices=1e6/cohort=5000/seconds     the same for rounds of 5,000 in place of 100
    devices=1e6/cohort=5000/memory

Each run is a process of its own: fleet.toml read, every device drawn, rounds, odds, costs and
sensitivities, the plan as JSON. No platform that we know plans a run, so there is no peer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .clock_process import FLEET
from .process_memory import MIB
from .record import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTINGS = ("deadline=120", "dropout=0.05")
_LARGE = 50
"""Times as many in the second pair of cases."""
_KIB = 1024


class Took(NamedTuple):
    """What one command took."""

    seconds: float
    memory: float
    """MiB."""


def run(
    clients: Annotated[int, typer.Option(help="Devices.")] = 1_000_000,
    cohort: Annotated[int, typer.Option(help="Updates that a round waits for.")] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of the run.")] = 1000,
    params: Annotated[int, typer.Option(help="Numbers of the model.")] = 60_000,
    runs: Annotated[int, typer.Option(help="Runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Measure the command over a fleet of one cohort that is online some hours a day."""
    options = ["--clients", str(clients), "--rounds", str(rounds), "--parameters", str(params)]
    size = f"devices={clients:.0e}".replace("e+0", "e")
    cases = {size: cohort, f"{size}/cohort={_LARGE * cohort}": _LARGE * cohort}
    found: dict[str, list[Took]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, each in cases.items():
            found[name].append(_planned([*options, "-c", f"cohort={each}"]))
    for name, took in found.items():
        yield _case(f"{name}/seconds", "s", [one.seconds for one in took])
        yield _case(f"{name}/memory", "MiB", [one.memory for one in took])


def _planned(options: list[str]) -> Took:
    """Plan once.

    Raises:
        OSError: The command failed; what it said is in the message.
    """
    with tempfile.TemporaryDirectory(prefix="um") as folder, tempfile.TemporaryFile() as said:
        file = Path(folder, "fleet.toml")
        file.write_text(FLEET, "utf-8")
        command = [sys.executable, "-m", "umbel", "plan", str(file), "--secure", "off", *options]
        for setting in _SETTINGS:
            command += ["-c", setting]
        began = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--format", "json"], stdout=subprocess.DEVNULL, stderr=said
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise OSError(f"umbel plan: {said.read().decode('utf-8', 'replace')[-500:]}")
    return Took(seconds, usage.ru_maxrss * _KIB / MIB)


def _case(case: str, unit: str, samples: list[float]) -> Measurement:
    return Measurement(bench="plan", case=case, unit=unit, samples=samples)
