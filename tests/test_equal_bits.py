"""Masks change nothing: a secure run and a plain run of one seed publish the same bits.

Real training (a small MLP in numpy) in whole federations for the digests; a table of numbers
(rounds.py) where the sum itself is compared with an independent integer reference and with the
float64 weighted mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients.child import InProcess
from umbel.protocol import frames
from umbel.protocol.plan import Params
from umbel.server.settings import RunSettings
from umbel.simulation.drops import Drop
from umbel.simulation.federation import Federation
from umbel.strategies.numpy_models import MLP
from umbel.strategies.task import Site, Task
from umbel.tests.integers import update, weight
from umbel.tests.rounds import PARAMS, Fixed, Stage, matches, settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from umbel.server.ledger import RoundRecord
    from umbel.simulation.federation import Result


class Halves(Task):
    """Points in eight dimensions, labelled by the sign of the first; sites of different size."""

    def model(self) -> Any:
        """Return a small network."""
        return MLP(8, 6, 3)

    def train_data(self, site: Site) -> Any:
        """Return 24 points and one more for each index."""
        return _points(site.index, 24 + site.index)

    def test_data(self) -> Any:
        """Return 60 points."""
        return _points(999, 60)


def _points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def federate(
    home: Path, scheme: str, clients: int, drops: Sequence[Drop] = (), **changes: Any
) -> Result:
    """Run a federation that trains for three rounds and evaluates."""
    given: dict[str, Any] = {
        "run": f"{scheme}-{len(list(home.iterdir()))}",
        "rounds": 3,
        "scheme": scheme,
        "params": Params(min_members=3, min_survivors=3, value_range=0.5, weight_cap=40),
        "config": {"lr": 0.3, "seed": 5},
        "seed": 5,
        **changes,
    }
    home = home / given["run"]
    home.mkdir()
    run = RunSettings(**given)
    return Federation(InProcess(Halves()), run, clients=clients, home=home, drops=drops).run()


def essence(record: RoundRecord) -> tuple[object, ...]:
    """Return what must not depend on the masks: everything but ids' order, times and bytes."""
    return (
        record.round, record.phase, record.outcome, sorted(record.roster),
        sorted(record.survivors), record.model, dict(record.metrics),
    )  # fmt: skip


@pytest.mark.parametrize("clients", [5, 10])
@pytest.mark.parametrize("boundary", [None, "keys", "upload", "masked"])
def test_masks_off_and_on_publish_the_same_bits(
    tmp_path: Path, clients: int, boundary: str | None
) -> None:
    drops = [Drop(boundary, (1,), 2)] if boundary else []
    secure, plain = (federate(tmp_path, s, clients, drops) for s in ("A", "plain"))
    assert [essence(r) for r in secure.records] == [essence(r) for r in plain.records]
    assert secure.failure is plain.failure is None
    assert [r.outcome for r in secure.records] == ["finished"] * 4
    assert len({r.model for r in secure.records}) == 3  # three trainings; evaluation moves nothing
    for name, array in secure.model.items():
        assert array.tobytes() == plain.model[name].tobytes()
    left = clients - (1 if boundary else 0)
    sizes = [len(r.survivors) for r in secure.records]
    assert sizes == [clients, clients if boundary == "masked" else left, left, left]


def test_partial_cohorts_publish_the_same_bits(tmp_path: Path) -> None:
    secure, plain = (federate(tmp_path, s, 7, cohort=4) for s in ("A", "plain"))
    assert [essence(r) for r in secure.records] == [essence(r) for r in plain.records]
    assert [len(r.roster) for r in secure.records] == [4] * 4
    assert len({frozenset(r.roster) for r in secure.records}) > 1


def test_another_seed_publishes_other_bits(tmp_path: Path) -> None:
    one, other = (federate(tmp_path, "A", 5, seed=seed) for seed in (5, 6))
    assert [r.model for r in one.records] != [r.model for r in other.records]


# ---- one seed, fresh masks -------------------------------------------------------------------


def uploads(home: Path, scheme: str = "A") -> tuple[Stage, dict[int, bytes]]:
    """Play one round of five and return the stage and what each member uploaded."""
    sent: dict[int, bytes] = {}
    stage = Stage(home, 5, settings(scheme=scheme))

    def tap(way: str, node: str, data: bytes) -> None:
        if way == "up" and data.startswith(frames.MAGIC):
            index = stage.index[node]
            sent[index] = sent.get(index, b"") + data[frames.HEADER :]

    stage.link.tap = tap
    stage.play()
    return stage, sent


def test_two_runs_of_one_seed_have_equal_models_and_other_masked_bytes(tmp_path: Path) -> None:
    for name in ("one", "two", "plain"):
        (tmp_path / name).mkdir()
    (one, first), (two, second) = uploads(tmp_path / "one"), uploads(tmp_path / "two")
    bare, clear = uploads(tmp_path / "plain", "plain")
    with one, two, bare:
        assert one.coordinator.digest == two.coordinator.digest == bare.coordinator.digest
        for index in range(5):
            a, b, c = (np.frombuffer(u[index], "<u4") for u in (first, second, clear))
            # Two independent uniform words agree with probability 2^-32; 60 words a message.
            assert not (a == b).any()
            assert not (a == c).any()
        # The masks hide the zeros of the frozen layer and of the gaps, which are in clear else.
        assert not clear[0][192 - 64 : 192].strip(b"\0")
        assert all(first[0][i : i + 4] != bytes(4) for i in range(0, len(first[0]), 4))


# ---- one round from one model ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "lost"), [(3, ()), (5, ()), (5, (2,)), (8, (0, 7)), (10, (1, 4, 9)), (12, ())]
)
def test_the_mean_is_the_weighted_mean_within_the_codes_bound(
    tmp_path: Path, members: int, lost: tuple[int, ...]
) -> None:
    """The bound of the published reference, per coordinate and always.

    A code q differs from y = s w v by less than 1 (it is floor(y) or floor(y) + 1, and integers
    round to themselves). So over |U| survivors the sum is off by less than |U|, and the mean,
    which divides by s * sum(w) = s |U| w_mean, by less than 1 / (s w_mean). With
    s = Q / (c w_cap) that is (c / Q) (w_cap / w_mean). float64 adds some 2^-52 of the values.
    """
    with Stage(tmp_path, members, drops=[Drop("roster", lost, 1)] if lost else ()) as stage:
        stage.play()
        alive = [i for i in range(members) if i not in lost]
        matches(stage, 1, alive, members)
        bits = 32 - (members - 1).bit_length()
        q_max = 2 ** (bits - 1) - 1
        mean_weight = sum(map(weight, alive)) / len(alive)
        bound = PARAMS.value_range / q_max * PARAMS.weight_cap / mean_weight
        model = stage.directory.read_round(1)
        for name in ("w", "b"):
            total = sum(weight(i) * update(i, 1, (3, 5))[name].astype(np.float64) for i in alive)
            exact = total / sum(map(weight, alive))
            rounding = 2.0**-24 if name == "b" else 2.0**-50  # b is a float32
            assert np.abs(model[name] - exact).max() < bound + rounding
        assert model["frozen"].tolist() == [0.25] * 3


class Tiny(Fixed):
    """Updates of which all but the frozen layer are below one code."""

    def train(self, arrays: Any, site: Site, settings: Any) -> Any:
        """Scale the table of numbers down."""
        result = super().train(arrays, site, settings)
        for name in ("w", "b"):
            result.deltas[name] = result.deltas[name] * 1e-12
        return result


def test_values_below_one_code_round_both_ways_and_zeros_never(tmp_path: Path) -> None:
    with Stage(tmp_path, 6, trainer=Tiny()) as stage:
        stage.play()
        model = stage.directory.read_round(1)
        assert model["frozen"].tolist() == [0.25] * 3
        bound = 0.5 / (2**28 - 1) * 40 / 11
        assert np.abs(model["w"]).max() <= bound


# ---- evaluation ------------------------------------------------------------------------------


def test_evaluation_sums_and_leaves_the_model_alone(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=2, final_evaluation=True)) as stage:
        stage.play()
        first, second, evaluated = stage.directory.ledger.rounds()
        assert [r.phase for r in (first, second, evaluated)] == ["train", "train", "evaluate"]
        assert evaluated.round == 2
        assert evaluated.model == second.model == stage.directory.digest(2).hex()
        assert dict(evaluated.metrics) == {"eval.examples": float(sum(map(weight, range(5))))}
        assert len(evaluated.survivors) == 5
        assert stage.directory.kept() == (0, 1, 2)
        assert stage.coordinator.failure is None
