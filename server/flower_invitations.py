"""Inviting Flower nodes into a run's sessions, and again when they come back.

One Flower `train` message a node is the invitation: a complete train instruction with one record
more, `umbel.invite` (run, gateway, SHA-256 of the CA, ticket, lease). Nothing in it is a trust
anchor. The node answers when its session has ended, with rounds, bytes and a code; it is then
invited anew while the run goes on, as is a node that comes online later.

| an invited node | is asked again |
|---|---|
| answers | after `AGAIN_S`, doubled up to `LONGEST_S` with each answer that comes at once |
| says nothing and does not join | after `PATIENCE_S` |
| had a session, and lost it | at once: the gateway has waited, and a successor was not invited |

While every registered node has a session Flower is not asked: an answer that nobody has taken yet
waits, and each look costs the SuperLink, and the round that runs, tens of milliseconds.
"""

from __future__ import annotations

import math
from hashlib import sha256
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple, cast

from flwr.app import ConfigRecord, Message, RecordDict

from .deadlines import LEASE_S
from ..protocol import messages_pb2 as pb
from ..protocol.errors import reason_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.serverapp import Grid

    from .core_client import CoreClient
    from .registry import Node

RECORD, ANSWER = "umbel.invite", "umbel.session"
"""Records of an invitation and of its answer."""
EVERY_S = 0.5
"""How often replies and the list of online nodes are looked at."""
AGAIN_S, LONGEST_S = 1.0, 30.0
"""Pause before a node that answered is asked again."""
PATIENCE_S = 25.0
"""How long an invited node may take to join before it is invited anew: a killed SuperNode
never answers, and its successor is not told what its predecessor was."""

_log = getLogger("flwr")


class _Asked(NamedTuple):
    message_id: str
    at: float
    """When; long ago once the node has had a session."""


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
        self._names = {node.id: node.name for node in nodes.values()}
        self._asked: dict[str, _Asked] = {}
        self._pause: dict[str, float] = {}
        self._refusals: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._joined: frozenset[str] = frozenset()
        self._last = float("-inf")
        self.unknown: set[str] = set()
        """Keys of online nodes that no enrolment knows."""

    def why(self) -> str:
        """Return what the nodes without a session answered last, each by its name."""
        return "; ".join(said for node, said in self._said.items() if node not in self._joined)

    def step(self, joined: frozenset[str], now: float) -> None:
        """Look at replies and online nodes, and invite who is online and has no session.

        Args:
            joined: Node ids, hex, that have a session now.
            now: Monotonic seconds.
        """
        if now - self._last < EVERY_S:
            return
        self._last = now
        if self._names and self._names.keys() <= joined:
            self._look(joined)
            return
        self._take_replies(now)
        self._look(joined)
        wanted = {}
        for info in self._grid.get_nodes():
            node = self._nodes.get(info.public_key.hex())
            if node is None:
                self._say_unknown(info.node_id, info.public_key)
            elif info.status == "online" and self._may_ask(node.id, joined, now):
                wanted[info.node_id] = node
        if wanted:
            self._invite(wanted, now)

    def _look(self, joined: frozenset[str]) -> None:
        """Note who has a session, and who has lost it: then the invitation is used up."""
        for node in joined:
            self._refusals.pop(node, None)
            if node in self._asked:
                self._asked[node] = self._asked[node]._replace(at=-math.inf)
        for node in (self._joined - joined) & self._asked.keys():  # it has not answered
            self._pause.pop(node, None)
        self._joined = joined

    def _may_ask(self, node: str, joined: frozenset[str], now: float) -> bool:
        if node in joined:
            return False
        if node in self._asked and now - self._asked[node].at < PATIENCE_S:
            return False
        return now >= self._pause.get(node, float("-inf"))

    def _invite(self, wanted: Mapping[int, Node], now: float) -> None:
        tickets = self._core.tickets(
            [(node.id, node.tls_fingerprint) for node in wanted.values()], LEASE_S
        )
        messages = [
            self._message(node_id, node, tickets[node.id]) for node_id, node in wanted.items()
        ]
        pushed = list(self._grid.push_messages(messages))
        for place, node in enumerate(wanted.values()):
            # Flower gives None for a message that it did not take, or no list at all.
            message_id = pushed[place] if place < len(pushed) else None
            if message_id:
                self._asked[node.id] = _Asked(message_id, now)
            else:
                _log.warning("node %s: Flower did not take its invitation", self._name(node.id))
                self._pause[node.id] = now + PATIENCE_S

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
        # A session may begin late and ends between attempts: its answer must not be too late.
        return Message(content, dst_node_id=node_id, message_type="train", ttl=2.0 * LEASE_S)

    def _take_replies(self, now: float) -> None:
        """Take the answers of sessions that ended.

        An error is named by the node that was asked: who sent it is not in the reply, for Flower
        makes errors in the name of its own node 1.
        """
        asked = {message_id: node for node, (message_id, _) in self._asked.items()}
        for reply in self._grid.pull_messages(list(asked)) if asked else ():
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            since = self._asked.pop(node).at
            soon = now - since < PATIENCE_S
            self._refusals[node] = self._refusals.get(node, 0) + 1 if soon else 0
            pause = AGAIN_S * 2.0 ** max(self._refusals[node] - 1, 0)
            self._pause[node] = now + min(pause, LONGEST_S)
            if said := _said(reply):
                self._said[node] = f"{self._names[node]} {said}"
                _log.warning("node %s: %s", self._name(node), said)

    def _name(self, node: str) -> str:
        return f"{self._names[node]} ({node[:8]})"

    def _say_unknown(self, node_id: int, key: bytes) -> None:
        if key.hex() not in self.unknown:
            self.unknown.add(key.hex())
            _log.warning(
                "Flower node %d (key SHA-256 %s...) is in no enrolment of this federation",
                node_id,
                sha256(key).hexdigest()[:16],  # a PEM text: its beginning is everybody's
            )


def _said(reply: Message) -> str:
    """Return what is to be said about an answer; nothing of an ordinary end."""
    if reply.has_error():
        return f"its ClientApp failed, code {reply.error.code}"
    record = reply.content.get(ANSWER)
    code = record.get("code") if isinstance(record, ConfigRecord) else None
    if type(code) is not int or code not in pb.Reason.values():
        return "answered its invitation without a session: it runs no Umbel ClientApp"
    return "" if code == pb.REASON_GOODBYE else f"left: {reason_text(cast('pb.Reason', code))}"
