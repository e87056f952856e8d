"""Inviting Flower nodes into a run's sessions, and again when they come back.

One Flower `train` message a node is the invitation: a complete train instruction with one record
more, `umbel.invite` (run, gateway, SHA-256 of the CA, ticket, lease). Nothing in it is a trust
anchor. The node answers when its session has ended, with rounds, bytes and a code; it is then
invited anew while the run goes on, as is a node that comes online later.

| an invited node | is asked again |
|---|---|
| answers | after `AGAIN_S`, doubled up to `LONGEST_S` with each answer that comes at once |
| ... that it is outside its limits | the same, up to `LIMITED_S`: asking starts processes there |
| says nothing and does not join | after `PATIENCE_S`, but not while another run has it |
| had a session, and lost it | at once: the gateway has waited, and a successor was not invited |

While every registered node has a session Flower is not asked: an answer that nobody has taken yet
waits, and each look costs the SuperLink, and the round that runs, tens of milliseconds.

Flower is asked in a thread of its own, one thing after another: its Grid tries again and again
while its SuperLink is away, and no round waits for that. Whoever has a session needs no SuperLink.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException

from .deadlines import LEASE_S
from .gathering import TWICE
from ..protocol import messages_pb2 as pb
from ..protocol.errors import reason_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid

    from .core_client import CoreClient
    from .registry import Node

RECORD, ANSWER = "umbel.invite", "umbel.session"
"""Records of an invitation and of its answer."""
EVERY_S = 0.5
"""How often replies and the list of online nodes are looked at."""
AGAIN_S, LONGEST_S = 1.0, 30.0
"""Pause before a node that answered is asked again."""
LIMITED_S = 300.0
"""The longest pause before a node that is outside its own policy's limits is asked again."""
PATIENCE_S = 25.0
"""How long an invited node may take to join before it is invited anew: a killed SuperNode
never answers, and its successor is not told what its predecessor was."""
NO_SESSION = "NO_SESSION"
"""Code of an answer that is none of ours."""
AWAY_S = 5.0
"""After so long without an answer the SuperLink is said to be away."""

_log = getLogger("flwr")


class _Asked(NamedTuple):
    message_id: str
    at: float
    """When; long ago once the node has had a session."""


class _Job(NamedTuple):
    """What Flower is being asked."""

    answer: Future[Any]
    then: Callable[[Any, float], None]
    """Takes the answer, and when that was."""
    since: float


class Invitations:
    """The outstanding invitations of one run."""

    def __init__(
        self,
        grid: Grid,
        registry: Callable[[], Mapping[str, Node]],
        core: CoreClient,
        config: Mapping[str, bool | int | float | str],
        pool: Executor | None = None,
    ) -> None:
        """Invite the registered nodes (by Flower key) to the run that `core` has open.

        Who is registered is asked at each step: nodes are enrolled, renewed and removed while a
        run goes on. `pool` does one thing after another; by default in a thread of its own.
        """
        self._pool = pool or ThreadPoolExecutor(1, thread_name_prefix="umbel-flower")
        self._job: _Job | None = None
        self._failures = 0
        self._away = False
        self._grid, self._registry = grid, registry
        self._nodes: Mapping[str, Node] = {}
        self.core = core
        """Mints the tickets; the next one's are as good, for the key is the run's."""
        self._config = dict(config)
        self._names: dict[str, str] = {}
        self._asked: dict[str, _Asked] = {}
        self._pause: dict[str, float] = {}
        self._refusals: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        """How often in a row each node answered without a session."""
        self._busy: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self.declined: list[tuple[str, str]] = []
        """Nodes that answered in a new way, with a code for the record; who reads it clears it."""
        self._joined: frozenset[str] = frozenset()
        self._next = float("-inf")
        self.unknown: set[str] = set()
        """Keys of online nodes that no enrolment knows."""
        self._look_up()

    def possible(self) -> int:
        """Return how many nodes have a session, or have not failed again and again."""
        failed = self._failed
        return sum(n in self._joined or failed.get(n, 0) < TWICE for n in self._names)

    def busy(self) -> dict[str, str]:
        """Return the names of the nodes that have a session of another run, with that run."""
        return {
            self._names[n]: run
            for n, run in self._busy.items()
            if n in self._names and n not in self._joined
        }

    def why(self) -> str:
        """Return what the nodes without a session answered last, each by its name."""
        return "; ".join(said for node, said in self._said.items() if node not in self._joined)

    def step(self, joined: frozenset[str], now: float) -> None:
        """Look at replies and online nodes, and invite who is online and has no session.

        Args:
            joined: Node ids, hex, that have a session now.
            now: Monotonic seconds.
        """
        self._look_up()
        self._look(joined)
        self._settle(now)
        everybody = self._names and self._names.keys() <= joined
        if everybody or self._job is not None or now < self._next:
            return
        self._next = now + EVERY_S
        ids = [message_id for message_id, _ in self._asked.values()]
        self._ask(lambda: self._see(ids), self._seen, now)

    def close(self) -> None:
        """Ask nothing any more; what is being asked is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- in the other thread ------------------------------------------------------------------

    def _see(self, ids: list[str]) -> tuple[list[Message], list[NodeInfo]]:
        replies = list(self._grid.pull_messages(ids)) if ids else []
        return replies, list(self._grid.get_nodes())

    def _push(self, messages: list[Message]) -> list[str]:
        return list(self._grid.push_messages(messages))

    # -- here -----------------------------------------------------------------------------------

    def _ask(self, what: Callable[[], Any], then: Callable[[Any, float], None], now: float) -> None:
        self._job = _Job(self._pool.submit(what), then, now)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Take the answer that has come, if one has."""
        job = self._job
        if job is None:
            return
        if not job.answer.done():
            self._say_away(now - job.since > AWAY_S, "no answer")
            return
        self._job = None
        try:
            found = job.answer.result()
        except (httpx.HTTPError, RunNotRunningException) as error:
            self._failures += 1
            self._next = now + min(EVERY_S * 2.0**self._failures, LONGEST_S)
            self._say_away(True, str(error) or type(error).__name__)
            return
        self._failures = 0
        if self._away:
            self._away = False
            _log.info("the SuperLink answers again")
        job.then(found, now)

    def _say_away(self, away: bool, what: str) -> None:
        if away and not self._away:
            self._away = True
            rest = "nodes without a session are invited when it is back, the others go on"
            _log.warning("the SuperLink is away (%s): %s", what, rest)

    def _seen(self, found: tuple[list[Message], list[NodeInfo]], now: float) -> None:
        """Take the replies, and invite who is online and has no session."""
        replies, infos = found
        self._take_replies(replies, now)
        wanted = {}
        for info in infos:
            node = self._nodes.get(info.public_key.hex())
            if node is None:
                self._say_unknown(info.node_id, info.public_key)
            elif info.status == "online" and self._may_ask(node.id, now):
                wanted[info.node_id] = node
        if wanted:
            self._invite(wanted, now)

    def _look_up(self) -> None:
        """Look at who is registered; who is no more is not waited for, nor asked again."""
        nodes = self._registry()
        if nodes is not self._nodes:
            self._nodes = nodes
            self._names = {node.id: node.name for node in nodes.values()}
            for node in self._asked.keys() - self._names.keys():
                del self._asked[node]
            self._said = {node: said for node, said in self._said.items() if node in self._names}

    def _look(self, joined: frozenset[str]) -> None:
        """Note who has a session, and who has lost it: then the invitation is used up."""
        for node in joined:
            self._refusals.pop(node, None)
            self._told.pop(node, None)
            self._failed.pop(node, None)
            if node in self._asked:
                self._asked[node] = self._asked[node]._replace(at=-math.inf)
        for node in (self._joined - joined) & self._asked.keys():  # it has not answered
            self._pause.pop(node, None)
        self._joined = joined

    def _may_ask(self, node: str, now: float) -> bool:
        if node in self._joined:
            return False
        if node in self._asked and now - self._asked[node].at < PATIENCE_S:
            return False
        return now >= self._pause.get(node, float("-inf"))

    def _invite(self, found: Mapping[int, Node], now: float) -> None:
        tickets = self.core.tickets(
            [(node.id, node.tls_fingerprint) for node in found.values()], LEASE_S
        )
        self._note_busy()
        wanted = {}
        for node_id, node in found.items():
            if node.id in self._busy and node.id in self._asked:  # its invitation waits for it
                self._asked[node.id] = self._asked[node.id]._replace(at=now)
            else:
                wanted[node_id] = node
        if not wanted:
            return
        messages = [
            self._message(node_id, node, tickets[node.id]) for node_id, node in wanted.items()
        ]
        nodes = list(wanted.values())
        self._ask(lambda: self._push(messages), lambda ids, at: self._sent(nodes, ids, at), now)

    def _note_busy(self) -> None:
        """Note who has a session of another run, and say it when that changes."""
        elsewhere = self.core.elsewhere
        busy = {node: run for node in self._names if (run := elsewhere.get(node))}
        for run in sorted({*busy.values()} - {*self._busy.values()}):
            names = ", ".join(sorted(self._names[node] for node, of in busy.items() if of == run))
            _log.warning("%s: busy in run %s; they come when that is over", names, run)
        self._busy = busy

    def _sent(self, nodes: Sequence[Node], ids: Sequence[str], now: float) -> None:
        for place, node in enumerate(nodes):
            # Flower gives None for a message that it did not take, or no list at all.
            message_id = ids[place] if place < len(ids) else None
            if message_id:
                self._asked[node.id] = _Asked(message_id, now)
            else:
                _log.warning("node %s: Flower did not take its invitation", self._name(node.id))
                self._pause[node.id] = now + PATIENCE_S

    def _message(self, node_id: int, node: Node, ticket: bytes) -> Message:
        invite = ConfigRecord(
            {
                "run": self.core.run,
                "gateway": self.core.gateway,
                "ca-sha256": self.core.ca.hex(),
                "ticket": ticket,
                "lease": LEASE_S,
            }
        )
        content = RecordDict({"config": ConfigRecord(dict(self._config)), RECORD: invite})
        # A session may begin late and ends between attempts: its answer must not be too late.
        return Message(content, dst_node_id=node_id, message_type="train", ttl=2.0 * LEASE_S)

    def _take_replies(self, replies: Iterable[Message], now: float) -> None:
        """Take the answers of sessions that ended.

        An error is named by the node that was asked: who sent it is not in the reply, for Flower
        makes errors in the name of its own node 1.
        """
        asked = {message_id: node for node, (message_id, _) in self._asked.items()}
        for reply in replies:
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is None:
                continue
            since = self._asked.pop(node).at
            soon = now - since < PATIENCE_S
            self._refusals[node] = self._refusals.get(node, 0) + 1 if soon else 0
            pause = AGAIN_S * 2.0 ** max(self._refusals[node] - 1, 0)
            longest = LIMITED_S if _code(reply) == pb.REASON_LIMITS else LONGEST_S
            self._pause[node] = now + min(pause, longest)
            if said := _said(reply):
                self._failed[node] = self._failed.get(node, 0) + 1
                self._said[node] = f"{self._names.get(node, node[:8])} {said}"
                _log.warning("node %s: %s", self._name(node), said)
                if not _is_gone(reply):  # Flower's word: what the node said before counts
                    self._tell(node, _recorded(reply))

    def _tell(self, node: str, code: str) -> None:
        """Let the record say what a node answered, once for as long as it answers the same."""
        if self._told.get(node) != code:
            self._told[node] = code
            self.declined.append((node, code))

    def _name(self, node: str) -> str:
        return f"{self._names.get(node, 'removed')} ({node[:8]})"

    def _say_unknown(self, node_id: int, key: bytes) -> None:
        if key.hex() not in self.unknown:
            self.unknown.add(key.hex())
            _log.warning(
                "Flower node %d (key SHA-256 %s...) is in no enrolment of this federation",
                node_id,
                sha256(key).hexdigest()[:16],  # a PEM text: its beginning is everybody's
            )


def _recorded(reply: Message) -> str:
    """Return an answer as a run's record has it: Flower's error, a reason, or `NO_SESSION`."""
    if reply.has_error():
        return f"CLIENTAPP {reply.error.code}"
    code = _code(reply)
    return NO_SESSION if code is None else pb.Reason.Name(code)


def _is_gone(reply: Message) -> bool:
    """Tell whether Flower answers in a node's place, because it went offline."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


def _said(reply: Message) -> str:
    """Return what is to be said about an answer; nothing of an ordinary end."""
    if _is_gone(reply):
        return "went offline before it answered"
    if reply.has_error():
        return f"its ClientApp failed, code {reply.error.code}"
    code = _code(reply)
    if code is None:
        return "answered its invitation without a session: it runs no Umbel ClientApp"
    return "" if code == pb.REASON_GOODBYE else f"left: {reason_text(code)}"


def _code(reply: Message) -> pb.Reason | None:
    """Return the code of a session's end; None where the answer is another."""
    record = None if reply.has_error() else reply.content.get(ANSWER)
    code = record.get("code") if isinstance(record, ConfigRecord) else None
    if type(code) is not int or code not in pb.Reason.values():
        return None
    return cast("pb.Reason", code)
