"""Replies that a node spoilt, forged, sends late or twice: to the others they do nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict

from umbel.strategies import flower_objects, flower_replies
from umbel.strategies.flower_fedavg import FedAvg
from umbel.tests.flower_nodes import MODEL, Nodes, content_of, is_the_mean_of, record_of
from umbel.tests.flower_superlink import SuperLink

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr")

    def found(word: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if word in r.getMessage()]

    return found


def nan(message: Message) -> RecordDict:
    content = content_of(message, 1)
    array = content.array_records["arrays"]["head"].numpy().copy()
    array[2, 3] = np.nan
    content.array_records["arrays"]["head"] = Array(array)
    return content


def other_shape(message: Message) -> RecordDict:
    content = content_of(message, 1)
    content.array_records["arrays"]["head"] = Array(np.ones((1, 4), np.float32))
    return content


def no_weight(message: Message) -> RecordDict:
    content = content_of(message, 1)
    content.metric_records["metrics"]["num-examples"] = 0
    return content


def not_numpy(message: Message) -> RecordDict:
    content = content_of(message, 1)
    content.array_records["arrays"]["head"] = Array("float32", (3, 4), "pickle", b"cos\nsystem")
    return content


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (nan, "array 'head': expected finite values, got nan"),
        (other_shape, "array 'head': expected float32 (3, 4), got float32 (1, 4)"),
        (no_weight, "num-examples: expected a number above 0, at most 2^32, got 0"),
        (not_numpy, "array 'head': expected a numpy array, got serialisation 'pickle'"),
    ],
)
def test_a_bad_model_is_dropped_and_its_node_is_named(
    spoil: Callable[[Message], RecordDict], complaint: str, lines: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    superlink = SuperLink(monkeypatch, 3)

    def bad(message: Message) -> None:
        superlink.answer(Message(spoil(message), reply_to=message))

    Nodes(superlink, {1: bad})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
    is_the_mean_of(result.arrays, (0, 2))
    assert result.train_metrics_clientapp[1]["loss"] == (10 * 1.0 + 30 / 3.0) / 40
    assert lines("Received 3 results and 0 failures")
    (line,) = lines("reply dropped")
    assert f"node {superlink.nodes[1]}: {complaint}" in line
    assert len(superlink.state.object_store) == 0


def _forged(superlink: SuperLink, kind: str, change: Callable[[bytes], bytes]) -> Any:
    """Return a node that pushes a tree in which one object is replaced, honestly hashed."""

    def node(message: Message) -> None:
        reply = Message(content_of(message, 1), reply_to=message)
        superlink.forge(reply, kind, change)

    return node


@pytest.mark.parametrize(
    ("kind", "change", "complaint"),
    [
        ("Array", lambda c: c.replace(b"[0]", b"[7]"), "chunks from 0 to 0"),
        ("Array", lambda c: c.replace(b'"dtype"', b'"d,ype"'), "dtype, shape, stype and chunks"),
        ("ArrayRecord", lambda c: c.replace(b'{"', b'[["', 1)[: len(c)], "at line 1"),
        ("MetricRecord", lambda c: c + b"\xff", "MetricRecord"),
        ("RecordDict", lambda c: c.replace(b"metrics", b'me":"ic', 1), "RecordDict"),
    ],
)
def test_a_forged_tree_is_an_error_of_its_node(
    kind: str, change: Callable[[bytes], bytes], complaint: str, lines: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    superlink = SuperLink(monkeypatch, 3)
    Nodes(superlink, {1: _forged(superlink, kind, change)})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
    is_the_mean_of(result.arrays, (0, 2))
    assert lines("Received 2 results and 1 failures")
    (line,) = lines("Received error in reply")
    assert f"from node {superlink.nodes[1]}: " in line
    assert complaint in line
    assert len(superlink.state.object_store) == 0


def test_what_is_no_array_has_a_limit(monkeypatch: pytest.MonkeyPatch, lines: Any) -> None:
    monkeypatch.setattr(flower_replies, "MAX_RECORDS", (1 << 16) - (len(MODEL) << 10))
    superlink = SuperLink(monkeypatch, 3)

    def large(message: Message) -> None:
        content = content_of(message, 1)
        content["notes"] = ConfigRecord({"all": bytes(1 << 16)})
        superlink.answer(Message(content, reply_to=message))

    Nodes(superlink, {1: large})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
    is_the_mean_of(result.arrays, (0, 2))
    (line,) = lines("Received error in reply")
    assert f"node {superlink.nodes[1]}: reply: expected 65536 bytes beside arrays, got more" in line


def test_who_is_still_sending_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, lines: Any) -> None:
    superlink = SuperLink(monkeypatch, 3)
    late: list[Any] = []

    def slow(message: Message) -> None:
        reply = Message(content_of(message, 0), reply_to=message)
        late.append((reply, superlink.answer(reply, without=("ArrayChunk",))))

    nodes = Nodes(superlink, {0: slow})

    def finish(method: str, request: Any) -> None:
        nodes(method, request)
        if late and superlink.asked("ConfirmMessageReceived") == 2:
            superlink.finish(*late.pop())

    superlink.before = finish
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1, timeout=60.0)
    is_the_mean_of(result.arrays, (0, 1, 2))
    assert lines("Received 3 results and 0 failures")


def test_the_deadline_ends_a_round_without_those_that_are_late(
    monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    superlink = SuperLink(monkeypatch, 4)

    def half(message: Message) -> None:
        reply = Message(content_of(message, 0), reply_to=message)
        superlink.answer(reply, without=("ArrayChunk",))

    Nodes(superlink, {0: half, 1: lambda _: None})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1, timeout=0.5)
    is_the_mean_of(result.arrays, (2, 3))
    assert lines("Received 2 results and 1 failures")
    assert lines(f"node {superlink.nodes[0]}: objects of the reply came too late")


@pytest.mark.parametrize("version", ["1.42.0", "1.43.0"])
def test_a_node_that_is_gone_is_named(
    version: str, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    monkeypatch.setattr(flower_objects, "version", lambda _: version)
    superlink = SuperLink(monkeypatch, 3)

    def gone(message: Message) -> None:
        superlink.state.nodes[message.metadata.dst_node_id].online_until = 1.0  # type: ignore[attr-defined]

    Nodes(superlink, {1: gone})
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1, timeout=30.0)
    is_the_mean_of(result.arrays, (0, 2))
    assert lines("Received 2 results and 1 failures")
    assert lines(f"from node {superlink.nodes[1]}: Error: Node Unavailable")


def test_a_reply_that_is_listed_twice_counts_once(
    monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    superlink = SuperLink(monkeypatch, 2)
    Nodes(superlink)
    client: Any = superlink.grid._client

    class Twice:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def PullMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's
            answer = client.PullMessages(request)
            answer.messages_list.extend(list(answer.messages_list))
            return answer

    superlink.grid._client = Twice()  # type: ignore[assignment]
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(superlink.grid, record_of(MODEL), num_rounds=1)
    is_the_mean_of(result.arrays, (0, 1))
    assert lines("Received 2 results and 0 failures")
