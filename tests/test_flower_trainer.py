"""A wrapped Flower app as a trainer: what it is given, and what is taken of its replies."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from umbel.clients.flower_trainer import FlowerTrainer, context_facts
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError
from umbel.strategies.metrics import Count, Sum
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ARRAYS: dict[str, NDArray[Any]] = {
    "b": np.arange(3, dtype=np.float32),
    "a": np.ones((2, 2), np.float64),
    "n": np.array(7, np.int64),
}
SITE = Site(
    config={"partition-id": 2, "num-partitions": 5}, settings={"server-round": 4, "lr": 0.5}
)
METRICS: dict[str, Sum | Count] = {
    "train.loss": Sum(100.0),
    "eval.loss": Sum(100.0),
    "eval.right": Count(1000),
}


TRAINED: dict[str, Any] = {"num-examples": 8, "loss": 0.25}
EVALUATED: dict[str, Any] = {"num-examples": 4, "loss": 1.5, "right": 3}


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def wrapped(
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda arrays: arrays,
    train: dict[str, Any] | None = None,
    evaluate: dict[str, Any] | None = None,
) -> tuple[ClientApp, list[tuple[str, Message, Context]]]:
    """Return an app that answers these metrics, and what it was called with."""
    app, calls = ClientApp(), []

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        calls.append(("train", message, context))
        context.state["seen"] = MetricRecord({"calls": len(calls)})
        changed = change(arrays_of(message))
        record = ArrayRecord({name: Array(np.asarray(a)) for name, a in changed.items()})
        metrics = MetricRecord(TRAINED if train is None else train)
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        calls.append(("evaluate", message, context))
        metrics = MetricRecord(EVALUATED if evaluate is None else evaluate)
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app, calls


def trained(app: ClientApp, metrics: dict[str, Sum | Count] | None = None) -> Any:
    return FlowerTrainer(app, METRICS if metrics is None else metrics).train(
        ARRAYS, SITE, Settings()
    )


def test_the_app_gets_what_flower_would_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Context(11, 12, {}, RecordDict(), {"rate": 0.5, "name": "x"}, 13)
    monkeypatch.setenv("UMBEL_CONTEXT", context_facts(given))
    app, calls = wrapped()
    trained(app)
    assert [kind for kind, _, _ in calls] == ["evaluate", "train"]  # the received model first
    for kind, message, context in calls:
        assert message.metadata.message_type == kind
        assert dict(message.content["config"]) == {"server-round": 4, "lr": 0.5}
        arrays = arrays_of(message)
        assert list(arrays) == ["b", "a", "n"]  # the order of the model
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, ARRAYS[name])
            assert array.dtype == ARRAYS[name].dtype
        assert (context.run_id, context.node_id, context.series_id) == (11, 12, 13)
        assert context.run_config == {"rate": 0.5, "name": "x"}
        assert context.node_config == {"partition-id": 2, "num-partitions": 5}


def test_state_lives_from_round_to_round() -> None:
    app, calls = wrapped()
    trainer = FlowerTrainer(app, {})
    for _ in range(2):
        trainer.train(ARRAYS, SITE, Settings())
    assert calls[0][2] is calls[1][2]
    assert dict(calls[1][2].state["seen"]) == {"calls": 2}


def test_deltas_weight_and_sums() -> None:
    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        return {"n": arrays["n"] + 1, "a": arrays["a"] * 3, "b": arrays["b"] - np.float32(0.5)}

    result = trained(wrapped(change)[0])
    assert list(result.deltas) == ["b", "a"]  # a counter stays here
    np.testing.assert_array_equal(result.deltas["a"], np.full((2, 2), 2.0))
    np.testing.assert_array_equal(result.deltas["b"], np.full(3, -0.5, np.float32))
    assert {a.dtype for a in result.deltas.values()} == {np.dtype("f8"), np.dtype("f4")}
    assert result.weight == 8
    # Means times their own numbers of examples; a count as it is.
    assert result.metrics == {
        "train.examples": 8, "train.loss": 2.0,
        "eval.examples": 4, "eval.loss": 6.0, "eval.right": 3,
    }  # fmt: skip


def test_the_servers_quotient_is_the_mean_that_flower_computes() -> None:
    replies = [(8, Fraction(1, 4)), (2, Fraction(3, 2)), (5, Fraction(7, 8))]
    results = [
        trained(wrapped(train={"num-examples": n, "loss": float(mean)})[0]) for n, mean in replies
    ]
    total = sum(result.metrics["train.loss"] for result in results)
    examples = sum(result.metrics["train.examples"] for result in results)
    expected = sum(n * mean for n, mean in replies) / sum(n for n, _ in replies)
    assert Fraction(total) / examples == expected


def test_without_declared_evaluation_the_app_does_not_evaluate() -> None:
    app, calls = wrapped()
    trainer = FlowerTrainer(app, {"train.loss": Sum(9.0)})
    assert trainer.declared("train") == {"train.examples": 0, "train.loss": 24}
    assert trainer.declared("evaluate") == {}
    assert trainer.evaluate(ARRAYS, SITE).metrics == {}
    assert calls == []


def test_a_round_of_evaluation() -> None:
    app, calls = wrapped()
    trainer = FlowerTrainer(app, METRICS)
    assert trainer.declared("evaluate") == {
        "eval.loss": 24, "eval.right": 0, "eval.examples": 0
    }  # fmt: skip
    result = trainer.evaluate(ARRAYS, replace(SITE, settings={"server-round": 9}))
    assert (result.deltas, result.weight) == ({}, 1)
    assert result.metrics == {"eval.examples": 4, "eval.loss": 6.0, "eval.right": 3}
    assert [kind for kind, _, _ in calls] == ["evaluate"]
    assert dict(calls[0][1].content["config"]) == {"server-round": 9}


def test_it_has_no_model_of_its_own() -> None:
    assert FlowerTrainer(ClientApp(), {}).arrays(3) == {}


def test_undeclared_metrics_stay_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    app, _ = wrapped(train={"num-examples": 8, "loss": 0.25, "age": 71.0})
    trainer = FlowerTrainer(app, METRICS)
    for _ in range(3):
        assert "age" not in str(trainer.train(ARRAYS, SITE, Settings()).metrics)
    err = capsys.readouterr().err
    assert err.count("metric 'age' stays on this device") == 1
    assert "does not declare 'train.age'" in err
    assert "71" not in err


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"num-examples": 8}, pb.REASON_TASK_FAILED),
        ({"num-examples": 0, "loss": 1.0}, pb.REASON_TASK_FAILED),
        ({"num-examples": 1.5, "loss": 1.0}, pb.REASON_TASK_FAILED),
        ({"loss": 1.0}, pb.REASON_TASK_FAILED),
        ({"num-examples": 8, "loss": float("nan")}, pb.REASON_NOT_FINITE),
        ({"num-examples": 8, "loss": 99.0}, pb.REASON_UNDECLARED_METRIC),
        ({"num-examples": 8, "loss": [1.0, 2.0]}, pb.REASON_TASK_FAILED),
    ],
)
def test_replies_that_cannot_be_added_up(train: dict[str, Any], reason: pb.Reason) -> None:
    with pytest.raises(Refused) as caught:
        trained(wrapped(train=train)[0])
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays | {"a": np.ones((1, 2))},  # numpy would broadcast it
        lambda arrays: {"a": arrays["a"]},
        lambda arrays: arrays | {"more": np.ones(1)},
    ],
)
def test_other_arrays_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    with pytest.raises(Refused, match="of the train reply: expected"):
        trained(wrapped(change)[0])


def test_an_error_reply_and_a_reply_without_arrays_are_refused() -> None:
    app = ClientApp()

    @app.train()
    def _train(message: Message, _: Context) -> Message:
        return Message(Error(5, "patient 4711"), reply_to=message)

    with pytest.raises(Refused, match="an error of code 5") as caught:
        trained(app, {})
    assert "4711" not in str(caught.value)
    other = ClientApp()

    @other.train()
    def _empty(message: Message, _: Context) -> Message:
        return Message(RecordDict({}), reply_to=message)

    with pytest.raises(Refused, match="0 ArrayRecords"):
        trained(other, {})


def test_mods_and_lifespan_are_around_every_call() -> None:
    order: list[str] = []

    def mod(message: Message, context: Context, call: Any) -> Message:
        order.append("mod")
        return call(message, context)  # type: ignore[no-any-return]

    app = ClientApp(mods=[mod])

    @app.train()
    def _train(message: Message, _: Context) -> Message:
        order.append("train")
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    @app.lifespan()
    def _life(_: Context) -> Any:
        order.append("enter")
        yield
        order.append("leave")

    trained(app, {})
    assert order == ["enter", "mod", "train", "leave"]


@pytest.mark.parametrize("name", ["loss", "test.loss", "train.", "eval.examples"])
def test_names_of_metrics_have_a_phase(name: str) -> None:
    with pytest.raises(SettingsError, match=r"train\.NAME or eval\.NAME"):
        FlowerTrainer(ClientApp(), {name: Sum(1.0)})
