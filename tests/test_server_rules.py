"""The server rules against Flower's own classes, by hand, against torch.optim, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.benchmarks import flower_step as flower
from umbel.protocol.errors import RoundFailed, SettingsError, VoidRound
from umbel.server.core import torch_step
from umbel.strategies.fedavg import TILE
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import (
    RULES,
    FedAdagrad,
    FedAdam,
    FedAdamW,
    FedAvg,
    FedAvgM,
    FedYogi,
    rule_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from umbel.strategies.server_rules import Rule

ROUNDS = 6
NUMBERS: Any = {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2}
MOMENTUM: Any = {"server_learning_rate": 0.7, "server_momentum": 0.9}
ADAGRAD: Any = {"eta": 0.05, "tau": 1e-2}
SOME: list[Rule] = [
    FedAvg(),
    FedAvg(server_learning_rate=0.3),
    FedAvgM(**MOMENTUM),
    FedAdam(**NUMBERS),
    FedAdam(form="paper", **NUMBERS),
    FedAdamW(weight_decay=0.1, **NUMBERS),
    FedYogi(**NUMBERS),
    FedAdagrad(**ADAGRAD),
]


def _name(rule: object) -> str:
    return rule.name + getattr(rule, "form", "") if hasattr(rule, "name") else str(rule)


def _deltas(size: int, dtype: Any) -> list[NDArray[Any]]:
    rng = np.random.default_rng(5)
    return [(rng.standard_normal(size) * 0.01 * (n + 1)).astype(dtype) for n in range(ROUNDS)]


def _start(size: int, dtype: Any) -> NDArray[Any]:
    return np.random.default_rng(1).standard_normal(size).astype(dtype)


def _state(rule: Rule, like: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: np.full_like(like, rule.initial(name)) for name in rule.moments}


def _run(
    rule: Rule, start: NDArray[Any], deltas: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return the model after every round, and the moments after the last."""
    state, models = _state(rule, start), [start]
    for t, delta in enumerate(deltas, 1):
        new = np.empty_like(start)
        rule.move("w", models[-1], delta, new, state, t)
        models.append(new)
    return models[1:], state


@pytest.mark.parametrize("own", [False, True], ids=["defaults", "settings"])
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-12), (np.float32, 2e-6)])
@pytest.mark.parametrize(
    ("kind", "peer", "settings"),
    [
        (FedAvgM, "momentum", MOMENTUM),
        (FedAdam, "adam", NUMBERS),
        (FedAdagrad, "adagrad", ADAGRAD),
        (FedYogi, "yogi", NUMBERS),
    ],
)
def test_rounds_equal_those_of_flowers_class_of_the_name(
    kind: Any, peer: str, settings: dict[str, float], dtype: Any, near: float, own: bool
) -> None:
    arguments = settings if own else {}
    start, deltas = _start(1000, dtype), _deltas(1000, dtype)
    theirs = flower.Peer(peer, arguments, {"w": start})
    models, _ = _run(kind(**arguments), start, deltas)
    for delta, ours in zip(deltas, models, strict=True):
        expected = theirs.step({"w": delta})["w"]
        assert np.abs(ours - expected).max() <= near * np.abs(expected).max()
        assert ours.dtype == dtype
    assert np.abs(models[-1] - start).max() > 100 * near  # something was compared
    if kind is FedAdam and dtype is np.float32:
        assert expected.dtype == np.float64  # theirs widens the model; ours did not


@pytest.mark.parametrize("rule", SOME[2:], ids=_name)
def test_rounds_equal_those_of_torchs_optimizers(rule: Any) -> None:
    start, deltas = _start(300, np.float64), _deltas(300, np.float64)
    model = torch.from_numpy(start.copy())
    makers: dict[str, Any] = {
        "fedavgm": torch_step.momentum,
        "fedadam": torch_step.adam,
        "fedadamw": torch_step.adam,
        "fedyogi": torch_step.yogi,
        "fedadagrad": torch_step.adagrad,
    }
    said = {key: value for key, value in rule.described().items() if key not in {"rule", "robust"}}
    step = makers[rule.name](model, **said)
    for delta, ours in zip(deltas, _run(rule, start, deltas)[0], strict=True):
        step(torch.from_numpy(delta))
        assert np.abs(model.numpy() - ours).max() <= 1e-12


def test_two_rounds_of_each_by_hand() -> None:
    """Numbers that are exact in binary, on one element: x from 1, updates 0.5 and -1."""
    deltas = [np.array([0.5]), np.array([-1.0])]
    one = np.ones(1)
    quarter: Any = {"eta": 0.25, "beta_1": 0.5, "beta_2": 0.75, "tau": 0.5}

    models, state = _run(FedAvgM(server_learning_rate=0.5, server_momentum=0.5), one, deltas)
    assert [m[0] for m in models] == [1.25, 0.875]  # b: 0.5, 0.5 * 0.5 - 1 = -0.75
    assert state["momentum"][0] == -0.75

    models, state = _run(FedAdagrad(eta=0.25, tau=0.5), one, deltas[:1])
    assert (models[0][0], state["v"][0]) == (1.125, 0.25)  # 1 + 0.25 * 0.5 / (0.5 + 0.5)

    # the paper's: v = 0.75 * 0.25 + 0.25 * 0.25 = 0.25, m = 0.25
    models, state = _run(FedAdam(form="paper", **quarter), one, deltas[:1])
    assert (models[0][0], state["m"][0], state["v"][0]) == (1.0625, 0.25, 0.25)

    # Yogi: v = 0 - 0.25 * 0.25 * sign(0 - 0.25) = 0.0625, root 0.25; m = 0.25
    models, state = _run(FedYogi(**quarter), one, deltas[:1])
    assert state["v"][0] == 0.0625
    assert models[0][0] == 1.0 + 0.25 * 0.25 / 0.75

    # Flower's Adam: c_1 = sqrt(1 - 0.75^2) / (1 - 0.5^2)
    models, _ = _run(FedAdam(**quarter), one, deltas[:1])
    factor = 0.25 * np.sqrt(1 - 0.5625) / 0.75
    assert models[0][0] == pytest.approx(1 + factor * 0.25 / (0.25 + 0.5), rel=1e-15)


def test_weight_decay_shrinks_the_model_before_adam_moves_it() -> None:
    start, deltas = _start(20, np.float64), _deltas(20, np.float64)[:1]
    plain = _run(FedAdam(**NUMBERS), start, deltas)[0][0]
    decayed = _run(FedAdamW(weight_decay=0.3, **NUMBERS), start, deltas)[0][0]
    expected = start * (1 - 0.05 * 0.3) + (plain - start)
    assert np.abs(decayed - expected).max() <= 1e-15


def test_yogis_second_moment_stays_where_it_equals_the_square() -> None:
    state = {"m": np.zeros(3), "v": np.full(3, 4.0)}
    new = np.empty(3)
    FedYogi(beta_2=0.5).move("w", np.zeros(3), np.array([2.0, 0.0, 4.0]), new, state, 1)
    assert state["v"].tolist() == [4.0, 4.0, 12.0]  # sign(0) = 0; -0.5 * 0 * 1; +0.5 * 16


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("rule", SOME, ids=_name)
def test_model_and_moments_keep_their_dtype_and_round_once(rule: Rule, dtype: Any) -> None:
    start, delta = _start(64, dtype), _deltas(64, dtype)[3]
    state, model = _state(rule, start), np.empty_like(start)
    wide, exact = {name: a.astype("f8") for name, a in state.items()}, np.empty(64)
    rule.move("w", start, delta, model, state, 1)
    rule.move("w", start.astype("f8"), delta.astype("f8"), exact, wide, 1)
    assert model.dtype == dtype
    assert model.tobytes() == exact.astype(dtype).tobytes()
    for name, moment in state.items():
        assert moment.dtype == dtype
        assert moment.tobytes() == wide[name].astype(dtype).tobytes()


@settings(deadline=None, max_examples=40)
@given(
    cuts=st.sets(st.integers(1, 2 * TILE // 1024), max_size=6),
    rule=st.sampled_from(SOME),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_model_cut_into_shards_has_the_same_bits(cuts: set[int], rule: Rule, dtype: Any) -> None:
    size = 2 * TILE + 777
    start, deltas = _start(size, dtype), _deltas(size, dtype)[:2]
    whole, moments = _run(rule, start, deltas)
    edges = [0, *sorted(1024 * cut for cut in cuts), size]
    for low, high in pairwise(edges):
        models, state = _run(rule, start[low:high], [delta[low:high] for delta in deltas])
        assert models[-1].tobytes() == whole[-1][low:high].tobytes()
        for name, moment in state.items():
            assert moment.tobytes() == moments[name][low:high].tobytes()


@pytest.mark.parametrize("rule", SOME, ids=_name)
def test_the_new_model_may_take_the_place_of_the_old(rule: Rule) -> None:
    start, delta = _start(TILE + 9, np.float32), _deltas(TILE + 9, np.float32)[0]
    (apart,), _ = _run(rule, start, [delta])
    kept = delta.copy()
    rule.move("w", start, delta, start, _state(rule, start), 1)
    assert start.tobytes() == apart.tobytes()
    assert delta.tobytes() == kept.tobytes()


def test_averagings_short_way_has_the_bits_of_the_long_one() -> None:
    rng = np.random.default_rng(8)
    start = (rng.standard_normal(4 * TILE) * 10.0 ** rng.integers(-20, 20, 4 * TILE)).astype("f4")
    delta = (rng.standard_normal(4 * TILE) * 10.0 ** rng.integers(-20, 20, 4 * TILE)).astype("f4")
    new = np.empty_like(start)
    FedAvg().move("w", start, delta, new, {}, 1)
    assert new.tobytes() == (start.astype("f8") + delta).astype("f4").tobytes()


@pytest.mark.parametrize("rule", SOME, ids=_name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_result_that_is_not_finite_names_the_array(rule: Rule, bad: float) -> None:
    old, delta = np.full(TILE + 2, 3e38, np.float32), np.zeros(TILE + 2, np.float32)
    delta[-1] = bad
    with pytest.raises(VoidRound, match=r"conv\.weight .*not finite"):
        rule.move("conv.weight", old, delta, np.empty_like(old), _state(rule, old), 1)


def test_pieces_of_different_lengths_are_refused() -> None:
    three, two = np.zeros(3), np.zeros(2)
    for rule in SOME:
        with pytest.raises(RoundFailed, match=r"pieces of w have shapes .*not \(3,\)"):
            rule.move("w", three, two, np.zeros(3), _state(rule, three), 1)


# ---- as JSON -------------------------------------------------------------------------------------

ROBUST = Robust(rule="trimmed-mean", byzantine=1, cut=0.25)


@pytest.mark.parametrize("rule", [*SOME, FedAvg(robust=ROBUST), FedAdam(robust=ROBUST)])
def test_a_rule_survives_json(rule: Rule) -> None:
    assert rule_of(json.loads(json.dumps(rule.described()))) == rule


def test_every_rule_is_there_by_its_name() -> None:
    assert {rule.name for rule in SOME} == set(RULES)


def test_an_integer_stands_for_a_float() -> None:
    said = {"rule": "fedavg", "robust": None, "server_learning_rate": 2}
    assert rule_of(said).described()["server_learning_rate"] == 2.0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rule": "fedsgd"}, "strategy: expected one of fedavg, fedavgm, fedadam"),
        ({"rule": 7}, "strategy"),
        ({"rule": None}, "strategy"),
        ({"beta_3": 1.0}, "fedadam: expected the keys"),
        ({"eta": None}, "fedadam: eta: expected a float"),
        ({"eta": True}, "fedadam: eta"),
        ({"eta": "0.1"}, "fedadam: eta"),
        ({"eta": float("nan")}, "server-eta"),
        ({"form": "book"}, "server-form: expected flower or paper"),
        ({"form": 1}, "fedadam: form"),
        ({"robust": {"rule": "median"}}, "robust: expected the keys"),
        ({"robust": "median"}, "robust: expected the keys"),
        ({"robust": {**asdict(ROBUST), "byzantine": 1.5}}, "robust: byzantine"),
        ({"robust": {**asdict(ROBUST), "rule": "best"}}, "robust rule"),
    ],
)
def test_what_is_no_rule_is_refused(change: dict[str, Any], complaint: str) -> None:
    said = FedAdam().described() | change
    with pytest.raises(SettingsError, match=complaint):
        rule_of(said)
    del said[next(iter(change))]
    if next(iter(change)) != "beta_3":
        with pytest.raises(SettingsError):
            rule_of(said)


@pytest.mark.parametrize(
    ("made", "key"),
    [
        (lambda bad: FedAvg(server_learning_rate=bad), "server-learning-rate"),
        (lambda bad: FedAvgM(server_learning_rate=bad), "server-learning-rate"),
        (lambda bad: FedAdam(eta=bad), "server-eta"),
        (lambda bad: FedAdagrad(tau=bad), "server-tau"),
        (lambda bad: FedYogi(eta=bad), "server-eta"),
    ],
)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_length_is_above_0(made: Any, key: str, bad: float) -> None:
    with pytest.raises(SettingsError, match=f"{key}: expected a finite number above 0"):
        made(bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, np.nan])
@pytest.mark.parametrize("made", [lambda bad: FedAdam(beta_1=bad), lambda bad: FedYogi(beta_2=bad)])
def test_a_share_is_below_1(made: Any, bad: float) -> None:
    with pytest.raises(SettingsError, match="below 1"):
        made(bad)
    with pytest.raises(SettingsError, match="server-momentum"):
        FedAvgM(server_momentum=bad)


def test_a_decay_that_would_turn_the_model_round_is_refused() -> None:
    with pytest.raises(SettingsError, match="server-weight-decay"):
        FedAdamW(eta=0.5, weight_decay=2.0)
