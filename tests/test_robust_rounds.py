"""Attacks in real rounds: a plain federation whose robust rule holds where the mean does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.clients.child import InProcess
from umbel.protocol.codec import Codec
from umbel.protocol.errors import SettingsError
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.protocol.plan import Params
from umbel.server.core.kept import Keeping
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.settings import RunSettings
from umbel.server.stepping import StepOrder
from umbel.simulation.federation import Federation, Result
from umbel.strategies.robust_rules import RULES, Robust
from umbel.strategies.server_rules import FedAvg
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.server.core.world import Sum
    from umbel.strategies.trainer import TrainResult

    Arrays = Mapping[str, NDArray[Any]]
    Attack = Callable[[list[dict[str, NDArray[Any]]]], dict[str, NDArray[Any]]]

CLIENTS, BYZANTINE, CLASSES, INPUTS = 11, 2, 4, 8
CENTRES = np.random.default_rng(3).normal(0.0, 1.2, (CLASSES, INPUTS))


class Clusters(umbel.Task):
    """Four clouds of points, the same at every client."""

    optimizer = umbel.SGD(lr=0.2)
    epochs = 2
    batch_size = 16

    def model(self) -> umbel.LogisticRegression:
        """Return a linear model."""
        return umbel.LogisticRegression(INPUTS, CLASSES)

    def train_data(self, site: Site) -> tuple[Any, Any]:
        """Return as many points as no other client has."""
        return self._points(60 + (site.partition or 0), site.partition or 0)

    def test_data(self) -> tuple[Any, Any]:
        """Return 400 points."""
        return self._points(400, 99)

    @staticmethod
    def _points(count: int, seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([7, seed])
        labels = rng.integers(CLASSES, size=count)
        return (CENTRES[labels] + rng.normal(size=(count, INPUTS))).astype(np.float32), labels


class Hostile(InProcess):
    """A client that knows what every honest one would send, and sends what an attack makes of it.

    Its update passes the device's own checks: they bound what it can do, not what it wants.
    """

    def __init__(self, attack: Attack, weight: int | None = None) -> None:
        super().__init__(Clusters())
        self._attack, self._weight = attack, weight

    def train(self, arrays: Arrays, site: Site, settings: Settings) -> TrainResult:
        """Return the attack."""
        honest = [
            super(Hostile, self).train(arrays, replace(site, partition=i), settings)
            for i in range(CLIENTS - BYZANTINE)
        ]
        deltas = self._attack([result.deltas for result in honest])
        found = {name: np.asarray(d, np.float32) for name, d in deltas.items()}
        weight = honest[0].weight if self._weight is None else self._weight
        return replace(honest[0], deltas=found, weight=weight)


def each(f: Callable[[NDArray[Any]], NDArray[Any]]) -> Attack:
    """Return the attack that makes f of the honest updates of every array, stacked."""
    return lambda deltas: {name: f(np.stack([d[name] for d in deltas])) for name in deltas[0]}


def first_class(x: NDArray[Any]) -> NDArray[Any]:
    """Return the largest value that the code has for the first class, the smallest for others."""
    found: NDArray[Any] = np.full(x.shape[1:], -1.0)
    found[0] = 1.0
    return found


ATTACKS: dict[str, Attack] = {
    "sign-flip": each(lambda x: -8.0 * x.mean(axis=0)),
    "scaled": each(lambda x: -1000.0 * x.mean(axis=0)),
    "constant": each(first_class),
    "a-little-is-enough": each(lambda x: x.mean(axis=0) - 1.5 * x.std(axis=0)),
}
NUMBERS: dict[str, dict[str, Any]] = {
    "trimmed-mean": {"cut": 0.2},
    "centred-clipping": {"radius": 1.0, "iterations": 2},
    "norm-bounding": {"radius": 1.0, "byzantine": 0},
}
SERVED = sorted(set(RULES) - {"fltrust"})


def robust_of(name: str) -> Robust:
    return Robust(**{"rule": name, "byzantine": BYZANTINE, **NUMBERS.get(name, {})})


def settings_of(**changes: Any) -> RunSettings:
    floor = Params(value_range=1.0, weight_cap=64, min_members=CLIENTS, min_survivors=CLIENTS)
    fields = {"run": "r", "rounds": 3, "params": floor, "final_evaluation": False}
    return RunSettings(**{**fields, "scheme": "plain", **changes})


def run(home: Path, robust: Robust | None, hostile: InProcess | None, **changes: Any) -> Result:
    """Run three rounds in which the last two clients are hostile."""
    trainers = [InProcess(Clusters())] * CLIENTS
    if hostile is not None:
        trainers[CLIENTS - BYZANTINE :] = [hostile] * BYZANTINE
    settings = settings_of(rule=FedAvg(robust=robust), **changes)
    return Federation(trainers, settings, clients=CLIENTS, home=home).run()


def stepped(total: Sum, codec: Codec) -> bytes:
    """Return the digest of the model that a sum of 64 values makes of zeros."""
    manifest = Manifest.of({"w": np.zeros(64, np.float32)})
    layout = MessageLayout(manifest, {}, "train")
    model = RunModel(manifest, bytes(32), bytes(manifest.total_bytes))
    return total.step(model, StepOrder(FedAvg(), 1, layout, codec, 4, 10))


def accuracy(result: Result) -> float:
    assert result.failure is None
    assert result.accuracy is not None
    return result.accuracy


# ---- what is lost and kept -------------------------------------------------------------------


def test_the_mean_is_good_until_two_of_eleven_are_hostile(tmp_path: Path) -> None:
    assert accuracy(run(tmp_path / "honest", None, None)) > 0.85
    for name in ("sign-flip", "scaled", "constant"):
        assert accuracy(run(tmp_path / name, None, Hostile(ATTACKS[name]))) < 0.75


@pytest.mark.parametrize("name", SERVED)
def test_a_robust_rule_keeps_what_the_mean_loses(name: str, tmp_path: Path) -> None:
    hostile = Hostile(ATTACKS["sign-flip"])
    assert accuracy(run(tmp_path, robust_of(name), hostile, rounds=2)) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("attack", sorted(ATTACKS))
@pytest.mark.parametrize("name", SERVED)
def test_every_rule_bears_every_attack(name: str, attack: str, tmp_path: Path) -> None:
    assert accuracy(run(tmp_path, robust_of(name), Hostile(ATTACKS[attack]))) > 0.8


# ---- what is picked --------------------------------------------------------------------------


def test_krums_pick_is_that_of_float64(tmp_path: Path) -> None:
    """The model moved by one client's update, the one that Blanchard's score names."""
    trainer = InProcess(Clusters())
    before = trainer.arrays(0)
    sites = [Site(partition=i, partitions=CLIENTS, seed=0) for i in range(CLIENTS)]
    updates = []
    for site in sites:
        deltas = trainer.train(before, site, Settings(round=1)).deltas
        updates.append(np.concatenate([deltas[name].ravel() for name in before]))
    exact = np.array(updates, np.float64)
    apart = ((exact[:, None] - exact[None]) ** 2).sum(axis=2)
    scores = [np.sort(np.delete(row, i))[: CLIENTS - 4].sum() for i, row in enumerate(apart)]
    after = run(tmp_path, robust_of("krum"), None, rounds=1).model
    moved = np.concatenate([(after[name] - before[name]).ravel() for name in before])
    off = np.abs(exact - moved).max(axis=1)
    assert int(off.argmin()) == int(np.argmin(scores))
    assert off.min() <= 64 / ((2**27 - 1) * 60) + 2**-23  # a code of the lightest, and float32


def test_the_same_bits_whoever_comes_first(tmp_path: Path) -> None:
    """Four clients in different orders: for each rule one sum, in the order of their ids."""
    codec, words = Codec(4, 1.0, 8), np.random.default_rng(1).integers(-9999, 9999, (4, 64))
    for name in ("median", "trimmed-mean", "geometric-median", "multi-krum"):
        keeping, found = Keeping(Robust(rule=name, cut=0.25), codec), set()
        for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
            total = World(2).open(4 * 64 + 32, 4 * 64, keeping)
            for client in order:
                slot = total.slot(f"node {client}")
                assert slot is not None
                slot[:256] = words[client].astype("<i4").tobytes()
                slot[256:] = np.array([1, client + 1, 0, 1], "<u8").tobytes()
                total.fold(f"node {client}")
            found.add(stepped(total, codec))
            total.close()
        assert len(found) == 1


# ---- what is refused -------------------------------------------------------------------------


def test_an_update_that_is_no_number_is_refused_at_its_device(tmp_path: Path) -> None:
    nan = Hostile(each(lambda x: np.full_like(x[0], np.nan)))
    floors = Params(value_range=1.0, weight_cap=64, min_members=9, min_survivors=9)
    result = run(tmp_path, robust_of("krum"), nan, params=floors)
    assert accuracy(result) > 0.85
    assert {len(record.survivors) for record in result.records} == {CLIENTS - BYZANTINE}
    assert all("not finite" in line for line in result.refusals)


def test_a_round_that_too_few_reach_ends_with_the_number(tmp_path: Path) -> None:
    nan = Hostile(each(lambda x: np.full_like(x[0], np.nan)))
    result = run(tmp_path, robust_of("bulyan"), nan)
    assert "11 are needed" in str(result.failure)
    assert [record.outcome for record in result.records] == ["aborted"]


def test_nothing_is_written_for_a_run_whose_rule_cannot_hold(tmp_path: Path) -> None:
    for changes, complaint in (
        ({"scheme": "A"}, "median compares single updates"),
        ({"params": Params(min_members=4, min_survivors=4)}, "min-survivors: expected at least 5"),
    ):
        with pytest.raises(SettingsError, match=complaint):
            run(tmp_path, robust_of("median"), None, **changes)
    assert list(tmp_path.iterdir()) == []
