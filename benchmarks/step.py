"""The server step: seconds in which a model moves by a round's mean, beside Flower's strategies.

    adam, yogi, adagrad, momentum    FedAdam, FedYogi, FedAdagrad and FedAvgM, one thread

The limit is a copy of as many bytes as the step reads and writes. How each is measured:
docs/benchmarks.md.
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

CASES = ("adam", "yogi", "adagrad", "momentum")
_NEED = {"params": 1000, "runs": 1}


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 10_000_000,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"params": params, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if importlib.util.find_spec("torch") is None:
        reason = "torch is not installed; `pip install umbel[torch]`"
        for case in CASES:
            yield Measurement(bench="step", case=case, unit="s", absent=reason)
        return
    found = importlib.import_module(".torch_steps", __package__).cases(CASES, params, runs)
    yield from found
