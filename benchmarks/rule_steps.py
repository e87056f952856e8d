"""Umbel's side and the limit of `umbel bench step`: the rules, tile by tile as in the core."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from . import flower_step as flower
from .layer_sizes import layer_sizes
from .record import Measurement, interleave
from ..strategies import one_pass
from ..strategies.fedavg import tiles
from ..strategies.server_rules import FedAdagrad, FedAdam, FedAvgM, FedYogi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..strategies.server_rules import Rule

    Floats = NDArray[np.float32]
    Step = Callable[[], object]

RULES: dict[str, Rule] = {
    "adam": FedAdam(),
    "yogi": FedYogi(),
    "adagrad": FedAdagrad(),
    "momentum": FedAvgM(server_momentum=0.9),
}
ARGUMENTS: dict[str, dict[str, Any]] = {"momentum": {"server_momentum": 0.9}}
TOUCHED = {"adam": 7, "yogi": 7, "adagrad": 5, "momentum": 5}
"""Words a parameter: delta read, model and each moment read and written."""
TORCH = "torch/"


def cases(names: Sequence[str], params: int, runs: int) -> Iterator[Measurement]:
    """Measure the steps of these names over a model of `params` float32."""
    said = "in one pass, compiled by numba" if one_pass.COMPILED.load() else "in numpy"
    print(f"umbel bench step: the rules run {said}", file=sys.stderr, flush=True)
    for name in names:
        yield _case(name, params, runs)


def _case(name: str, params: int, runs: int) -> Measurement:
    kind = name.removeprefix(TORCH)
    delta = np.random.default_rng(0).standard_normal(params, np.float32)
    half = np.zeros(TOUCHED[kind] * params // 2, np.float32)
    other = np.zeros_like(half)
    step = _torch(kind, delta) if name != kind else _rule(RULES[kind], delta)
    calls: dict[str, Callable[[], float]] = {
        "umbel": lambda: _timed(step),
        "peer": _Peer(kind, ARGUMENTS.get(kind, {}), delta),
        "limit": lambda: _timed(lambda: np.copyto(other, half)),
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
        peer_name=f"{flower.NAME} {flower.STRATEGIES[kind][0].__name__}",
        limit=statistics.median(found["limit"]),
        limit_name=f"copy that moves {4 * TOUCHED[kind]} bytes a parameter",
    )


def _rule(rule: Rule, delta: Floats) -> Step:
    """Return a step from one model's memory into another's, as a core's."""
    old, new = np.zeros_like(delta), np.zeros_like(delta)
    state = {name: np.full_like(delta, rule.initial(name)) for name in rule.moments}

    def step() -> None:
        for tile in tiles(len(delta)):
            own = {name: moment[tile] for name, moment in state.items()}
            rule.move("weight", old[tile], delta[tile], new[tile], own, 1)

    return step


def _torch(name: str, delta: Floats) -> Step:
    """Return torch.optim's step of the same name."""
    torch = importlib.import_module("torch")
    steps = importlib.import_module("..server.core.torch_step", __package__)
    arguments, given = ARGUMENTS.get(name, {}), torch.from_numpy(delta)
    step = getattr(steps, name)(torch.zeros(len(delta)), **arguments)

    def one_thread() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        step(given)
        torch.set_num_threads(threads)

    return one_thread


class _Peer:
    """Flower's strategy, each time on the float32 model: its FedAdam returns float64."""

    def __init__(self, name: str, arguments: dict[str, Any], delta: Floats) -> None:
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
