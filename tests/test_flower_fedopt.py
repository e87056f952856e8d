"""`umbel.FedAdam` and the like beside Flower's classes under `strategy.start`, and as rules."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy as flower
import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError

import umbel
from umbel.protocol.errors import SettingsError
from umbel.strategies import server_rules
from umbel.strategies.flower_arguments import Adaptive, Common
from umbel.strategies.flower_rules import MEANT, rule_for, unused
from umbel.strategies.robust_rules import Robust
from umbel.tests.flower_grid import identified
from umbel.tests.test_flower_fedavg import Loop, merged, record_of, reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Message
    from numpy.typing import NDArray

TWINS = ("FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")
SETTINGS: dict[str, dict[str, float]] = {
    "FedAvgM": {"server_learning_rate": 0.7, "server_momentum": 0.9},
    "FedAdam": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2},
    "FedYogi": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2},
    "FedAdagrad": {"eta": 0.05, "tau": 1e-2},
}
ROUNDS = 4


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    identified(monkeypatch)


def _node(seed: int, examples: int) -> Callable[[Message], RecordDict]:
    """Return a client that moves every array of the model by its own random steps."""
    rng = np.random.default_rng(seed)

    def answer(message: Message) -> RecordDict:
        metrics = MetricRecord({"num-examples": examples, "loss": 1.0})
        if message.metadata.message_type == "evaluate":
            return RecordDict({"metrics": metrics})
        model = merged(message.content.array_records["arrays"])
        moved: dict[str, NDArray[Any]] = {
            name: a + (0.01 * rng.standard_normal(a.shape)).astype(a.dtype)
            for name, a in model.items()
        }
        return RecordDict({"arrays": record_of(moved), "metrics": metrics})

    return answer


def _start(made: Any, dtype: Any) -> dict[str, NDArray[Any]]:
    """Run rounds of `start` with the same three clients every time."""
    rng = np.random.default_rng(3)
    model = {"w": rng.standard_normal((40, 5)).astype(dtype), "b": np.ones(7, dtype)}
    grid = Loop({place: _node(place, 10 * place) for place in (1, 2, 3)})
    result = made.start(grid, record_of(model), num_rounds=ROUNDS)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4]
    return merged(result.arrays)


@pytest.mark.parametrize("own", [False, True], ids=["defaults", "settings"])
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-12), (np.float32, 2e-6)])
@pytest.mark.parametrize("name", TWINS)
def test_rounds_of_start_equal_flowers(name: str, dtype: Any, near: float, own: bool) -> None:
    arguments: Any = SETTINGS[name] if own else {}
    ours = _start(getattr(umbel, name)(**arguments), dtype)
    theirs = _start(getattr(flower, name)(**arguments), dtype)
    for array, expected in theirs.items():
        assert ours[array].dtype == dtype
        assert np.abs(ours[array] - expected).max() <= near * np.abs(expected).max()
    if name == "FedAdam" and dtype is np.float32:
        assert theirs["w"].dtype == np.float64  # and theirs alone


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_flowers_class_with_flowers_arguments(name: str) -> None:
    ours, theirs = getattr(umbel, name), getattr(flower, name)
    assert issubclass(ours, theirs)
    assert issubclass(ours, umbel.FedAvg)
    if name != "FedAdam":
        assert inspect.signature(ours) == inspect.signature(theirs)


@pytest.mark.parametrize(("kind", "said"), [(flower.FedAvg, Common), (flower.FedAdam, Adaptive)])
def test_the_typed_arguments_are_flowers(kind: Any, said: Any) -> None:
    assert set(inspect.signature(kind).parameters) == set(said.__annotations__)


def test_adams_form_and_decay_reach_the_step() -> None:
    models = [
        _start(made, np.float64)["w"]
        for made in (
            umbel.FedAdam(),
            umbel.FedAdam(form="paper"),
            umbel.FedAdamW(),
            umbel.FedAdamW(weight_decay=0.0),
        )
    ]
    assert np.abs(models[0] - models[1]).max() > 1e-3
    assert np.abs(models[0] - models[2]).max() > 1e-3
    assert np.abs(models[0] - models[3]).max() <= 1e-12


def _configured(made: umbel.FedAvg, **model: NDArray[Any]) -> None:
    nodes = Loop({1: lambda _: RecordDict(), 2: lambda _: RecordDict()})
    list(made.configure_train(1, record_of(model), ConfigRecord(), nodes))


def test_buffers_stay_the_servers_own() -> None:
    made = umbel.FedAdam()
    _configured(made, w=np.ones(2, np.float32), seen=np.array(5))
    sent = {"w": np.full(2, 2.0, np.float32), "seen": np.array(9)}
    arrays = merged(made.aggregate_train(1, [reply(1, sent, {"num-examples": 1})])[0])
    assert arrays["seen"] == 5
    assert arrays["seen"].dtype == np.int64
    assert arrays["w"].dtype == np.float32
    assert (arrays["w"] > 1).all()


def test_a_step_beyond_the_floats_is_a_round_without_result_and_moments_stay(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = umbel.FedAvgM(server_learning_rate=2.0, server_momentum=0.5)
    far = {"w": np.full(2, 3e38, np.float32)}
    _configured(made, w=np.zeros(2, np.float32))
    with caplog.at_level(logging.WARNING, "flwr"):
        assert made.aggregate_train(1, [reply(1, far, {"num-examples": 1})]) == (None, None)
    assert "round 1 has no result: server step: w would hold" in caplog.text
    near = {"w": np.ones(2, np.float32)}
    arrays, _ = made.aggregate_train(2, [reply(1, near, {"num-examples": 1})])
    assert merged(arrays)["w"].tolist() == [2.0, 2.0]  # momentum began with this round


def test_another_model_begins_with_fresh_moments() -> None:
    made = umbel.FedAvgM(server_momentum=0.5)
    for size in (2, 3):
        _configured(made, w=np.zeros(size, np.float32))
        sent = {"w": np.ones(size, np.float32)}
        arrays, _ = made.aggregate_train(1, [reply(1, sent, {"num-examples": 1})])
        assert merged(arrays)["w"].tolist() == [1.0] * size


def test_without_a_model_there_is_nothing_to_step_from() -> None:
    with pytest.raises(AggregationError, match="configure_train"):
        umbel.FedYogi().aggregate_train(1, [reply(1, {"w": np.ones(2)}, {"num-examples": 1})])


def test_a_wrong_number_is_refused_before_a_client_trains() -> None:
    with pytest.raises(SettingsError, match="server-form"):
        umbel.FedAdam(form="book")
    with pytest.raises(SettingsError, match="server-eta"):
        umbel.FedAdamW(eta=-1.0)
    made = umbel.FedYogi(beta_2=1.0)
    with pytest.raises(SettingsError, match="server-beta-2"):
        _configured(made, w=np.ones(2))


# ---- what umbel.train takes of a strategy --------------------------------------------------------


@pytest.mark.parametrize("name", TWINS)
def test_flowers_object_means_the_rule_of_ours(name: str) -> None:
    arguments: Any = SETTINGS[name]
    expected = getattr(server_rules, name)(**arguments)
    assert rule_for(getattr(umbel, name)(**arguments)) == expected
    assert rule_for(getattr(flower, name)(**arguments)) == expected


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        (flower.FedAvg(fraction_train=0.5), server_rules.FedAvg()),
        (umbel.FedAvg(), server_rules.FedAvg()),
        (umbel.FedAdam(form="paper"), server_rules.FedAdam(form="paper")),
        (umbel.FedAdamW(weight_decay=0.1), server_rules.FedAdamW(weight_decay=0.1)),
        (server_rules.FedYogi(), server_rules.FedYogi()),
        (flower.FedMedian(), Robust(rule="median")),
        (flower.FedTrimmedAvg(beta=0.1), Robust(rule="trimmed-mean", cut=0.1)),
        (flower.Krum(num_malicious_nodes=2), Robust(rule="krum", byzantine=2)),
        (flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=4),
         Robust(rule="multi-krum", byzantine=1, keep=4)),
        (flower.Bulyan(num_malicious_nodes=1), Robust(rule="bulyan", byzantine=1)),
    ],
)  # fmt: skip
def test_what_an_object_means(strategy: Any, rule: Any) -> None:
    if isinstance(rule, Robust):
        rule = server_rules.FedAvg(robust=rule)
    assert rule_for(strategy) == rule


def test_arguments_that_say_nothing_over_sessions_are_named() -> None:
    def merge(*_: Any) -> MetricRecord:
        return MetricRecord()

    assert unused(umbel.FedAvg()) == unused(flower.FedAdam(eta=0.5)) == unused(7) == []
    assert unused(
        umbel.Krum(fraction_train=0.5, weighted_by_key="n", evaluate_metrics_aggr_fn=merge)
    ) == ["fraction_train", "weighted_by_key", "evaluate_metrics_aggr_fn"]
    assert unused(flower.FedAvg(min_available_nodes=3)) == ["min_available_nodes"]


def test_flowers_classes_with_the_same_step_as_fedavg_and_more_are_not_mistaken_for_it() -> None:
    unknown = {
        kind
        for kind in vars(flower).values()
        if inspect.isclass(kind) and issubclass(kind, flower.Strategy) and kind not in MEANT
    }
    assert {kind.__name__ for kind in unknown} >= {"FedProx", "QFedAvg", "FedXgbBagging"}
    with pytest.raises(SettingsError, match=r"one of umbel's, .*FedAdam.*got 'FedProx'"):
        rule_for(flower.FedProx(proximal_mu=0.1))


class Named(umbel.FedAdam):
    """A class of a user's that changes nothing that is called."""

    def summary(self) -> None:
        """Say less."""


class Own(flower.FedAdam):
    """A class of a user's with code that no session would call."""

    def aggregate_train(self, *_: Any) -> Any:
        """Average otherwise."""


class Sampling(umbel.FedAvg):
    """Another."""

    def configure_train(self, *_: Any) -> Any:
        """Sample otherwise."""


def test_a_users_class_is_taken_where_its_code_is_not_needed(monkeypatch: Any) -> None:
    for kind in (Named, Own, Sampling):  # tests of this package are no part of it
        monkeypatch.setattr(kind, "__module__", "app.server_app")
    assert rule_for(Named(eta=0.5)) == server_rules.FedAdam(eta=0.5)
    with pytest.raises(SettingsError, match=r"Own with its own aggregate_train.*strategy\.start"):
        rule_for(Own())
    with pytest.raises(SettingsError, match="Sampling with its own configure_train"):
        rule_for(Sampling())
    for stranger in (None, 7, object(), "fedavg"):
        with pytest.raises(SettingsError, match="strategy: expected one of umbel's"):
            rule_for(stranger)
