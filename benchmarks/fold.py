"""The fold: GB/s at which a thread adds client updates to an accumulator, beside Flower's mean.

    float/threads=1    float32 updates in place, torch.addmv
    float/read         the same beside reading the updates once, which no fold can beat
    float/pair         into the other accumulator of a pair, batches of 16; the peer is in place
    float/threads=2    one half of the columns for each thread
    ring/threads=1     masked words, modulo 2^32
    bf16, int8         updates that are widened in tiles
    sparse             the largest 1 % of each update, as indices and values
    ring/ranks=1, =2   sums by ranks, processes over shared memory; the peer is one rank
    memory/64-over-8   the core's peak in a round of 64 clients, over that in a round of 8
    memory/named       the same peak over the sum of what the core says that it holds

A GB is one of updates as float32, 4 bytes x params x clients, in whatever form they travel: equal
figures are equal seconds. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from .ingest_process import other
from .record import Measurement
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = ("float/threads=1", "float/read", "float/pair", "float/threads=2", "ring/threads=1",
         "bf16/threads=1", "int8/threads=1", "sparse/threads=1")  # fmt: skip
RANKED = ("ring/ranks=1", "ring/ranks=2")
FEW, MANY = 8, 64
"""Clients of the two rounds whose memory is compared."""
_NEED = {"params": 1000, "clients": 1, "runs": 1}


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 10_000_000,
    clients: Annotated[int, typer.Option(help="Updates of a round, all in memory.")] = 32,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
    ranks: Annotated[bool, typer.Option(help="Start ranks, too.")] = True,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"params": params, "clients": clients, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed; `pip install umbel[torch]`"
        for case in CASES + RANKED * ranks:
            yield Measurement(bench="fold", case=case, unit="GB/s", absent=reason)
    else:
        race = importlib.import_module(".torch_fold", __package__).Race
        yield from race(params, clients, runs).cases()
        if ranks:
            ranked = importlib.import_module(".torch_ranked_fold", __package__)
            yield from ranked.cases(params, clients, runs)
    yield from _memory(params, runs)


def _memory(params: int, runs: int) -> Iterator[Measurement]:
    """Compare peaks, each of a new process."""
    peaks: dict[int, list[float]] = {FEW: [], MANY: []}
    shares = []
    for _ in range(runs):
        for clients, found in peaks.items():
            with other("fold_memory") as process:
                said = process.ask(clients=clients, params=params)
            found.append(said["peak"])
            shares.append(said["peak"] / said["named"])
    flat = [many / few for few, many in zip(*peaks.values(), strict=True)]
    for case, samples, name in (
        ("memory/64-over-8", flat, "flat"),
        ("memory/named", shares, "accumulator, slot, model and next model"),
    ):
        yield Measurement(
            bench="fold", case=case, unit="ratio", samples=samples, limit=1.0, limit_name=name
        )
