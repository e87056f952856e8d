"""Flower's SuperLink in the memory of a test: its own state, object store, handlers and grid.

Only HTTP is left out: the ServerApp's grid is Flower's `HttpGrid`, whose client calls the handlers
of the Runtime API; nodes call those of the Fleet API. What a node pushes is the test's: whole
messages, or objects that no Flower would make.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from flwr.app import Message, RecordDict


class SuperLink:
    """One run, some nodes that are online, and the grid of the run's ServerApp."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
        """Start; this process becomes the ServerApp's."""
        self.factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state = self.factory.state()
        self.nodes = [
            self.state.create_node("", "", bytes([number + 1]), 60.0) for number in range(nodes)
        ]
        for node in self.nodes:
            self.state.acknowledge_node_heartbeat(node, 60.0)
        self.run = self.state.create_run(
            "tests/app", "1.0.0", "0" * 64, {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.run])
        assert run.primary_task_id is not None
        self.state.claim_task(run.primary_task_id)
        self.state.activate_task(run.primary_task_id)
        (self.task,) = self.state.get_tasks(task_ids=[run.primary_task_id])
        for name, value in (("_task_id", 1), ("_run_id", self.run), ("_node_id", 1)):
            monkeypatch.setattr(TaskIdentity, name, value)
        self.calls: list[tuple[str, Any]] = []
        """What the ServerApp asked, by method."""
        self.before: Callable[[str, Any], None] = lambda _method, _request: None
        """Called before each of its requests is answered."""
        self.grid = HttpGrid(insecure=True, token="t")  # noqa: S106 - nobody checks it
        self.grid.set_run(run)
        self.grid._client = _Client(self)  # type: ignore[assignment]

    def waiting(self, node: int) -> list[Message]:
        """Return the messages that a node has not pulled yet, with their content."""
        found = []
        for message in self.state.get_message_ins(node_id=node, limit=None):
            content = self._inflated(message.metadata.message_id)
            self.state.object_store.delete(message.metadata.message_id)
            found.append(make_message(metadata=copy(message.metadata), content=content))
        return found

    def _inflated(self, message_id: str) -> RecordDict:
        store, wanted = self.state.object_store, [message_id]
        contents: dict[str, bytes] = {}
        while wanted:
            one = wanted.pop()
            contents[one] = store.get(one) or b""
            wanted += [child.object_id for child in store.get_object_tree(one).children]
        return cast("Message", inflate_object_from_contents(message_id, contents)).content

    def answer(self, reply: Message, *, without: tuple[str, ...] = ()) -> str:
        """Let a node push a reply as Flower does, all objects but `without` types of them."""
        objects = get_all_nested_objects(reply)
        contents = {
            object_id: thing.deflate()
            for object_id, thing in objects.items()
            if type(thing).__name__ not in without
        }
        return self.push(reply, get_object_tree(reply), contents)

    def push(self, reply: Message, tree: ObjectTree, contents: dict[str, bytes]) -> str:
        """Let a node push these objects under this tree as its reply."""
        light = remove_content_from_message(reply)
        light.metadata.__dict__["_message_id"] = tree.object_id
        node = Node(node_id=reply.metadata.src_node_id)
        pushed = fleet_handlers.push_messages(
            PushMessagesRequest(
                node=node, messages_list=[message_to_proto(light)], message_object_trees=[tree]
            ),
            self.state,
        )
        for object_id in pushed.objects_to_push:
            if object_id in contents:
                self.store(node, pushed.session_id, object_id, contents[object_id])
        return pushed.session_id

    def finish(self, reply: Message, session: str) -> None:
        """Let a node push what it held back."""
        node = Node(node_id=reply.metadata.src_node_id)
        for object_id, thing in get_all_nested_objects(reply).items():
            self.store(node, session, object_id, thing.deflate())

    def forge(self, reply: Message, kind: str, change: Callable[[bytes], bytes]) -> None:
        """Let a node push a reply in which the first object of a kind is changed.

        Ids are those of what is pushed, as the SuperLink demands, and so are the lengths in heads.
        """
        contents: dict[str, bytes] = {}
        changed = False

        def build(thing: Any) -> ObjectTree:
            nonlocal changed
            new = {i: build(child) for i, child in (thing.children or {}).items()}
            content = thing.deflate()
            for old, tree in new.items():
                content = content.replace(old.encode(), tree.object_id.encode())
            if type(thing).__name__ == kind and not changed:
                changed = True
                head, _, body = content.partition(b"\0")
                body = change(body)
                content = head[: head.rindex(b" ") + 1] + f"{len(body)}".encode() + b"\0" + body
            object_id = get_object_id(content)
            contents[object_id] = content
            return ObjectTree(object_id=object_id, children=list(new.values()))

        self.push(reply, build(reply), contents)

    def store(self, node: Node, session: str, object_id: str, content: bytes) -> None:
        """Let a node push one object."""
        request = PushObjectRequest(
            node=node, run_id=self.run, object_id=object_id, object_content=content,
            session_id=session,
        )  # fmt: skip
        fleet_handlers.push_object(request, self.state)

    def asked(self, method: str) -> int:
        """Return how often the ServerApp called a method."""
        return sum(name == method for name, _ in self.calls)


class _Client:
    """In place of Flower's HTTP client: the handlers behind it."""

    def __init__(self, superlink: SuperLink) -> None:
        self._superlink = superlink

    def __getattr__(self, name: str) -> Any:
        handler: Any = {
            "GetNodes": runtime_handlers.get_nodes,
            "PushMessages": runtime_handlers.push_messages,
            "PullMessages": runtime_handlers.pull_messages,
            "PushObject": runtime_handlers.push_object,
            "PullObject": runtime_handlers.pull_object,
            "ConfirmMessageReceived": runtime_handlers.confirm_message_received,
        }[name]

        def call(request: Any) -> Any:
            self._superlink.before(name, request)
            self._superlink.calls.append((name, request))
            return handler(request, self._superlink.state, self._superlink.task)

        return call
