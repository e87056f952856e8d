"""`umbel.FedAvg` beside Flower's own: equal where that is right, safe where it is not."""

import inspect
import io
import logging
from collections.abc import Callable, Iterable
from typing import Any

import flwr.serverapp.strategy
import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from umbel.protocol.errors import SettingsError
from umbel.strategies import server_rules
from umbel.strategies.flower_fedavg import FedAvg

Arrays = dict[str, NDArray[Any]]
Metrics = dict[str, Any]
Flower = flwr.serverapp.strategy.FedAvg


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's launcher gives; messages need one."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def reply(node: int, arrays: Arrays | ArrayRecord | None, metrics: Metrics) -> Message:
    content = RecordDict({"metrics": MetricRecord(metrics)})
    if arrays is not None:
        record = arrays if isinstance(arrays, ArrayRecord) else record_of(arrays)
        content["arrays"] = record
    instruction = Message(content=RecordDict(), dst_node_id=node, message_type="train")
    return Message(content, reply_to=instruction)


def record_of(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


class Loop(Grid):
    """Nodes that answer in this process; what they answer is the test's."""

    def __init__(self, answers: dict[int, Callable[[Message], RecordDict]]) -> None:
        self.answers = answers

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that answer."""
        return list(self.answers)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return each node's answer."""
        return [Message(self.answers[m.metadata.dst_node_id](m), reply_to=m) for m in messages]

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = push_messages = pull_messages = _unused
    run = property(_unused)


def strategy(model: Arrays | None = None, **arguments: Any) -> FedAvg:
    """Return ours, configured with a global model as `start` does it."""
    made = FedAvg(**arguments)
    if model is not None:
        nodes = Loop({1: lambda _: RecordDict(), 2: lambda _: RecordDict()})
        list(made.configure_train(1, record_of(model), ConfigRecord(), nodes))
    return made


def merged(record: ArrayRecord | None) -> Arrays:
    assert record is not None
    return {name: array.numpy() for name, array in record.items()}


def test_the_constructor_is_flowers() -> None:
    assert inspect.signature(FedAvg) == inspect.signature(Flower)
    assert isinstance(FedAvg().rule, server_rules.FedAvg)


@pytest.mark.parametrize("clients", [1, 2, 17])
@pytest.mark.parametrize("key", ["num-examples", "w"])
def test_random_replies_equal_flowers_aggregate(clients: int, key: str) -> None:
    rng = np.random.default_rng(clients)
    shapes = {"conv": (4, 3, 3), "head": (10,), "scalar": (), "empty": (0, 5)}
    replies = [
        reply(
            node,
            {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
            {
                key: int(rng.integers(1, 1000)),
                "loss": float(rng.normal()),
                "per-class": [float(v) for v in rng.normal(size=3)],
            },
        )
        for node in range(clients)
    ]
    model = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    arrays, metrics = strategy(model, weighted_by_key=key).aggregate_train(1, replies)
    expected_arrays, expected_metrics = Flower(weighted_by_key=key).aggregate_train(1, replies)
    ours, theirs = merged(arrays), merged(expected_arrays)
    assert list(ours) == list(theirs)
    for name, shape in shapes.items():
        assert ours[name].dtype == np.float32
        assert ours[name].shape == shape
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-6)
    assert metrics == expected_metrics
    evaluated = strategy(weighted_by_key=key).aggregate_evaluate(1, replies)
    assert evaluated == Flower(weighted_by_key=key).aggregate_evaluate(1, replies)


def test_float_weights_and_float64_arrays_equal_flowers() -> None:
    replies = [
        reply(node, {"w": np.array([node / 3.0, -node])}, {"num-examples": 0.1 * node})
        for node in (1, 2, 3)
    ]
    ours, _ = strategy({"w": np.zeros(2)}).aggregate_train(1, replies)
    theirs, _ = Flower().aggregate_train(1, replies)
    np.testing.assert_allclose(merged(ours)["w"], merged(theirs)["w"], rtol=1e-14)


GOOD = {"w": np.ones(2, np.float32)}


def extended(name: str, record: ArrayRecord | MetricRecord) -> Message:
    """Return a good reply with one record too many."""
    message = reply(2, GOOD, {"num-examples": 1})
    message.content[name] = record
    return message


@pytest.mark.parametrize(
    "second",
    [
        lambda: reply(2, {"v": np.ones(2, np.float32)}, {"num-examples": 1}),
        lambda: reply(2, {**GOOD, "v": np.ones(2, np.float32)}, {"num-examples": 1}),
        lambda: reply(2, None, {"num-examples": 1}),
        lambda: reply(2, GOOD, {"num-examples": 1, "loss": 0.5}),
        lambda: reply(2, GOOD, {"examples": 1}),
        lambda: reply(2, GOOD, {"num-examples": [1, 2]}),
        lambda: extended("more", record_of(GOOD)),
        lambda: extended("more", MetricRecord({"x": 1.0})),
    ],
)
def test_inconsistent_replies_raise_what_flower_raises(second: Callable[[], Message]) -> None:
    replies = [reply(1, GOOD, {"num-examples": 1}), second()]
    with pytest.raises(InconsistentMessageReplies) as theirs:
        Flower().aggregate_train(1, replies)
    with pytest.raises(InconsistentMessageReplies) as ours:
        strategy(GOOD).aggregate_train(1, replies)
    assert str(ours.value) == str(theirs.value)


def test_a_missing_weight_key_and_evaluation_raise_the_same() -> None:
    replies = [reply(node, None, {"accuracy": 0.5}) for node in (1, 2)]
    for made in (Flower(), FedAvg()):
        with pytest.raises(InconsistentMessageReplies, match="Missing required key"):
            made.aggregate_evaluate(1, replies)


def test_no_replies_and_only_errors_give_nothing() -> None:
    instruction = Message(content=RecordDict(), dst_node_id=4, message_type="train")
    failed = Message(Error(code=2, reason="boom"), reply_to=instruction)
    for replies in ([], [failed]):
        assert strategy(GOOD).aggregate_train(1, replies) == (None, None)
        assert strategy(GOOD).aggregate_evaluate(1, replies) is None


def _npy(header: dict[str, Any], data: bytes) -> Array:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return Array("float32", (3,), "numpy.ndarray", file.getvalue() + data)


def _raw(header: bytes) -> Array:
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    return Array("float32", (4, 3), "numpy.ndarray", start + header + bytes(48))


MODEL = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "seen": np.array(5)}
FINE = {"w": np.full((4, 3), 2.0, np.float32), "seen": np.array(7)}


def bad_value(value: float) -> Arrays:
    array = np.full((4, 3), 9.0, np.float32)
    array[3, 2] = value
    return {"w": array, "seen": np.array(8)}


def one_array(array: Array) -> ArrayRecord:
    return ArrayRecord({"w": array, "seen": Array(np.array(8))})


BOMB = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}


@pytest.mark.parametrize(
    ("bad", "examples", "complaint"),
    [
        (bad_value(np.nan), 6, "array 'w': expected finite values, got nan"),
        (bad_value(np.inf), 6, "array 'w': expected finite values, got inf"),
        ({**FINE, "w": FINE["w"][:1]}, 6, "expected float32 (4, 3), got float32 (1, 3)"),
        ({**FINE, "w": np.ones((4, 3))}, 6, "expected float32 (4, 3), got float64 (4, 3)"),
        ({**FINE, "seen": np.array(7.5)}, 6, "expected int64 (), got float64 ()"),
        (FINE, 0, "num-examples: expected a number above 0, at most 2^32, got 0"),
        (FINE, -5, "num-examples: expected a number above 0, at most 2^32, got -5"),
        (FINE, float("nan"), "num-examples: expected a number above 0"),
        (FINE, float("inf"), "num-examples: expected a number above 0"),
        (FINE, 1e300, "num-examples: expected a number above 0"),
        (one_array(_npy(BOMB, b"1234")), 6, "float32 (4, 3), got float32 (1099511627776,)"),
        (one_array(Array("float32", (3,), "numpy.ndarray", b"junk")), 6, "expected a numpy array"),
        (one_array(Array("float32", (3,), "pickle", b"junk")), 6, "serialisation 'pickle'"),
        *((one_array(_raw(text)), 6, "expected a numpy array, got no header") for text in (
            b"(" * 90, b"(" * 900, b"'''", b"\\\n\\", b"{'descr': '<f4', 'shape': (3L, 5L)}",
        )),  # numpy's reader raises what Python's tokenizer does
        (one_array(_npy({**BOMB, "shape": (0, 10**12)}, b"")), 6, "got float32 (0, 1000000000000)"),
        (one_array(_npy({**BOMB, "shape": (0, 10**13)}, b"")), 6, "expected a numpy array, got"),
        (one_array(_npy({**BOMB, "descr": "|O", "shape": (1,)}, b"12345678")), 6, "no header of"),
    ],
)  # fmt: skip
def test_a_bad_reply_is_dropped_by_name_and_the_rest_is_used(
    bad: Arrays | ArrayRecord,
    examples: float,
    complaint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    replies = [
        reply(11, FINE, {"num-examples": 1, "loss": 1.0}),
        reply(666, bad, {"num-examples": examples, "loss": 100.0}),
        reply(12, {"w": np.full((4, 3), 4.0, np.float32), "seen": np.array(9)},
              {"num-examples": 3, "loss": 2.0}),
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING, "flwr"):
        arrays, metrics = strategy(MODEL).aggregate_train(1, replies)
    ours = merged(arrays)
    assert ours["w"].tolist() == [[3.5] * 3] * 4  # (1 * 2 + 3 * 4) / 4
    assert ours["seen"] == 5
    assert ours["seen"].dtype == np.int64
    assert metrics == {"loss": 1.75}
    (line,) = [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()]
    assert "node 666: " in line
    assert complaint in line


def test_other_names_than_the_models_are_dropped() -> None:
    replies = [reply(node, {"v": np.ones(2)}, {"num-examples": 1}) for node in (1, 2)]
    assert strategy({"w": np.ones(2)}).aggregate_train(1, replies) == (None, None)


def test_all_weights_zero_is_a_round_without_result_and_no_crash() -> None:
    replies = [reply(node, GOOD, {"num-examples": 0}) for node in (1, 2)]
    with pytest.raises(ZeroDivisionError):
        Flower().aggregate_train(1, replies)
    assert strategy(GOOD).aggregate_train(1, replies) == (None, None)
    assert strategy(GOOD).aggregate_evaluate(1, replies) is None


def test_a_negative_weight_cannot_pull_the_mean_out_of_range() -> None:
    # Flower: (-5 * 1 + 6 * 3) / 1 = 13, outside of 1..3.
    replies = [
        reply(1, {"w": np.array([1.0])}, {"num-examples": -5}),
        reply(2, {"w": np.array([3.0])}, {"num-examples": 6}),
    ]
    assert merged(Flower().aggregate_train(1, replies)[0])["w"].tolist() == [13.0]
    ours, _ = strategy({"w": np.zeros(1)}).aggregate_train(1, replies)
    assert merged(ours)["w"].tolist() == [3.0]


def test_without_a_configured_model_the_first_reply_is_the_reference() -> None:
    replies = [
        reply(1, {"w": np.ones((4, 3)), "n": np.array(7)}, {"num-examples": 1}),
        reply(2, {"w": np.full((1, 3), 9.0), "n": np.array(8)}, {"num-examples": 1}),
        reply(3, {"w": np.full((4, 3), 3.0), "n": np.array(9)}, {"num-examples": 1}),
    ]
    arrays = merged(FedAvg().aggregate_train(1, replies)[0])
    assert (arrays["w"] == 2.0).all()
    assert arrays["n"] == 7


def test_fortran_order_and_arrays_of_the_callers_own_are_read_right() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    replies = [reply(1, {"w": np.asfortranarray(values)}, {"num-examples": 2})]
    arrays, _ = strategy({"w": np.zeros((2, 3), np.float32)}).aggregate_train(1, replies)
    assert merged(arrays)["w"].tolist() == values.tolist()


def test_own_metric_functions_get_the_used_replies_only() -> None:
    seen: list[int] = []

    def count(records: list[RecordDict], key: str) -> MetricRecord:
        seen.append(len(records))
        return MetricRecord({key: 1})

    made = strategy(GOOD, train_metrics_aggr_fn=count, evaluate_metrics_aggr_fn=count)
    replies = [reply(node, GOOD, {"num-examples": node}) for node in (0, 1, 2)]
    assert made.aggregate_train(1, replies)[1] == {"num-examples": 1}
    assert made.aggregate_evaluate(1, replies) == {"num-examples": 1}
    assert seen == [2, 2]


def test_a_model_that_is_not_numpys_is_named() -> None:
    record = ArrayRecord({"w": Array("bfloat16", (1,), "raw", b"12")})
    with pytest.raises(SettingsError, match=r"initial array 'w': expected a numpy array"):
        FedAvg().configure_train(1, record, ConfigRecord(), Loop({}))


@pytest.mark.parametrize("kind", [np.complex64, np.dtype("V2")])
def test_a_model_with_arrays_that_nobody_would_average_is_refused(kind: Any) -> None:
    """Neither floats nor buffers: they would stay as they are, round after round, unsaid."""
    record = record_of({"w": np.ones(3, np.float32), "c": np.zeros(2, kind)})
    with pytest.raises(SettingsError, match=r"'c': expected floats, integers or bools, got"):
        FedAvg().configure_train(1, record, ConfigRecord(), Loop({}))


@pytest.mark.parametrize("make", [Flower, FedAvg])
def test_start_runs_rounds_as_flowers_does(make: type[Flower]) -> None:
    def node(step: float, examples: int) -> Callable[[Message], RecordDict]:
        def answer(message: Message) -> RecordDict:
            metrics = MetricRecord({"num-examples": examples, "loss": step})
            if message.metadata.message_type == "evaluate":
                return RecordDict({"metrics": metrics})
            model = merged(message.content.array_records["arrays"])
            assert message.content.config_records["config"]["server-round"] in (1, 2)
            arrays = record_of({"w": model["w"] + np.float32(step)})
            return RecordDict({"arrays": arrays, "metrics": metrics})

        return answer

    grid = Loop({1: node(1.0, 1), 2: node(2.0, 3)})
    result = make().start(grid, record_of({"w": np.zeros(3, np.float32)}), num_rounds=2)
    # Each round adds (1 * 1 + 3 * 2) / 4 = 1.75.
    assert merged(result.arrays)["w"].tolist() == [3.5, 3.5, 3.5]
    assert result.train_metrics_clientapp == {1: {"loss": 1.75}, 2: {"loss": 1.75}}
    assert result.evaluate_metrics_clientapp == {1: {"loss": 1.75}, 2: {"loss": 1.75}}


def test_a_round_without_a_good_reply_keeps_the_model_under_start() -> None:
    def poisoned(_: Message) -> RecordDict:
        arrays = record_of({"w": np.full(3, np.nan, np.float32)})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    sent: list[list[float]] = []

    def node(message: Message) -> RecordDict:
        sent.append(merged(message.content.array_records["arrays"])["w"].tolist())
        return poisoned(message)

    made = FedAvg(fraction_evaluate=0.0)
    made.start(Loop({1: node, 2: poisoned}), record_of({"w": np.ones(3, np.float32)}), num_rounds=2)
    assert sent == [[1.0] * 3] * 2
