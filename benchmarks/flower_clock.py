"""The peer of `umbel bench clock`: the in-memory LinkState of Flower 1.42's simulation engine.

Its engine registers every node and then asks, ten times a second, for each node whether a message
is there for it (`vce_api.add_messages_to_queue`). Here nodes are registered in the same way, the
messages of a round are pushed through Flower's own grid, and one such sweep is timed; private names
of Flower 1.42 are used, as they are by its engine.
"""

from __future__ import annotations

import secrets
import time
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict
from flwr.common.constant import (
    HEARTBEAT_INTERVAL_INF,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
)
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from .ingest_process import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = f"flwr {version('flwr')} InMemoryLinkState"


class Engine:
    """What Flower's engine keeps of its nodes and messages; a process of its own has one."""

    def __init__(self) -> None:
        """Make a state with one run."""
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state, self.grid = factory.state(), InMemoryGrid(factory)
        self.run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self.nodes: dict[int, int] = {}

    def register(self, nodes: int) -> float:
        """Register nodes; return the seconds that it took."""
        began = time.perf_counter()
        for index in range(nodes):
            node = self.state.create_node(
                NOOP_FLWR_AID,
                NOOP_ACCOUNT_NAME,
                secrets.token_bytes(32),
                heartbeat_interval=HEARTBEAT_INTERVAL_INF,
            )
            self.state.acknowledge_node_heartbeat(
                node_id=node, heartbeat_interval=HEARTBEAT_INTERVAL_INF
            )
            self.nodes[node] = index
        return time.perf_counter() - began

    def sweep(self, messages: int) -> float:
        """Push a message to some of the nodes, and return the seconds of one look at all."""
        TaskIdentity.task_id, TaskIdentity.run_id = 1, self.run
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        pushed = set(self.grid.push_messages(self._messages(messages)))
        began = time.perf_counter()
        found = sum(len(self.state.get_message_ins(node, limit=1)) for node in self.nodes)
        seconds = time.perf_counter() - began
        if found != messages or len(pushed) != messages:
            raise RuntimeError(f"bench clock: the peer found {found} of {messages} messages")
        self.state.delete_messages(pushed)
        return seconds

    def _messages(self, count: int) -> Iterator[Message]:
        step = max(1, len(self.nodes) // count)
        for node in islice(self.nodes, 0, step * count, step):
            yield Message(RecordDict(), node, "train")


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Register as many nodes as asked for, and look at all of them once."""
    engine = Engine()
    return {"register": engine.register(asked["nodes"]), "sweep": engine.sweep(asked["messages"])}


if __name__ == "__main__":
    answering(answer)
