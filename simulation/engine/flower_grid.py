"""Flower's `Grid` over a pool of workers: an unchanged ServerApp sends its messages, here they run.

Nodes are 0 to N-1, all of them there at any time, so that a seed decides who trains; message ids
are "1", "2", …. Messages run when replies are asked for, and replies come in the order of their
messages: the sums that a strategy makes of them repeat. An app that raises, and a worker that dies,
are a reply `Message(Error(…))` of that node.

Bytes that several messages have in common by identity (the arrays of a round's model) go down once,
in a mapped file. What a node keeps in `Context.state` is kept here after each of its replies
(spill.py), wherever it ran.

Private names of Flower 1.42: `TaskIdentity`, the metadata's `_message_id` (as InMemoryGrid sets
it), `Run.create_empty`, `ErrorCode`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from .flower_records import Blobs, decoded, encoded
from .pool import Answered, Item
from .spill import Spill
from ...protocol.errors import Malformed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flwr.app import RecordDict

    from .flower_records import Content
    from .pool import Died, Pool
    from ...server.core.segments import Segment

ASKED, WAITS_S = 5, 5.0
"""Nodes are asked for so often, over so many seconds, and nobody is sent anything: nobody comes."""
TASK = 1
"""Flower's number of the ServerApp's task; there is no other."""


class PoolGrid(Grid):
    """Runs the messages of one ServerApp; used inside `identified`."""

    def __init__(
        self,
        pool: Pool,
        nodes: int,
        run: int,
        *,
        seed: int = 0,
        run_config: Mapping[str, Any] | None = None,
        observe: Callable[[Sequence[Message], Sequence[Message], float], None] | None = None,
    ) -> None:
        """Have sent nothing yet.

        Args:
            pool: Of `FlowerCallee`.
            nodes: How many.
            run: Flower's number of the run.
            seed: Keys the global generators of the clients.
            run_config: As a ClientApp sees it.
            observe: Called with messages, their replies and the seconds it took.
        """
        self._pool, self._nodes = pool, nodes
        self._run = Run.create_empty(run)
        self._seed, self._run_config = seed, dict(run_config or {})
        self._observe = observe
        self._count, self._calls = 0, Counter[int]()
        self._turns = threading.Lock()
        self._asked, self._asking_since, self._thread = 0, 0.0, threading.get_ident()
        self._waiting: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._states, self._forms = Spill(), dict[int, "Content"]()
        self._segment: Segment | None = None

    def set_run(self, run: Run) -> None:
        """Take the run's description."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's description."""
        return Run(**vars(self._run))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower's older way to make one."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes.

        Raises:
            SettingsError: They are asked for again and again, and no message is sent: somebody
                waits for more of them than there are.
        """
        if threading.get_ident() != self._thread:  # an older ServerApp's, which only looks on
            return list(range(self._nodes))
        self._asked += 1
        if self._asked == 1:
            self._asking_since = time.monotonic()
        elif self._asked > ASKED and time.monotonic() - self._asking_since > WAITS_S:
            expected = f"a strategy for which {self._nodes} nodes are enough"
            raise SettingsError("min_available_nodes", expected, "one that waits", "say --clients")
        return list(range(self._nodes))

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes with what Flower says of one."""
        return [NodeInfo(node_id=node, status="online") for node in range(self._nodes)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages; they run when replies are pulled."""
        ids, self._asked = [], 0
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = str(self._count)
            self._waiting.append(message)
            ids.append(str(self._count))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run what waits, and return the replies to these messages."""
        with self._turns:
            self._run_waiting(None)
        found = (self._replies.pop(number, None) for number in message_ids)
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run messages and return their replies in the messages' order.

        After `timeout` seconds what has not answered is ended, and left out.
        """
        ids = list(self.push_messages(messages))
        with self._turns:
            self._run_waiting(None if timeout is None else time.monotonic() + timeout)
        return self.pull_messages(ids)

    def close(self) -> None:
        """Forget the nodes' states; the pool is its owner's."""
        self._states.close()
        if self._segment is not None:
            self._segment.unlink()

    def _run_waiting(self, deadline: float | None) -> None:
        """Run what waits: messages to one node one after the other, those to others at once."""
        while self._waiting:
            step, rest = list[Message](), list[Message]()
            taken = set[int]()
            for message in self._waiting:
                node = message.metadata.dst_node_id
                (rest if node in taken else step).append(message)
                taken.add(node)
            self._waiting = rest
            self._run_step(step, deadline)

    def _run_step(self, step: Sequence[Message], deadline: float | None) -> None:
        began = time.monotonic()
        known = [message for message in step if message.metadata.dst_node_id in self._known]
        replies: dict[str, Message] = {
            message.metadata.message_id: _failed(message, ErrorCode.NODE_UNAVAILABLE, "no node")
            for message in step
            if message.metadata.dst_node_id not in self._known
        }
        for found in self._pool.run(self._items(known), deadline):
            if found.place is not None:
                message = known[found.place]
                replies[message.metadata.message_id] = self._reply(message, found)
        ordered = [
            replies[message.metadata.message_id]
            for message in step
            if message.metadata.message_id in replies
        ]
        self._replies |= {reply.metadata.reply_to_message_id: reply for reply in ordered}
        if self._observe is not None:
            self._observe(step, ordered, time.monotonic() - began)

    @property
    def _known(self) -> range:
        return range(self._nodes)

    def _items(self, messages: Sequence[Message]) -> list[Item]:
        """Tell the workers what the messages share, and return what is each one's own."""
        uses = Counter(id(message.content) for message in messages)
        shared, contents = Blobs(), list["Content"]()
        places: dict[int, int] = {}
        common = _common(messages)
        for message in messages:
            if uses[id(message.content)] > 1 and id(message.content) not in places:
                places[id(message.content)] = len(contents)
                contents.append(encoded(message.content, shared.place))
        items = []
        for message in messages:
            own = list[bytes]()
            content: int | Content | None = places.get(id(message.content))
            if content is None:
                content = encoded(message.content, _placer(shared, common, own))
            items.append(self._item(message, content, own))
        self._share(shared, contents)
        return items

    def _item(self, message: Message, content: int | Content, own: list[bytes]) -> Item:
        """Return what a worker is told of one message: what is its own, and the node's state."""
        about = message.metadata
        node = about.dst_node_id
        self._calls[node] += 1
        fields = {
            "node": node,
            "number": self._calls[node],
            "content": content,
            "inline": len(own),
            "state": self._forms.get(node, []),
            "metadata": [
                about.run_id, about.message_id, about.src_node_id, node, about.reply_to_message_id,
                about.group_id, about.created_at, about.ttl, about.message_type,
                about.src_task_id, about.dst_task_id,
            ],
        }  # fmt: skip
        return Item(fields, [*own, *self._states.get(node)], home=node % len(self._pool))

    def _share(self, shared: Blobs, contents: list[Content]) -> None:
        """Put shared bytes where all workers can read them, and say where."""
        needed = sum(map(len, shared.data))
        if self._segment is None or len(self._segment.view) < needed:
            if self._segment is not None:
                self._segment.unlink()
            self._segment = self._pool.segment(needed, "records")
        places, start = [], 0
        for data in shared.data:
            self._segment.view[start : start + len(data)] = data
            places.append([start, len(data)])
            start += len(data)
        self._pool.begin({
            "shared": str(self._segment.path), "nbytes": len(self._segment.view),
            "places": places, "contents": contents, "run": self._run.run_id, "task": TASK,
            "nodes": self._nodes, "run_config": self._run_config, "seed": self._seed,
        })  # fmt: skip

    def _reply(self, message: Message, found: Answered | Died) -> Message:
        """Return what a node answers, after its state is kept."""
        node = message.metadata.dst_node_id
        if not isinstance(found, Answered):
            return _failed(message, ErrorCode.CLIENT_APP_CRASHED, f"node {node}: {found.cause}")
        fields = found.fields
        if "cause" in fields:
            raised = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return _failed(message, raised, f"node {node}: {fields['cause']}")
        blobs = [bytes(blob) for blob in found.blobs]
        if fields.get("state") is not None:
            self._states.put(node, blobs[fields["inline"] :])
            self._forms[node] = fields["state"]
        if "error" in fields:
            return _failed(message, *fields["error"])
        try:
            content = decoded(fields["content"], blobs.__getitem__, f"node {node}")
        except Malformed as error:
            return _failed(message, ErrorCode.CLIENT_APP_CRASHED, str(error))
        return _numbered(Message(content, reply_to=message), message)


def _common(messages: Sequence[Message]) -> set[int]:
    """Return the ids of the bytes of arrays that several different contents have."""
    contents = {id(message.content): message.content for message in messages}
    uses = Counter(
        id(array.data)
        for content in contents.values()
        for record in content.array_records.values()
        for array in record.values()
    )
    return {number for number, times in uses.items() if times > 1}


def _placer(shared: Blobs, common: set[int], own: list[bytes]) -> Callable[[bytes], int]:
    """Return what puts bytes to the shared ones, or to a message's own under -1, -2, …."""

    def place(data: bytes) -> int:
        if id(data) in common:
            return shared.place(data)
        own.append(data)
        return -len(own)

    return place


def _failed(message: Message, code: int, reason: str) -> Message:
    return _numbered(Message(Error(code, reason), reply_to=message), message)


def _numbered(reply: Message, message: Message) -> Message:
    reply.metadata.__dict__["_message_id"] = f"{message.metadata.message_id}-reply"
    return reply


@contextmanager
def identified(run: int) -> Iterator[None]:
    """Give this process the identity of a ServerApp, which Flower's messages ask for."""
    names = ("_task_id", "_run_id", "_node_id")
    before = [getattr(TaskIdentity, name) for name in names]
    for name, value in zip(names, (TASK, run, SUPERLINK_NODE_ID), strict=True):
        setattr(TaskIdentity, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(TaskIdentity, name, value)
