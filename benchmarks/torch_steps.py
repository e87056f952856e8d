"""Umbel's side and the limit of `umbel bench step`."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import flower_step as flower
from .layer_sizes import layer_sizes
from .record import Measurement, interleave
from ..server.core import torch_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..server.core.torch_step import Step

RULES: dict[str, Callable[..., Step]] = {
    "adam": torch_step.adam,
    "yogi": torch_step.yogi,
    "adagrad": torch_step.adagrad,
    "momentum": torch_step.momentum,
}
ARGUMENTS: dict[str, dict[str, Any]] = {"momentum": {"server_momentum": 0.9}}
TOUCHED = {"adam": 7, "yogi": 7, "adagrad": 5, "momentum": 5}
"""Words a parameter: delta read, model and each moment read and written."""


def cases(names: Sequence[str], params: int, runs: int) -> Iterator[Measurement]:
    """Measure the steps of these names over a model of `params` float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in names:
            yield _case(name, params, runs)
    finally:
        torch.set_num_threads(threads)


def _case(name: str, params: int, runs: int) -> Measurement:
    arguments = ARGUMENTS.get(name, {})
    delta = torch.full((params,), 0.01).normal_(generator=torch.Generator().manual_seed(0))
    step = RULES[name](torch.zeros(params), **arguments)
    half = torch.zeros(TOUCHED[name] * params // 2)
    other = torch.zeros_like(half)
    calls: dict[str, Callable[[], float]] = {
        "umbel": lambda: _timed(lambda: step(delta)),
        "peer": _Peer(name, arguments, delta.numpy()),
        "limit": lambda: _timed(lambda: other.copy_(half)),
    }
    for call in calls.values():
        call()
    found = interleave(calls, runs)
    return Measurement(
        bench="step",
        case=name,
        unit="s",
        samples=found["umbel"],
        peer=found["peer"],
        peer_name=f"{flower.NAME} {flower.STRATEGIES[name][0].__name__}",
        limit=statistics.median(found["limit"]),
        limit_name=f"copy that moves {4 * TOUCHED[name]} bytes a parameter",
    )


class _Peer:
    """Flower's strategy, each time on the float32 model: its FedAdam returns float64."""

    def __init__(self, name: str, arguments: dict[str, Any], delta: Any) -> None:
        parts = np.split(delta, np.cumsum(layer_sizes(len(delta)))[:-1])
        self._average = {str(place): part for place, part in enumerate(parts)}
        self._model = {name: np.zeros_like(part) for name, part in self._average.items()}
        self._peer = flower.Peer(name, arguments, self._model)

    def __call__(self) -> float:
        self._peer.model = self._model
        return _timed(lambda: self._peer.stepped(self._average))


def _timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
