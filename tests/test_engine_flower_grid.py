"""Flower's Grid over the pool: real strategies and apps, and what becomes of their faults."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from umbel.protocol.errors import Malformed, SettingsError
from umbel.simulation.engine import flower_grid
from umbel.simulation.engine.flower_callee import FlowerCallee
from umbel.simulation.engine.flower_grid import PoolGrid, identified
from umbel.simulation.engine.flower_records import Blobs, decoded, encoded
from umbel.simulation.engine.pool import Forked, Pool
from umbel.tests import flower_sim_apps as apps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flwr.app import Context

NODES = 5


@contextmanager
def grid(
    train: Callable[[Message, Context], Message] = apps.trained, workers: int = 2, **more: Any
) -> Iterator[PoolGrid]:
    app = apps.client_app(train)
    with Pool(Forked(partial(FlowerCallee, app)), workers) as pool, identified(77):
        made = PoolGrid(pool, NODES, 77, run_config={"lr": 0.1}, **more)
        yield made
        made.close()


def ask(
    made: PoolGrid, nodes: Sequence[int], config: dict[str, Any] | None = None
) -> list[Message]:
    content = RecordDict(
        {"arrays": ArrayRecord(apps.initial()), "config": ConfigRecord(config or {})}
    )
    return list(
        made.send_and_receive([Message(content, n, MessageType.TRAIN, group_id="1") for n in nodes])
    )


def arrays(reply: Message) -> list[np.ndarray]:
    found: list[np.ndarray] = apps.records(reply)["arrays"].to_numpy_ndarrays()
    return found


def test_replies_come_in_the_order_of_their_messages() -> None:
    with grid(workers=3) as made:
        order = [3, 0, 4, 1, 2]
        replies = ask(made, order)
        assert [reply.metadata.src_node_id for reply in replies] == order
        assert [reply.metadata.reply_to_message_id for reply in replies] == list("12345")
        for reply, node in zip(replies, order, strict=True):
            for got, expected in zip(arrays(reply), apps.step(apps.initial(), node), strict=True):
                assert got.tobytes() == expected.tobytes()
                assert got.dtype == expected.dtype
        assert list(made.get_node_ids()) == [node.node_id for node in made.get_nodes()]
        assert made.run.run_id == 77


def test_a_client_that_ruins_its_message_ruins_nobody_elses() -> None:
    with grid(apps.mutating, workers=1) as made:
        for _ in range(2):
            replies = ask(made, range(NODES))
            for node, reply in enumerate(replies):
                assert arrays(reply)[1].tobytes() == apps.step(apps.initial(), node)[1].tobytes()


def faulty(message: Message, context: Context) -> Any:
    """Fail in a way of its own on each node."""
    if context.node_id == 1:
        raise ValueError("no\nsuch sensor")
    return None if context.node_id == 2 else apps.trained(message, context)


def test_a_failing_client_is_an_error_of_its_node(capfd: pytest.CaptureFixture[str]) -> None:
    with grid(faulty) as made:
        replies = ask(made, [0, 1, 2, 3, 99])
    assert [reply.has_error() for reply in replies] == [False, True, True, False, True]
    assert replies[1].error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert replies[1].error.reason == "node 1: ValueError: no such sensor"
    assert replies[1].metadata.src_node_id == 1
    assert "NoneType, no Message" in str(replies[2].error.reason)
    assert replies[4].error.code == ErrorCode.NODE_UNAVAILABLE
    assert "such sensor" in capfd.readouterr().err


def test_what_a_node_keeps_survives_rounds_and_its_workers_death() -> None:
    with grid(apps.counting, workers=2) as made:
        counts = [[r.content["metrics"]["count"] for r in ask(made, range(NODES))] for _ in "12"]
        assert counts == [[1] * NODES, [2] * NODES]
        replies = ask(made, range(NODES), {"die": [3, 3]})
        assert [reply.has_error() for reply in replies] == [False, False, False, True, False]
        assert replies[3].error.code == ErrorCode.CLIENT_APP_CRASHED
        assert "was killed by SIGKILL" in str(replies[3].error.reason)
        again = [r.content["metrics"]["count"] for r in ask(made, [0, 3, 3, 1])]
        assert again == [4, 3, 4, 4]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_a_client_draws_is_its_own(workers: int) -> None:
    random.seed(1)
    with grid(apps.drawing, workers=workers, seed=5) as made:
        first, second = ([arrays(r)[0] for r in ask(made, n)] for n in ([0, 1, 2], [2, 1]))
    with grid(apps.drawing, workers=1, seed=5) as made:
        assert np.array_equal(first, [arrays(r)[0] for r in ask(made, [0, 1, 2])])
        assert np.array_equal(second[::-1], [arrays(r)[0] for r in ask(made, [1, 2])])
    with grid(apps.drawing, workers=1, seed=6) as made:
        assert not np.array_equal(first[0], arrays(ask(made, [0])[0])[0])
    assert len({value for pair in [*first, *second] for value in pair}) == 10


def test_messages_that_were_pushed_answer_when_they_are_pulled() -> None:
    with grid() as made:
        content = RecordDict({"arrays": ArrayRecord(apps.initial())})
        ids = list(made.push_messages([Message(content, n, MessageType.TRAIN) for n in (2, 0)]))
        assert [r.metadata.src_node_id for r in made.pull_messages(ids[1:])] == [0]
        assert [r.metadata.src_node_id for r in made.pull_messages(ids)] == [2]
        assert not list(made.pull_messages(ids))


def test_different_contents_with_one_model_send_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    share = PoolGrid._share

    def counted(self: PoolGrid, shared: Blobs, contents: Any) -> None:
        sent.append(len(shared.data))
        share(self, shared, contents)

    monkeypatch.setattr(PoolGrid, "_share", counted)
    with grid() as made:
        model = ArrayRecord(apps.initial())
        contents = [RecordDict({"arrays": model, "config": ConfigRecord({"n": n})}) for n in "ab"]
        replies = list(
            made.send_and_receive(
                [Message(c, n, MessageType.TRAIN) for n, c in enumerate(contents)]
            )
        )
    assert sent == [2]
    assert [arrays(r)[0].tobytes() for r in replies] == [
        apps.step(apps.initial(), n)[0].tobytes() for n in (0, 1)
    ]


def sleepy(message: Message, context: Context) -> Message:
    """Sleep on node 1."""
    if context.node_id == 1:
        import time  # noqa: PLC0415

        time.sleep(600)
    return apps.trained(message, context)


def test_who_is_too_late_is_left_out() -> None:
    with grid(sleepy) as made:
        content = RecordDict({"arrays": ArrayRecord(apps.initial())})
        messages = [Message(content, n, MessageType.TRAIN) for n in (0, 1, 2)]
        replies = list(made.send_and_receive(messages, timeout=1.0))
        assert [reply.metadata.src_node_id for reply in replies] == [0, 2]


def test_waiting_for_more_nodes_than_there_are_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_grid, "WAITS_S", 0.0)
    with grid() as made:
        for _ in range(3):
            ask(made, [0])
            for _ in range(flower_grid.ASKED):
                made.get_node_ids()
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: [made.get_node_ids() for _ in range(9)]).result()
        with pytest.raises(SettingsError, match="a strategy for which 5 nodes are enough"):
            made.get_node_ids()


def test_records_come_back_as_they_went() -> None:
    records = RecordDict(
        {
            "a": ArrayRecord([np.array([1, 2], np.float16), np.zeros((0, 3)), np.array(7)]),
            "m": MetricRecord({"x": float("nan"), "y": [1, -(2**40)], "z": 5}),
            "c": ConfigRecord({"t": "ä", "b": b"\x00", "f": True, "l": ["p", "q"]}),
            "empty": ArrayRecord(),
        }
    )
    blobs = Blobs()
    content = encoded(records, blobs.place)
    back = decoded(content, blobs.data.__getitem__, "node 3")
    assert list(back) == list(records)
    assert back["a"] == records["a"]
    assert back["c"] == records["c"]
    assert repr(back["m"]) == repr(records["m"])
    for broken in ([["a", "array", [["x"]]]], [["a", "metric", 99]], [["a", "other", 0]], [1]):
        with pytest.raises(Malformed, match="node 3: records"):
            decoded(broken, blobs.data.__getitem__, "node 3")  # type: ignore[arg-type]
