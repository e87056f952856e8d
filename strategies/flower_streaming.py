"""Replies that are folded as they come: the Grid under `umbel.FedAvg.start` and its like.

Flower's `Grid.send_and_receive` waits for all replies of a round, each whole, looks for them every
3 s, and confirms a reply before it is read. This one pushes the same messages and returns the same
replies in the order in which they came, but

* each model goes into the sum when it comes, and a reply keeps the names of its arrays only: the
  memory of a round does not grow with the number of clients;
* under Flower's `HttpGrid` the chunks of a model go from Flower's store to their place, and Flower
  is told that it may forget a reply after the fold of it (flower_replies.py);
* it looks for replies after 0.1 s, and every second at the most.

A reply that is no tree of objects comes back as an error of its node; why a model is not in the sum
is in `Landed.dropped`. An error names the node that was asked, where Flower has node 1, its
SuperLink, for one that is gone. An object that its client is still sending holds up nobody else.
What comes after the deadline is not in the round. Under another flwr, and in Flower's simulation,
replies come whole by the public Grid, a few at a time. A Grid that is not Flower's is left alone.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from .flower_objects import NotYet, named, runtime
from .flower_replies import Landed, ObjectReply, Objects, Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.run import Run

    from .flower_replies import WholeReply

FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 1.0
"""Seconds from one look to the next: a tenth of the time since the last reply, within these."""
AGAIN_LOOK_S = 10.0
"""Longest pause before an object that was on its way is looked for again; doubled up to this."""
FETCHERS = 2
"""Objects that are fetched at once, as many as by Flower."""


def streaming(grid: Grid, begin: Callable[[], Landed | None]) -> Grid:
    """Return a Grid that folds what replies to train messages, or `grid` if it is not Flower's.

    `begin` is called when the messages of a round of training are there; with None for a sum the
    replies stay whole.
    """
    if type(grid).__module__.partition(".")[0] != "flwr":
        return grid
    return StreamingGrid(grid, begin)


class StreamingGrid(Grid):
    """A Grid of Flower's with another `send_and_receive`."""

    def __init__(self, grid: Grid, begin: Callable[[], Landed | None]) -> None:
        """Stand before `grid`; see `streaming`."""
        self._grid = grid
        self._begin = begin
        self._runtime = runtime(grid)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and return the replies that came within `timeout` seconds."""
        sent = list(messages)
        kinds = {message.metadata.message_type.partition(".")[0] for message in sent}
        landed = self._begin() if kinds == {MessageType.TRAIN} else None
        nodes = [message.metadata.dst_node_id for message in sent]
        asked = dict(zip(self._grid.push_messages(sent), nodes, strict=False))
        del sent, messages
        until = math.inf if timeout is None else time.monotonic() + timeout
        with ThreadPoolExecutor(FETCHERS) as pool:
            if landed is None or self._runtime is None:
                source: Whole | Objects = Whole(self._grid, landed)
            else:
                source = Objects(self._runtime, landed, pool)
            return _Round(source, asked, [] if landed is None else landed).replies_until(until)

    @property
    def run(self) -> Run:
        """Run information."""
        return self._grid.run

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        """Create a message as the other Grid does."""
        return self._grid.create_message(*arguments, **more)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are online."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are online."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and return their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, whole."""
        return self._grid.pull_messages(message_ids)

    def __getattr__(self, name: str) -> Any:
        """Return what else the other Grid has."""
        return getattr(self._grid, name)


class _Waiting:
    """A reply that is there, but not all of its objects."""

    def __init__(self, node: int, reply: ObjectReply | WholeReply) -> None:
        self.node, self.reply = node, reply
        self.pause = FIRST_LOOK_S
        self.at = 0.0

    def later(self) -> None:
        """Look again after a pause."""
        self.at = time.monotonic() + self.pause
        self.pause = min(2.0 * self.pause, AGAIN_LOOK_S)


class _Round:
    """The replies to one push of messages."""

    def __init__(
        self, source: Whole | Objects, asked: dict[str, int], replies: list[Message]
    ) -> None:
        self._source, self._asked, self._replies = source, asked, replies
        self._waiting: list[_Waiting] = []

    def replies_until(self, end: float) -> list[Message]:
        """Return the replies when all are there, or at the end."""
        last = time.monotonic()
        while (self._asked or self._waiting) and time.monotonic() < end:
            before = len(self._replies)
            self._look()
            now = time.monotonic()
            if len(self._replies) > before:
                last = now
            pause = min(LONGEST_LOOK_S, max(FIRST_LOOK_S, (now - last) / 10.0), end - now)
            if (self._asked or self._waiting) and pause > 0.0:
                time.sleep(pause)
        for waiting in self._waiting:
            if isinstance(waiting.reply, ObjectReply):
                self._replies.append(waiting.reply.given_up())
        return self._replies

    def _look(self) -> None:
        """Take what has come."""
        if self._asked:
            for reply in self._source.look(list(self._asked)):
                # A reply to nothing that was asked, or to what was answered, counts for nothing.
                node = self._asked.pop(reply.reply_to, None)
                if node is not None:
                    self._waiting.append(_Waiting(node, reply))
                    self._take()
        self._take()
        self._source.settle()

    def _take(self) -> None:
        still = []
        for waiting in self._waiting:
            if time.monotonic() < waiting.at:
                still.append(waiting)
                continue
            try:
                message = waiting.reply.take(f"node {waiting.node}")
            except NotYet:
                waiting.later()
                still.append(waiting)
            else:
                self._replies.append(named(message, waiting.node))
        self._waiting = still
