"""The server step: seconds in which a model moves by a round's mean, beside Flower's strategies.

    adam, yogi, adagrad, momentum    FedAdam, FedYogi, FedAdagrad and FedAvgM, one thread
    torch/adam ...                   the same by torch.optim, the kernels of a GPU

The limit is a copy of as many bytes as the step reads and writes. How each is measured:
docs/benchmarks.md.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from . import rule_steps
from .record import Measurement
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = ("adam", "yogi", "adagrad", "momentum")
IN_TORCH = tuple(f"{rule_steps.TORCH}{name}" for name in CASES)
_NEED = {"params": 1000, "runs": 1}


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 10_000_000,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"params": params, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    torch = importlib.util.find_spec("torch") is not None
    yield from rule_steps.cases(CASES + IN_TORCH * torch, params, runs)
    if not torch:
        reason = "torch is not installed; `pip install umbel[torch]`"
        for case in IN_TORCH:
            yield Measurement(bench="step", case=case, unit="s", absent=reason)
