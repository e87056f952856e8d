"""Replies in Flower messages into the mean: Umbel's landing and fold beside Flower's own.

Both begin with what a ServerApp has pulled: the objects of each reply, by their ids, in memory.

    flower-objects           chunks copied to their places, checked and folded, the mean packed for
                             the next round; on one thread, as Flower
    flower-objects/hashed    the same with every object read and hashed before, on the same thread.
                             In service that is done on the two threads that pull. Flower hashes
                             nothing that its ServerApp pulls
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from .layer_sizes import layer_sizes
from .record import Measurement, interleave
from ..protocol.errors import VoidRound
from ..strategies.flower_replies import Landed, ObjectReply, Objects, packed
from ..strategies.landing import COMPILED, Incoming, Landing
from ..strategies.object_tree import read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..strategies.flower_objects import Listed

NAME = f"flwr {version('flwr')} inflate and aggregate_arrayrecords"
CLIENTS = 8
WEIGHT = "num-examples"
_NEAR = 2.4e-7


def cases(params: int, runs: int) -> Iterator[Measurement]:
    """Yield both cases; the means are compared before anything is timed."""
    COMPILED.load()
    race = _Race(params)
    race.check()
    took = interleave(
        {"landing": race.landing, "objects": race.objects, "flower": race.flower}, runs
    )
    nbytes = 4 * params * CLIENTS
    rates = {name: [nbytes / 1e9 / seconds for seconds in of] for name, of in took.items()}
    for case, name in (("flower-objects", "landing"), ("flower-objects/hashed", "objects")):
        yield Measurement(
            bench="ingest",
            case=case,
            unit="GB/s",
            samples=rates[name],
            peer=rates["flower"],
            peer_name=NAME,
        )


class _Store:
    """What was pulled, in place of Flower's store."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def fetch(self, _peer: str, object_id: str) -> bytes:
        return self.contents[object_id]

    def message(self, _listed: Listed, content: RecordDict) -> RecordDict:
        return content

    def failed(self, _listed: Listed, reason: str) -> None:
        raise VoidRound(f"flower-objects: {reason}")

    def confirm(self, _listed: Listed) -> None:
        pass


class _Here(Executor):
    """One thread: what is submitted is done."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class _Reply:
    is_error = False

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id


class _Race:
    """The replies of a round, and who makes a mean of them."""

    def __init__(self, params: int) -> None:
        """Make everything once."""
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        rng = np.random.default_rng(0)
        self._store, self._ids = _Store(), list[str]()
        self._weights = [50 + client for client in range(CLIENTS)]
        cuts = np.cumsum(layer_sizes(params))[:-1]
        model: dict[str, NDArray[Any]] = {}
        for weight in self._weights:
            values = rng.standard_normal(params, np.float32)
            model = {f"layer-{n}": part for n, part in enumerate(np.split(values, cuts))}
            arrays = ArrayRecord({name: Array(part) for name, part in model.items()})
            content = RecordDict({"arrays": arrays, "metrics": MetricRecord({WEIGHT: weight})})
            message = Message(content, dst_node_id=2, message_type="train")
            with no_object_id_recompute():
                self._ids.append(message.object_id)
                objects = get_all_nested_objects(message)
                self._store.contents |= {i: o.deflate() for i, o in objects.items()}
        self._landing = Landing(model)
        self._chunks = [self._pieces(message_id) for message_id in self._ids]
        self.mean: ArrayRecord | None = None
        """What the last run made."""

    def _pieces(self, message_id: str) -> dict[str, tuple[memoryview, ...]]:
        """Return the chunks of a reply's arrays."""
        contents = dict(self._store.contents)
        message = cast("Message", inflate_object_from_contents(message_id, contents))
        return {
            name: tuple(
                read_object("", i, self._store.contents[i]).body for i, _ in array.slice_array()
            )
            for name, array in message.content.array_records["arrays"].items()
        }

    def check(self) -> None:
        """Compare the means.

        Raises:
            VoidRound: They differ by more than rounding.
        """
        means = []
        for run in (self.flower, self.objects, self.landing):
            run()
            means.append(np.concatenate([a.numpy() for a in (self.mean or {}).values()]))
        if not all(np.allclose(means[0], other, rtol=0, atol=_NEAR) for other in means[1:]):
            raise VoidRound("flower-objects: expected Flower's mean, got another")

    def flower(self) -> float:
        """Return the seconds that Flower needs."""
        start = time.perf_counter()
        contents = dict(self._store.contents)
        messages = [cast("Message", inflate_object_from_contents(i, contents)) for i in self._ids]
        self.mean = aggregate_arrayrecords([m.content for m in messages], WEIGHT)
        return time.perf_counter() - start

    def objects(self) -> float:
        """Return the seconds from objects to the mean."""
        start = time.perf_counter()
        landing = self._landing.again(self._landing.model)
        landed = Landed(landing, lambda _, content: cast("Any", content["metrics"])[WEIGHT])
        source = Objects(cast("Any", self._store), landed, _Here())
        for message_id in self._ids:
            ObjectReply("", cast("Listed", _Reply(message_id)), source).take("node")
        source.settle()
        self._pack()
        return time.perf_counter() - start

    def landing(self) -> float:
        """Return the seconds from chunks to the mean."""
        start = time.perf_counter()
        self._landing.again(self._landing.model)
        for pieces, weight in zip(self._chunks, self._weights, strict=True):
            arrays = {n: Incoming("float32", "numpy.ndarray", p) for n, p in pieces.items()}
            self._landing.take("node", arrays, weight)
        self._pack()
        return time.perf_counter() - start

    def _pack(self) -> None:
        self.mean = packed(self._landing.mean())
