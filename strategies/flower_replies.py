"""The replies of a round and what becomes of their models, whole or object by object.

    Landed     the replies as `aggregate_train` gets them, without numbers, and the sum
    Whole      replies by the public Grid: a few at a time, each landed from the memory it is in
    Objects    replies by their objects (flower_objects.py): chunks go from Flower's store to their
               place, and Flower may forget a reply after the fold of it

Both kinds yield replies with `take(node)`, which puts the model into the sum and returns Flower's
message with arrays of stype `umbel.folded` that have names, dtypes and shapes and no data.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import Array, ArrayRecord, Message, RecordDict

from . import flower_objects, npy
from .landing import NUMPY, Incoming, Landing
from .object_tree import (
    MAX_RECORDS,
    Object,
    array_parts,
    read_chunk,
    read_object,
    references,
    the_records,
)
from ..protocol.errors import BadUpdate, Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from concurrent.futures import Executor, Future

    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from .flower_objects import Listed, Runtime

    Weight = Callable[[str, RecordDict], float]

TOGETHER = 8
"""Replies that are in memory at once where they come whole."""
AHEAD = 4
"""Objects that are fetched before they are wanted; so many chunks may be in memory."""
_ARRAY = 1 << 10
"""Bytes that one array may take beside its numbers, on average."""
FOLDED = "umbel.folded"
"""The stype of an array whose numbers are in the sum, and no more in the reply."""


class Landed(list[Message]):
    """The replies of a round, and the sum of their models."""

    def __init__(self, landing: Landing, weight: Weight) -> None:
        """Start a round without replies; `weight` says what a reply's weight is, or BadUpdate."""
        super().__init__()
        self.landing = landing
        self.used: list[RecordDict] = []
        """The contents of the replies that are in the sum."""
        self.dropped: list[BadUpdate] = []
        """Why the others are not."""
        self._weight = weight
        self._shared = ArrayRecord(
            {n: _empty(str(a.dtype), a.shape) for n, a in landing.model.items()}
        )

    def beside(self, model: Mapping[str, NDArray[Any]]) -> Landed:
        """Return the start of another sum, for models like this one; why replies failed is kept."""
        other = Landed(Landing(model), self._weight)
        other.dropped = self.dropped
        return other

    def folded(self, names: Iterable[str]) -> ArrayRecord:
        """Return arrays without data; one record for all replies that are like the model."""
        named = list(names)
        if named == list(self._shared):
            return self._shared
        return ArrayRecord({name: _empty("", ()) for name in named})

    def take(
        self, node: str, content: RecordDict, arrays: Callable[[], Mapping[str, Incoming]]
    ) -> None:
        """Put one model into the sum, or keep the reason."""
        try:
            weight = self._weight(node, content)
            self.landing.take(node, arrays(), weight)
        except BadUpdate as error:
            self.dropped.append(error)
        else:
            self.used.append(content)


class Whole:
    """Replies by the public Grid; `landed` is None where there is nothing to fold."""

    def __init__(self, grid: Grid, landed: Landed | None) -> None:
        """Start a round."""
        self._grid = grid
        self._landed = landed

    def look(self, asked: list[str]) -> Iterator[WholeReply]:
        """Yield what has come, a few at a time where it is large."""
        step = len(asked) if self._landed is None else TOGETHER
        for start in range(0, len(asked), step):
            for message in self._grid.pull_messages(asked[start : start + step]):
                yield WholeReply(message.metadata.reply_to_message_id, message, self._landed)

    def settle(self) -> None:
        """Do nothing: Flower has confirmed already."""


class WholeReply(NamedTuple):
    """A reply that is in memory."""

    reply_to: str
    message: Message
    landed: Landed | None

    def take(self, node: str) -> Message:
        """Put the model into the sum and return the rest."""
        if self.landed is None or self.message.has_error():
            return self.message
        content = self.message.content
        # Flower's `array_records` refers to itself, and would keep the numbers for the collector.
        records = [(n, r) for n, r in content.items() if isinstance(r, ArrayRecord)]
        if len(records) == 1:
            self.landed.take(node, content, lambda: whole(records[0][1]))
        for name, record in records:
            content[name] = self.landed.folded(record)
        return self.message


class Objects:
    """Replies by their objects."""

    def __init__(self, runtime: Runtime, landed: Landed, pool: Executor) -> None:
        """Start a round."""
        self.runtime, self.landed, self.pool = runtime, landed, pool
        self._done: list[Listed] = []

    def look(self, asked: list[str]) -> Iterator[ObjectReply]:
        """Yield what has come."""
        for listed in self.runtime.replies(asked):
            yield ObjectReply(listed.reply_to, listed, self)

    def settle(self) -> None:
        """Fold what has landed, and then let Flower forget it."""
        self.landed.landing.fold()
        for listed in self._done:
            self.runtime.confirm(listed)
        self._done.clear()

    def finished(self, listed: Listed) -> None:
        """Let this reply be confirmed when all that has landed is folded."""
        self._done.append(listed)


class ObjectReply(NamedTuple):
    """A reply whose objects are in Flower's store, or on their way there."""

    reply_to: str
    listed: Listed
    source: Objects

    def take(self, node: str) -> Message:
        """Put the model into the sum and return the rest; a broken reply returns as an error.

        Raises:
            NotYet: An object is on its way; the sum is as it was.
        """
        runtime = self.source.runtime
        if self.listed.is_error:
            message = runtime.failed(self.listed, "")
        else:
            try:
                content = _Reading(node, self.source).content(self.listed.message_id)
                message = runtime.message(self.listed, content)
            except Malformed as error:
                message = runtime.failed(self.listed, str(error))
        self.source.finished(self.listed)
        return message

    def given_up(self) -> Message:
        """Return the reply as an error: its time is over."""
        return self.source.runtime.failed(self.listed, "objects of the reply came too late")


class _Reading:
    """One look at one reply."""

    def __init__(self, node: str, source: Objects) -> None:
        self._node = node
        self._source = source
        self._room = self._most = MAX_RECORDS + _ARRAY * len(source.landed.landing.model)

    def content(self, message_id: str) -> RecordDict:
        """Return the records without the arrays' numbers, which go into the sum."""
        landed, node = self._source.landed, self._node
        message = self._small(message_id, self._raw(message_id))
        top_id = the_records(node, message)
        top = self._small(top_id, self._raw(top_id))
        content, models = RecordDict(), []
        for name, object_id in references(node, top, "RecordDict").items():
            raw = self._raw(object_id)
            record = self._small(object_id, raw)
            if record.kind == "ArrayRecord":
                models.append(references(node, record, "ArrayRecord"))
                content[name] = landed.folded(models[-1])
            else:
                content[name] = flower_objects.record(node, record.kind, raw)
        # With more or fewer there is no model: Flower's rules for replies say so.
        if len(models) == 1:
            self._land(content, models[0])
        return content

    def _land(self, content: RecordDict, ids: dict[str, str]) -> None:
        """Let the chunks of the model come to their places, in order."""
        model, chunks = self._source.landed.landing.model, list[str]()
        pool = self._source.pool
        with closing(in_order(pool, self._chunk, chunks)) as bodies:

            def arrays() -> dict[str, Incoming]:
                if set(ids) != set(model):
                    return {name: Incoming("", "", ()) for name in ids}
                found = {}
                raws = in_order(pool, self._raw, ids.values())
                for (name, object_id), raw in zip(ids.items(), raws, strict=True):
                    array = self._small(object_id, raw)
                    parts = array_parts(self._node, name, array, model[name].nbytes)
                    chunks.extend(parts.chunks)
                    pieces = islice(bodies, len(parts.chunks))
                    found[name] = Incoming(parts.dtype, parts.stype, pieces)
                return found

            self._source.landed.take(self._node, content, arrays)

    def _raw(self, object_id: str) -> bytes:
        return self._source.runtime.fetch(self._node, object_id)

    def _small(self, object_id: str, raw: bytes) -> Object:
        """Read an object that is no chunk; all of them together have a limit."""
        self._room -= len(raw)
        if self._room < 0:
            raise Malformed(self._node, "reply", f"{self._most} bytes beside arrays", "more")
        return read_object(self._node, object_id, raw)

    def _chunk(self, object_id: str) -> memoryview:
        return read_chunk(self._node, object_id, self._raw(object_id))


def whole(record: ArrayRecord) -> dict[str, Incoming]:
    """Return the arrays of a record that is in memory."""
    return {name: Incoming(a.dtype, a.stype, (a.data,)) for name, a in record.items()}


def packed(arrays: dict[str, NDArray[Any]]) -> ArrayRecord:
    """Return Flower's form of arrays, as its own `Array(array)` but copied once.

    `arrays` is emptied on the way, so that a large model is not there twice.
    """
    record = {}
    for name in list(arrays):
        array = arrays.pop(name)
        record[name] = Array(str(array.dtype), array.shape, NUMPY, npy.encoded(array))
    return ArrayRecord(record)


def _empty(dtype: str, shape: tuple[int, ...]) -> Array:
    return Array(dtype, shape, FOLDED, b"")


def in_order(
    pool: Executor, fetch: Callable[[str], Any], object_ids: Iterable[str]
) -> Generator[Any]:
    """Yield what `fetch` returns for each id, in order, with a few of them on their way.

    An id that is on its way already is not fetched again: equal chunks often follow each other.
    """
    ahead: deque[tuple[str, Future[Any]]] = deque()
    try:
        for object_id in object_ids:
            known = [future for other, future in ahead if other == object_id]
            ahead.append((object_id, known[0] if known else pool.submit(fetch, object_id)))
            if len(ahead) == AHEAD:
                yield ahead[0][1].result()
                ahead.popleft()
        while ahead:
            yield ahead[0][1].result()
            ahead.popleft()
    finally:
        for _, future in ahead:
            future.cancel()
