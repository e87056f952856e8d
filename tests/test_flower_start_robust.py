"""`umbel.FedMedian`, `umbel.Krum` and the like beside Flower's, by hand, and under attack."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy as flower
import ml_dtypes
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError

import umbel
from umbel.protocol.errors import SettingsError
from umbel.server.run_config import KEYS
from umbel.server.run_rule import chosen
from umbel.strategies.flower_rules import rule_for
from umbel.tests.flower_grid import identified
from umbel.tests.flower_nodes import Nodes
from umbel.tests.flower_nodes import record_of as landed_record
from umbel.tests.flower_superlink import SuperLink
from umbel.tests.test_flower_fedavg import Loop, merged, record_of, reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

TWINS: dict[str, dict[str, Any]] = {
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 4},
    "Bulyan": {"num_malicious_nodes": 1},
}
CLIENTS = 9


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    identified(monkeypatch)


def _ours() -> list[Any]:
    return [
        *(getattr(umbel, name)(**arguments) for name, arguments in TWINS.items()),
        umbel.GeometricMedian(),
        umbel.CentredClipping(radius=1.0),
        umbel.NormBounding(radius=1.0),
        umbel.FLTrust(lambda _, model: {name: a + a.dtype.type(0.1) for name, a in model.items()}),
    ]


def _replies(models: list[Arrays], **more: Any) -> list[Message]:
    return [
        reply(node, model, {"num-examples": 5, "loss": float(node), **more})
        for node, model in enumerate(models, 1)
    ]


def _round(made: Any, model: Arrays, sent: list[Arrays]) -> tuple[Any, Any]:
    nodes = Loop({place: lambda _: RecordDict() for place in range(1, len(sent) + 1)})
    list(made.configure_train(1, record_of(model), ConfigRecord(), nodes))
    arrays, metrics = made.aggregate_train(1, _replies(sent))
    return None if arrays is None else merged(arrays), metrics


def _model(dtype: Any) -> Arrays:
    rng = np.random.default_rng(4)
    return {"w": rng.standard_normal((30, 4)).astype(dtype), "b": np.ones(5, dtype)}


def _sent(model: Arrays, seed: int = 6, clients: int = CLIENTS) -> list[Arrays]:
    rng = np.random.default_rng(seed)
    return [
        {n: a + (scale * rng.standard_normal(a.shape)).astype(a.dtype) for n, a in model.items()}
        for scale in 0.01 * np.arange(1, clients + 1)
    ]


@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-8), (np.float32, 2e-7)])
@pytest.mark.parametrize("name", [name for name in TWINS if name != "Bulyan"])
def test_a_round_equals_flowers(name: str, dtype: Any, near: float) -> None:
    model = _model(dtype)
    sent = _sent(model)
    ours, said = _round(getattr(umbel, name)(**TWINS[name]), model, sent)
    theirs, expected = _round(getattr(flower, name)(**TWINS[name]), model, sent)
    for array in model:
        assert ours[array].dtype == dtype
        assert np.abs(ours[array] - theirs[array]).max() <= near * np.abs(theirs[array]).max()
        assert not np.array_equal(ours[array], model[array])
    assert said["loss"] == pytest.approx(expected["loss"])  # of the picked ones only


def test_bulyan_without_a_hostile_client_is_the_mean() -> None:
    model = _model(np.float32)
    sent = _sent(model)
    ours, _ = _round(umbel.Bulyan(), model, sent)
    mean = np.mean([s["w"].astype(float) for s in sent], axis=0)
    assert np.abs(ours["w"] - mean).max() <= 2e-7 * np.abs(mean).max()


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_flowers_class_with_flowers_arguments(name: str) -> None:
    ours, theirs = getattr(umbel, name), getattr(flower, name)
    assert issubclass(ours, theirs)
    assert inspect.signature(ours) == inspect.signature(theirs)
    made = ours(**TWINS[name])
    assert made.rule == rule_for(theirs(**TWINS[name])) == rule_for(made)


def test_the_median_of_float32_models_has_the_bits_of_numpys() -> None:
    # changes of weights near them are exact, so nothing is rounded on the way
    rng = np.random.default_rng(2)
    model = {"w": rng.uniform(1.0, 2.0, 5000).astype(np.float32)}
    sent = [{"w": model["w"] + np.float32(2.0**-20) * rng.integers(-99, 99, 5000).astype("f4")}
            for _ in range(7)]  # fmt: skip
    ours, _ = _round(umbel.FedMedian(), model, sent)
    assert np.array_equal(ours["w"], np.median([s["w"] for s in sent], axis=0))


def test_krum_picks_as_float64_does_where_flowers_does_not() -> None:
    rng = np.random.default_rng(11)
    model = {"w": rng.standard_normal(50_000).astype(np.float32)}
    pull = rng.standard_normal(50_000)
    own = [(0.5 + 0.1 * k) * rng.standard_normal(50_000) for k in rng.permutation(16)]
    sent: list[Arrays] = [{"w": (model["w"] + 1e-5 * (pull + o)).astype("f4")} for o in own]
    rows = np.array([s["w"] for s in sent], np.float64)
    squares = ((rows[:, None] - rows[None]) ** 2).sum(2)
    best = np.argmin(np.sort(squares, axis=1)[:, 1 : 16 - 2 - 2 + 1].sum(1))
    ours, said = _round(umbel.Krum(num_malicious_nodes=2), model, sent)
    theirs, _ = _round(flower.Krum(num_malicious_nodes=2), model, sent)
    assert said["loss"] == best + 1
    assert np.abs(ours["w"] - sent[best]["w"]).max() <= 1.2e-7 * np.abs(model["w"]).max()
    assert not np.array_equal(theirs["w"], sent[best]["w"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("made", _ours(), ids=lambda made: type(made).__name__)
def test_a_hostile_client_pulls_nobody_away(made: Any, dtype: Any) -> None:
    model = {"w": np.ones((20, 3), dtype), "seen": np.array(7)}
    rng = np.random.default_rng(1)
    sent: list[Arrays] = [
        {"w": (1.1 + 0.01 * rng.standard_normal((20, 3))).astype(dtype), "seen": np.array(9)}
        for _ in range(CLIENTS)
    ]
    sent[3]["w"] = np.full((20, 3), -6e4, dtype)
    after, said = _round(made, model, sent)
    assert after["w"].dtype == dtype
    assert after["seen"] == 7
    # clipping and bounding let a hostile client pull by its share of the radius
    assert (np.abs(after["w"].astype(float) - 1.1) < 0.16).all()
    assert (1 < said["loss"] < CLIENTS) or type(made).__name__ == "Krum"


@pytest.mark.parametrize("made", _ours(), ids=lambda made: type(made).__name__)
def test_a_reply_that_is_not_finite_is_dropped_before_the_rule(
    made: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    model = {"w": np.zeros(8, np.float32)}
    sent: list[Arrays] = [{"w": np.full(8, 0.1 + 0.01 * k, np.float32)} for k in range(CLIENTS)]
    sent[0]["w"][3] = np.nan
    sent[1] = {"w": np.zeros(9, np.float32)}
    with caplog.at_level(logging.WARNING, "flwr"):
        after, _ = _round(made, model, sent)
    assert (after["w"] > 0.01).all()
    assert "node 1: array 'w': expected finite values, got nan" in caplog.text
    assert "node 2: array 'w': expected float32 (8,), got float32 (9,)" in caplog.text


def test_what_float32_cannot_hold_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    sent: list[Arrays] = [{"w": np.full(3, value)} for value in (1.0, 2.0, 1e300)]
    with caplog.at_level(logging.WARNING, "flwr"):
        after, _ = _round(umbel.FedMedian(), {"w": np.zeros(3)}, sent)
    assert after["w"].tolist() == [1.5] * 3
    assert "node 3: array 'w': expected changes within float32" in caplog.text


@pytest.mark.parametrize(
    ("made", "clients", "needed"),
    [
        (umbel.Krum(num_malicious_nodes=1), 4, "5 or more clients"),
        (umbel.MultiKrum(num_nodes_to_select=6), 5, "6 or more clients"),
        (umbel.Bulyan(num_malicious_nodes=1), 6, "7 or more clients"),
    ],
)
def test_too_few_replies_are_a_round_without_a_result(
    made: Any,
    clients: int,
    needed: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    model = _model(np.float32)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert _round(made, model, _sent(model, clients=clients)) == (None, None)
    assert f"round 1 has no result: {made.rule.robust.rule}" in caplog.text
    assert needed in caplog.text
    assert _round(made, model, _sent(model, clients=clients + 1))[0] is not None


def test_rounds_share_no_rows() -> None:
    made = umbel.FedMedian()
    for size, value in ((3, 1.0), (3, 5.0), (2, 7.0)):
        model: Arrays = {"w": np.zeros(size, np.float32)}
        sent: list[Arrays] = [{"w": np.full(size, value + k, np.float32)} for k in range(3)]
        assert _round(made, model, sent)[0]["w"].tolist() == [value + 1.0] * size


def test_the_geometric_median_weighs_by_examples() -> None:
    made = umbel.GeometricMedian()
    model: Arrays = {"w": np.zeros(1, np.float32)}
    sent: list[Arrays] = [{"w": np.array([x], np.float32)} for x in (0.0, 1.0, 10.0)]
    assert _round(made, model, sent)[0] == {"w": pytest.approx(1.0, abs=1e-5)}
    heavy = [reply(w, s, {"num-examples": w}) for s, w in zip(sent, (1, 2, 9), strict=True)]
    arrays, _ = made.aggregate_train(2, heavy)
    assert merged(arrays)["w"] == pytest.approx(10.0, abs=1e-4)


def test_clipping_and_bounding_by_hand() -> None:
    model: Arrays = {"w": np.array([1.0, 1.0], np.float32)}
    sent: list[Arrays] = [
        {"w": np.array(w, np.float32)} for w in ([1.0, 2.0], [1.0, 1.5], [301.0, 401.0])
    ]
    # changes (0, 1), (0, 0.5), (300, 400); the last has norm 500 and becomes (0.6, 0.8)
    expected = [1.0 + 0.6 / 3, 1.0 + (1 + 0.5 + 0.8) / 3]
    for made in (umbel.CentredClipping(radius=1.0), umbel.NormBounding(radius=1.0)):
        after, _ = _round(made, model, sent)
        assert after == {"w": pytest.approx(expected, rel=1e-6)}


def test_fltrust_by_hand() -> None:
    seen: list[tuple[int, list[float]]] = []

    def root(server_round: int, model: Arrays) -> Arrays:
        seen.append((server_round, model["w"].tolist()))
        model["w"] += np.array([2.0, 0.0], np.float32)  # a copy: the server's own stays
        return model

    model: Arrays = {"w": np.array([1.0, 1.0], np.float32)}
    sent: list[Arrays] = [
        {"w": np.array(w, np.float32)} for w in ([4.0, 5.0], [1.0, 9.0], [-9.0, 1.0], [11.0, 1.0])
    ]
    after, _ = _round(umbel.FLTrust(root), model, sent)
    # changes (3, 4), (0, 8), (-10, 0), (10, 0): cosines 0.6, 0, -1, 1 with (2, 0), whose norm is 2;
    # (0.6 * (1.2, 1.6) + 1 * (2, 0)) / 1.6
    assert after == {"w": pytest.approx([1 + 2.72 / 1.6, 1 + 0.96 / 1.6], rel=1e-6)}
    assert seen == [(1, [1.0, 1.0])]


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({}, "fltrust: w: expected float32 \\(2,\\), got 'none'"),
        ({"w": np.zeros(3, np.float32)}, "got 'float32 \\(3,\\)'"),
        ({"w": np.zeros(2)}, "got 'float64 \\(2,\\)'"),
        ({"w": np.full(2, np.nan, np.float32)}, "fltrust: expected finite arrays"),
    ],
)
def test_a_root_that_is_no_model_is_refused(found: Arrays, complaint: str) -> None:
    model: Arrays = {"w": np.zeros(2, np.float32)}
    with pytest.raises(SettingsError, match=complaint):
        _round(umbel.FLTrust(lambda *_: found), model, _sent(model, clients=3))


def test_umbel_train_refuses_fltrust_with_the_reason() -> None:
    made = umbel.FLTrust(lambda _, model: model)
    with pytest.raises(SettingsError, match=r"server's own update: use umbel.FLTrust.*start"):
        chosen(KEYS, (), rule_for(made))


def test_a_selection_of_the_apps_own_is_refused_before_a_client_trains() -> None:
    def select(contents: Any, malicious: int, count: int) -> Any:
        return contents[:count]

    asked: list[Message] = []

    def node(message: Message) -> RecordDict:
        asked.append(message)
        return RecordDict()

    made = umbel.Bulyan(selection_rule=select)
    model = record_of(_model(np.float32))
    with pytest.raises(SettingsError, match=r"selection_rule: expected none.*flwr\.serverapp"):
        made.start(Loop({1: node, 2: node, 3: node}), model, num_rounds=1)
    assert asked == []


@pytest.mark.parametrize(
    "made",
    [
        lambda: umbel.CentredClipping(radius=0.0),
        lambda: umbel.CentredClipping(radius=1.0, iterations=0),
        lambda: umbel.NormBounding(radius=-1.0),
    ],
)
def test_a_number_out_of_its_range_is_refused(made: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match=r"radius|iterations"):
        made()


def test_without_a_model_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(AggregationError, match="configure_train"):
        umbel.FedMedian().aggregate_train(1, _replies([{"w": np.ones(2)}]))


@pytest.mark.parametrize("name", ["FedMedian", "MultiKrum"])
def test_rounds_of_start_equal_flowers(name: str) -> None:
    def node(step: float) -> Callable[[Message], RecordDict]:
        def answer(message: Message) -> RecordDict:
            metrics = MetricRecord({"num-examples": 3, "loss": step})
            if message.metadata.message_type == "evaluate":
                return RecordDict({"metrics": metrics})
            model = merged(message.content.array_records["arrays"])
            model["w"] = model["w"] + np.array([step, step**2], np.float32)
            return RecordDict({"arrays": record_of(model), "metrics": metrics})

        return answer

    results = []
    for module in (umbel, flower):
        grid = Loop({place: node(0.1 * place) for place in range(1, 8)})
        made = getattr(module, name)(**TWINS[name])
        results.append(made.start(grid, record_of({"w": np.ones(2, np.float32)}), num_rounds=3))
    ours, theirs = (merged(result.arrays)["w"] for result in results)
    assert ours.tolist() == pytest.approx(theirs.tolist(), rel=1e-6)
    assert ours.dtype == np.float32
    told = [[m["loss"] for m in r.train_metrics_clientapp.values()] for r in results]
    assert told[0] == pytest.approx(told[1])


@pytest.mark.parametrize("name", ["FedMedian", "MultiKrum", "FedAdam"])
def test_replies_that_land_chunk_by_chunk_are_the_same_to_a_strategy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 700_000  # three chunks
    model: Arrays = {
        "w": np.linspace(-1.0, 1.0, size, dtype=np.float32),
        "b": np.ones(3).astype(ml_dtypes.bfloat16),
        "seen": np.array(4),
    }
    superlink = SuperLink(monkeypatch, 5)

    def node(step: float) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            sent = {"w": model["w"] + np.float32(step), "b": model["b"] * 2, "seen": np.array(9)}
            metrics = MetricRecord({"num-examples": 3, "loss": step})
            content = RecordDict({"arrays": landed_record(sent), "metrics": metrics})
            superlink.answer(Message(content, reply_to=message))

        return answer

    Nodes(superlink, {place: node(step) for place, step in enumerate((0.1, 0.2, 0.3, 0.4, 9.0))})
    made = getattr(umbel, name)(fraction_evaluate=0.0, **TWINS.get(name, {}))
    result = made.start(superlink.grid, landed_record(model), num_rounds=1)
    expected = {"FedMedian": 0.3, "MultiKrum": 0.25}  # Krum leaves out the client that is far off
    moved = result.arrays["w"].numpy() - model["w"]
    assert result.arrays["w"].dtype == "float32"
    if name in expected:
        assert np.abs(moved - expected[name]).max() <= 2e-7
        assert result.arrays["b"].numpy().view(ml_dtypes.bfloat16).astype(float).tolist() == [2] * 3
    else:  # m / (sqrt v + tau) = 0.1 * 2 / (0.1 * 2 + 0.001), times eta and Flower's c_1
        factor = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
        assert np.abs(moved - factor * 0.2 / (0.2 + 1e-3)).max() <= 1e-6
    assert result.arrays["seen"].numpy() == 4
    assert len(superlink.state.object_store) == 0
