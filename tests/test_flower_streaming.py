"""`strategy.start` over Flower's own SuperLink: chunks land, are folded, and then are confirmed."""

from __future__ import annotations

import logging
import tracemalloc
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy
import ml_dtypes
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from umbel.strategies import flower_objects
from umbel.strategies.flower_fedavg import FedAvg
from umbel.strategies.flower_fedopt import FedAdam
from umbel.strategies.flower_replies import FOLDED
from umbel.strategies.flower_robust import FedMedian
from umbel.strategies.landing import Landing
from umbel.tests.flower_nodes import (
    CHUNKS,
    MODEL,
    Nodes,
    arrays_of,
    content_of,
    is_the_mean_of,
    record_of,
)
from umbel.tests.flower_superlink import SuperLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flwr.superlink.grid.http_grid import HttpGrid

Flower = flwr.serverapp.strategy.FedAvg


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr")

    def found(word: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if word in r.getMessage()]

    return found


def test_rounds_are_flowers_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for make in (Flower, FedAvg):
        superlink = SuperLink(monkeypatch, 3)
        Nodes(superlink)
        result = make().start(superlink.grid, record_of(CHUNKS), num_rounds=2)
        results.append(result)
        assert len(superlink.state.object_store) == 0
    theirs, ours = results
    expected, got = arrays_of(theirs.arrays), arrays_of(ours.arrays)
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        scale = max(1.0, np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(got[name], array, rtol=0, atol=2.4e-7 * scale)
    assert ours.train_metrics_clientapp == theirs.train_metrics_clientapp
    assert ours.evaluate_metrics_clientapp == theirs.evaluate_metrics_clientapp


def test_what_flower_cannot_average(monkeypatch: pytest.MonkeyPatch) -> None:
    half = np.array([1.0, -2.0, 3.5]).astype(ml_dtypes.bfloat16)
    model = {"b": half, "h": half.astype(np.float16), "seen": np.array(5), "mask": np.ones(2, bool)}
    superlink = SuperLink(monkeypatch, 2)

    def answer(factor: float, examples: int) -> Callable[[Message], None]:
        def node(message: Message) -> None:
            sent = {
                "b": (half.astype(np.float64) * factor).astype(ml_dtypes.bfloat16),
                "h": (half.astype(np.float64) * factor).astype(np.float16),
                "seen": np.array(99), "mask": np.zeros(2, bool),
            }  # fmt: skip
            metrics = MetricRecord({"num-examples": examples})
            content = RecordDict({"arrays": record_of(sent), "metrics": metrics})
            superlink.answer(Message(content, reply_to=message))

        return node

    Nodes(superlink, {0: answer(2.0, 1), 1: answer(4.0, 3)})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(model), num_rounds=1).arrays
    assert result["b"].dtype == "bfloat16"
    means = result["b"].numpy().view(ml_dtypes.bfloat16).astype(np.float64)
    assert means.tolist() == [3.5, -7.0, 12.25]  # (1 * 2 + 3 * 4) / 4 times each, all bfloat16
    assert result["h"].numpy().tolist() == [3.5, -7.0, 12.25]
    assert result["seen"].numpy() == 5
    assert result["mask"].numpy().all()


def test_equal_chunks_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = SuperLink(monkeypatch, 2)
    zeros = {"w": np.zeros(6_000_000, np.float32)}  # five chunks; three of them are the same

    def same(message: Message) -> None:
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": record_of(zeros), "metrics": metrics})
        superlink.answer(Message(content, reply_to=message))

    Nodes(superlink, {0: same, 1: same})
    FedAvg(fraction_evaluate=0.0).start(superlink.grid, record_of(zeros), num_rounds=1)
    # Message, RecordDict, ArrayRecord, Array, MetricRecord, and chunks: first, middle, last.
    assert superlink.asked("PullObject") == 2 * (5 + 3)


def test_a_reply_is_confirmed_after_the_fold_and_stays_in_the_store_till_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for point in ("PullObject", "ConfirmMessageReceived"):
        superlink = SuperLink(monkeypatch, 3)
        nodes = Nodes(superlink)
        stored: list[int] = []

        def die(
            method: str, request: Any, point: str = point, nodes: Any = nodes, stored: Any = stored
        ) -> None:
            nodes(method, request)
            if method == "PullMessages":
                stored.append(len(nodes.superlink.state.object_store))
            seen = nodes.superlink.asked("PullObject")
            if method == point and (point == "ConfirmMessageReceived" or seen == 20):
                raise KeyboardInterrupt

        superlink.before = die
        with pytest.raises(KeyboardInterrupt):
            FedAvg().start(superlink.grid, record_of(MODEL), num_rounds=1)
        assert superlink.asked("ConfirmMessageReceived") == 0
        assert len(superlink.state.object_store) == stored[0]


def test_between_the_last_object_and_the_first_confirmation_is_the_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    superlink = SuperLink(monkeypatch, 3)
    nodes, seen, fold = Nodes(superlink), list[str](), Landing.fold

    def folded(self: Landing) -> None:
        fold(self)
        seen.append("fold")

    def asked(method: str, request: object) -> None:
        nodes(method, request)
        seen.append(method)

    monkeypatch.setattr(Landing, "fold", folded)
    superlink.before = asked
    FedAvg(fraction_evaluate=0.0).start(superlink.grid, record_of(MODEL), num_rounds=1)
    first = seen.index("ConfirmMessageReceived")
    assert "PullObject" not in seen[first:]
    assert seen[first - 1] == "fold"
    assert seen[first - 2] == "PullObject"


@pytest.mark.parametrize("make", [FedAdam, FedMedian])
def test_other_strategies_fold_the_same_either_way(
    make: type[FedAvg], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for version in ("1.42.0", "1.43.0"):
        monkeypatch.setattr(flower_objects, "version", lambda _, version=version: version)
        superlink = SuperLink(monkeypatch, 3)
        Nodes(superlink)
        result = make(fraction_evaluate=0.0).start(superlink.grid, record_of(MODEL), num_rounds=2)
        models.append(result.arrays)
        assert len(superlink.state.object_store) == 0
    assert models[0] == models[1]
    moved = arrays_of(models[0])["head"] - MODEL["head"]
    assert np.isfinite(moved).all()
    assert (moved != 0.0).all()


def test_without_flowers_private_names_replies_come_whole(
    monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flower_objects, "version", lambda _: "1.43.0")

    def other_name(monkeypatch: pytest.MonkeyPatch) -> None:
        # The public methods would need it too; here only the reader misses it.
        monkeypatch.setattr(flower_objects, "Runtime", _missing)

    def _missing(grid: HttpGrid) -> Any:
        return grid.no_such_name  # type: ignore[attr-defined]

    for change, said in ((other_version, "got 1.43.0"), (other_name, "no_such_name")):
        superlink = SuperLink(monkeypatch, 3)
        Nodes(superlink)
        with monkeypatch.context() as patch:
            change(patch)
            result = FedAvg().start(superlink.grid, record_of(MODEL), num_rounds=1)
        is_the_mean_of(result.arrays, (0, 1, 2))
        (line,) = lines(said)
        assert line.startswith("umbel: replies are pulled whole by Flower's public API: expected")
        assert len(superlink.state.object_store) == 0


def test_flowers_simulation_is_folded_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = SuperLink(monkeypatch, 12)
    grid = InMemoryGrid(superlink.factory)
    grid.set_run(superlink.grid.run)
    state: Any = superlink.state
    replies, pulled = state.get_message_res, []

    def answered(message_ids: set[str], run_id: int) -> list[Message]:
        pulled.append(len(message_ids))
        for number, node in enumerate(superlink.nodes):
            for message in state.get_message_ins(node_id=node, limit=None):
                reply = Message(content_of(message, number), reply_to=message)
                reply.metadata.__dict__["_message_id"] = f"reply {number}"
                state.store_message_res(reply)
        found: list[Message] = replies(message_ids, run_id)
        return found

    monkeypatch.setattr(state, "get_message_res", answered)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, record_of(MODEL), num_rounds=1)
    is_the_mean_of(result.arrays, range(12))
    assert pulled == [8, 4]
    assert superlink.calls == []


def test_an_apps_own_functions_get_what_flowers_get(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    seen: list[tuple[str, int, str]] = []

    class Own(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            whole.extend(len(m.content.array_records["arrays"]["conv"].data) for m in replies)
            return super().aggregate_train(server_round, replies)

    def metrics(records: list[RecordDict], key: str) -> MetricRecord:
        for record in records:
            array = record.array_records["arrays"]["conv"]
            seen.append((array.dtype, len(array.data), array.stype))
        return MetricRecord({"sum": sum(r["metrics"][key] for r in records)})  # type: ignore[misc]

    for make in (Own, FedAvg):
        superlink = SuperLink(monkeypatch, 2)
        Nodes(superlink)
        strategy = make(fraction_evaluate=0.0, train_metrics_aggr_fn=metrics)
        result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
        is_the_mean_of(result.arrays, (0, 1))
        assert result.train_metrics_clientapp[1]["sum"] == 30
    assert whole == [MODEL["conv"].nbytes + 128] * 2
    assert seen[2:] == [("float32", 0, FOLDED)] * 2


def test_other_records_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[ConfigRecord] = []

    def metrics(records: list[RecordDict], _key: str) -> MetricRecord:
        got.extend(record.config_records["notes"] for record in records)
        return MetricRecord({})

    superlink = SuperLink(monkeypatch, 2)

    def noted(message: Message) -> None:
        content = content_of(message, 0)
        content["notes"] = ConfigRecord({"who": "me", "raw": b"\0\1", "on": True})
        superlink.answer(Message(content, reply_to=message))

    Nodes(superlink, {0: noted, 1: noted})
    strategy = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=metrics)
    strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
    assert got == [ConfigRecord({"who": "me", "raw": b"\0\1", "on": True})] * 2


@pytest.mark.slow
@pytest.mark.parametrize("private", [True, False])
def test_memory_does_not_grow_with_the_clients(
    monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    """20 MB a reply, 8 and 32 replies, one to a look: what is there at once is the same."""
    if not private:
        monkeypatch.setattr(flower_objects, "version", lambda _: "1.43.0")
    model = {"w": np.zeros(5_000_000, np.float32)}
    peaks = []
    for clients in (8, 32):
        superlink = SuperLink(monkeypatch, clients)
        todo: dict[str, Message] = {}

        def one(method: str, request: Any, todo: Any = todo, superlink: Any = superlink) -> None:
            if method != "PullMessages":
                return
            for node in superlink.nodes:
                for message in superlink.waiting(node):
                    message.content = RecordDict()
                    todo[message.metadata.message_id] = message
            asked = todo.keys() & set(request.message_ids)
            if asked:
                message = todo.pop(asked.pop())
                arrays = {"w": np.random.default_rng(1).random(5_000_000, np.float32)}
                metrics = MetricRecord({"num-examples": 1})
                content = RecordDict({"arrays": record_of(arrays), "metrics": metrics})
                superlink.answer(Message(content, reply_to=message))

        superlink.before = one
        tracemalloc.start()
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients)
        strategy.start(superlink.grid, record_of(model), num_rounds=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0], peaks
