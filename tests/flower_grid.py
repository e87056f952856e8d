"""Flower's Grid in the memory of a test: nodes that are online or not, messages that are kept."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run, RunStatus
from flwr.supercore.task_identity import TaskIdentity

from umbel.protocol import messages_pb2 as pb
from umbel.tests.federations import APP

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from umbel.simulation.dev_federation import DevFederation

SUPERLINK = 1
"""In whose name Flower makes errors."""


def identified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the identity that Flower's launcher gives; messages need one."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, SUPERLINK)


class Desk(Grid):
    """The registered nodes of a federation, numbered 101, 102, and so on in Flower."""

    def __init__(self, federation: DevFederation) -> None:
        """Let every node be online."""
        self.nodes = {
            101 + place: NodeInfo(
                node_id=101 + place, public_key=bytes.fromhex(node.flower_key), status="online"
            )
            for place, node in enumerate(federation.nodes)
        }
        self.pushed: list[Message] = []
        self.asked_for: list[list[str]] = []
        self.replies: list[Message] = []
        self.looks = 0
        self.takes = True
        """Whether Flower takes messages: with None it gives None for each."""
        self._number = itertools.count(1)

    @property
    def run(self) -> Run:
        """A run of the app `tests/small`."""
        status = RunStatus("running", "", "")
        return Run(77, "tests/small", "1.0.0", APP.hex(), {}, "", "", "", "", status, "", "", None,
                   0, 0, 0.0)  # fmt: skip

    def get_node_ids(self) -> Iterable[int]:
        """Return who is online."""
        return [node for node, info in self.nodes.items() if info.status == "online"]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes."""
        self.looks += 1
        return list(self.nodes.values())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages and number them."""
        found: list[Any] = []
        for message in messages:
            if not self.takes:
                found.append(None)
                continue
            found.append(f"message-{next(self._number)}")
            message.metadata.__dict__["_message_id"] = found[-1]
            self.pushed.append(message)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these, once."""
        wanted = list(message_ids)
        self.asked_for.append(wanted)
        found = [r for r in self.replies if r.metadata.reply_to_message_id in wanted]
        self.replies = [r for r in self.replies if r not in found]
        return found

    def to(self, node: int) -> list[Message]:
        """Return what a node was sent."""
        return [m for m in self.pushed if m.metadata.dst_node_id == node]

    def answer(self, message: Message, code: int = pb.REASON_GOODBYE) -> None:
        """Let a session that has ended be reported."""
        record = ConfigRecord({"rounds": 1, "bytes-up": 2, "bytes-down": 3, "code": code})
        self.replies.append(Message(RecordDict({"umbel.session": record}), reply_to=message))

    def fail(self, message: Message, code: int) -> None:
        """Let Flower say that a node's ClientApp failed."""
        reply = Message(Error(code, "words"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK
        self.replies.append(reply)

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = send_and_receive = _unused
