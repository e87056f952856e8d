"""The fold: GB/s at which a thread adds client updates to an accumulator, beside Flower's mean.

    float/threads=1    float32 updates in place, torch.addmv
    float/read         the same beside reading the updates once, which no fold can beat
    float/pair         into the other accumulator of a pair, batches of 16; the peer is in place
    float/threads=2    one half of the columns for each thread
    ring/threads=1     masked words, modulo 2^32
    bf16, int8         updates that are widened in tiles
    sparse             the largest 1 % of each update, as indices and values

A GB is one of updates as float32, 4 bytes x params x clients, in whatever form they travel: equal
figures are equal seconds. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from .record import Measurement
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = ("float/threads=1", "float/read", "float/pair", "float/threads=2", "ring/threads=1",
         "bf16/threads=1", "int8/threads=1", "sparse/threads=1")  # fmt: skip
_NEED = {"params": 1000, "clients": 1, "runs": 1}


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 10_000_000,
    clients: Annotated[int, typer.Option(help="Updates of a round, all in memory.")] = 32,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"params": params, "clients": clients, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed; `pip install umbel[torch]`"
        for case in CASES:
            yield Measurement(bench="fold", case=case, unit="GB/s", absent=reason)
        return
    yield from (
        importlib.import_module(".torch_fold", __package__).Race(params, clients, runs).cases()
    )
