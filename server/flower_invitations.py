"""Inviting Flower nodes into a run's sessions, and again when they come back.

One Flower `train` message a node is the invitation: a complete train instruction with one record
more, `umbel.invite` (run, gateway, SHA-256 of the CA, ticket, lease). Nothing in it is a trust
anchor. The node answers when its session has ended, with rounds, bytes and a reason; it is then
invited anew while the run goes on, as is a node that comes online later.
"""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.serverapp import Grid

    from .core_client import CoreClient
    from .registry import Node

RECORD = "umbel.invite"
LEASE_S = 6 * 3600
EVERY_S = 0.5
"""How often replies and the list of online nodes are looked at."""
AGAIN_S = 1.0
"""Pause before a node that answered is asked again."""
PATIENCE_S = 25.0
"""How long an invited node may take to join before it is invited anew: a killed SuperNode
never answers, and its successor is not told what its predecessor was."""

_log = getLogger("flwr")


class Invitations:
    """The outstanding invitations of one run."""

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[str, Node],
        core: CoreClient,
        config: Mapping[str, bool | int | float | str],
    ) -> None:
        """Invite the registered `nodes` (by Flower key) to the run that `core` has open."""
        self._grid, self._nodes, self._core = grid, nodes, core
        self._config = dict(config)
        self._asked: dict[str, tuple[str, float]] = {}
        self._pause: dict[str, float] = {}
        self._last = float("-inf")
        self.unknown: set[str] = set()
        """Keys of online nodes that no enrolment knows."""

    def step(self, joined: frozenset[str], now: float) -> None:
        """Look at replies and online nodes, and invite who is online and has no session.

        Args:
            joined: Node ids, hex, that have a session now.
            now: Monotonic seconds.
        """
        if now - self._last < EVERY_S:
            return
        self._last = now
        self._take_replies(now)
        wanted = {}
        for info in self._grid.get_nodes():
            node = self._nodes.get(info.public_key.hex())
            if node is None:
                self._say_unknown(info.public_key.hex())
            elif info.status == "online" and self._may_ask(node.id, joined, now):
                wanted[info.node_id] = node
        if wanted:
            self._invite(wanted, now)

    def _may_ask(self, node: str, joined: frozenset[str], now: float) -> bool:
        if node in joined:
            return False
        if node in self._asked and now - self._asked[node][1] < PATIENCE_S:
            return False
        return now >= self._pause.get(node, float("-inf"))

    def _invite(self, wanted: Mapping[int, Node], now: float) -> None:
        tickets = self._core.tickets(
            [(node.id, node.tls_fingerprint) for node in wanted.values()], LEASE_S
        )
        messages = [
            self._message(node_id, node, tickets[node.id]) for node_id, node in wanted.items()
        ]
        for node, message_id in zip(
            wanted.values(), self._grid.push_messages(messages), strict=True
        ):
            self._asked[node.id] = (message_id, now)

    def _message(self, node_id: int, node: Node, ticket: bytes) -> Message:
        invite = ConfigRecord(
            {
                "run": self._core.run,
                "gateway": self._core.gateway,
                "ca-sha256": self._core.ca.hex(),
                "ticket": ticket,
                "lease": LEASE_S,
            }
        )
        content = RecordDict({"config": ConfigRecord(dict(self._config)), RECORD: invite})
        return Message(content, dst_node_id=node_id, message_type="train", ttl=float(LEASE_S))

    def _take_replies(self, now: float) -> None:
        """Take the answers of sessions that ended; an error is named by the node asked."""
        asked = {message_id: node for node, (message_id, _) in self._asked.items()}
        for reply in self._grid.pull_messages(list(asked)):
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            self._asked.pop(node, None)
            self._pause[node] = now + AGAIN_S
            if reply.has_error():
                _log.warning("node %s: its ClientApp failed, code %d", node, reply.error.code)

    def _say_unknown(self, key: str) -> None:
        if key not in self.unknown:
            self.unknown.add(key)
            _log.warning(
                "a Flower node with key %s... is in no enrolment of this federation; not invited",
                key[:16],
            )
