"""The sessions of the gateway: who is connected to which run, and what happens when one breaks.

A session belongs to (run, node), never to a stream. It is entered with a ticket that admits the
TLS certificate of the connection, by a signing certificate of the same id. Its streams come one
after another, each with the next epoch; the newest wins, and the older is ended by name.

| happens | then |
|---|---|
| hello, not resumed | a new session; the ServerApp learns `joined`, an earlier one is gone |
| hello, resumed, the session is there | what is unacknowledged is sent again; `joined`, resumed |
| hello, resumed, no such session | refused: join anew |
| hello, not resumed, after a break before which the node was never heard | as resumed |
| the stream breaks | `GRACE` seconds for a resumed one, then `left` |
| nothing comes of a node for `SILENCE` seconds | its stream is ended, as if it had broken |
| the peer does not read, or breaks a rule | ended by name, `left` |
| a certificate's end comes | ended by name, `left` |
| the CA removes the node | ended by name, `left`; it comes in no more |
| the ServerApp's connection closes | `SUCCESSOR` seconds for the next one, then goodbye |
| goodbye | sent, then the stream ends; tickets given before admit nobody |
| the stream breaks before goodbye has arrived | `GRACE` seconds to come back for it |

What a device sent before it had seen anything of the present ServerApp was meant for the one
before, and is dropped: its `ack` says so (`Session.fence`).

Pure: time comes in as monotonic seconds, events go out through `emit`, lines through `say`.
Memory of a session that is idle: its certificate and numbers, about 3 KiB; while messages are
unread at most `replay.MAX_BYTES`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .endings import Ending, Turned
from .streams import Relayed, Session, Stream
from ..protocol import messages_pb2 as pb
from ..protocol import tickets
from ..protocol.errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ..protocol.verification import Member, Peer

GRACE = 3.0
"""Seconds that a broken session waits for its next stream."""
SILENCE = 10.0
"""Seconds without a sign of a node after which its stream counts as broken: it says something every
4 s, and what comes of its vector, or goes of its model, is a sign too. With `GRACE` a device that
died in whatever way has left within 15 s."""
STOOD_STILL = 1.0
"""Seconds between two ticks from which on it was this process that was silent."""
SUCCESSOR = 60.0
"""Seconds that the sessions of a run wait for a ServerApp."""
_ENDED_RUNS = 256
"""Ids of past runs that are remembered, so that a refusal can say `over`."""


class Emit(Protocol):
    """Takes an event for the ServerApp of a run."""

    def __call__(self, run: str, op: str, payload: bytes = b"", **fields: object) -> None:
        """Send it, or drop it when no ServerApp is there."""


class _Run:
    """One run that the core serves."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.sessions: dict[str, Session] = {}
        self.epochs: dict[str, int] = {}
        self.dismissed: set[str] = set()
        self.deserted_at = math.inf
        self.over = False


class Entry(NamedTuple):
    """A hello whose certificates have been verified."""

    hello: pb.Hello
    ack: int
    peer: Peer
    member: Member
    until: float
    time: int = 0
    """Seconds since 1970, which the peer is told."""


class Sessions:
    """All sessions of a gateway."""

    def __init__(
        self, gateway: str, emit: Emit, say: Callable[[str, str], None], limit: int = 2000
    ) -> None:
        """Serve no run yet.

        Args:
            gateway: The name in this gateway's tickets.
            emit: Takes the events.
            say: Takes a kind and a line for the log.
            limit: Most sessions in all.
        """
        self._gateway, self._emit, self._say, self._limit = gateway, emit, say, limit
        self._runs: dict[str, _Run] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_RUNS)
        self._ticked = math.inf
        self._relayed = Relayed()

    # -- runs -------------------------------------------------------------------------------

    def open(self, run: str, key: bytes) -> None:
        """Serve a run with its ticket key, or let its next ServerApp take over."""
        found = self._runs.get(run)
        if found is None or found.over:
            found = self._runs[run] = _Run(key)
        found.deserted_at = math.inf
        for session in found.sessions.values():
            session.fence, session.deserted = session.outbox.sent + 1, False
            self._emit(run, "joined", session.der, **session.joined(resumed=False))

    def desert(self, run: str, now: float) -> None:
        """Note that the ServerApp's connection closed."""
        if run in self._runs:
            self._runs[run].deserted_at = now
            for session in self._runs[run].sessions.values():
                session.deserted = True
            waiting = len(self._runs[run].sessions)
            self._say("run", f"run {run}: its ServerApp left; {waiting} sessions wait for the next")

    def runs(self) -> tuple[str, ...]:
        """Return the runs that are served."""
        return tuple(name for name, run in self._runs.items() if not run.over)

    def of(self, run: str) -> tuple[Session, ...]:
        """Return the sessions of a run, of which some may be leaving."""
        return tuple(self._runs[run].sessions.values()) if run in self._runs else ()

    def count(self) -> int:
        """Return how many sessions there are that were not sent goodbye."""
        runs = self._runs.values()
        return sum(not session.leaving for run in runs for session in run.sessions.values())

    def elsewhere(self, run: str, node: str) -> str:
        """Return another run of which this node has a session, or nothing."""
        for name, other in self._runs.items():
            found = other.sessions.get(node) if name != run and not other.over else None
            if found is not None and not found.leaving:
                return name
        return ""

    def welcome_back(self, run: str, node: str) -> None:
        """Let a node that was sent a goodbye in again: it has a new ticket."""
        self._runs[run].dismissed.discard(node)

    # -- streams ----------------------------------------------------------------------------

    def enter(self, entry: Entry, wake: Callable[[], None], wall: datetime, now: float) -> Stream:
        """Admit the bearer of a ticket and return its stream.

        Raises:
            Turned: With the ending for the peer and the line for the log.
        """
        run = self._admitted(entry, wall)
        self._ticked = min(self._ticked, now)
        name, node = entry.hello.run, entry.peer.id.hex()
        session, resumed = run.sessions.get(node), entry.hello.resume
        if resumed:
            session = self._resumed(session, entry)
        elif session is None and self.count() >= self._limit:
            raise Turned(Ending.FULL, node, f"is one more than {self._limit} sessions")
        else:
            resumed = session is not None and session.silent and _same(session, entry)
        if session is not None and session.stream is not None:
            epoch = session.stream.epoch
            self._say("newest", f"node {node}: a newer connection took over from epoch {epoch}")
            session.stream.end(Ending.TAKEN_OVER)
        if session is None or not resumed:
            session = Session(name, entry.peer, entry.hello, entry.until)
            session.deserted = math.isfinite(run.deserted_at)
            run.sessions[node] = session
        run.epochs[node] = run.epochs.get(node, 0) + 1
        written = entry.ack if entry.hello.resume else 0
        session.stream = Stream(session, run.epochs[node], written, wake, self._relayed, entry.time)
        session.heard, session.broken_at = now, math.inf
        if session.leaving:
            session.stream.end(Ending.GOODBYE)
        else:
            self._emit(name, "joined", session.der, **session.joined(resumed=resumed))
        return session.stream

    def _admitted(self, entry: Entry, wall: datetime) -> _Run:
        name, peer = entry.hello.run, entry.peer
        run, node = self._runs.get(name), peer.id.hex()
        session = run.sessions.get(node) if run is not None else None
        fetches_goodbye = (
            session is not None
            and session.leaving
            and (entry.hello.resume or (_unaware(session) and _same(session, entry)))
        )
        if run is None or (run.over and not fetches_goodbye):
            what = "is over" if name in self._ended else "is not served here"
            raise Turned(Ending.NO_RUN, node, f"asks for run {name!r}, which {what}")
        if entry.member.id != peer.id:
            other = entry.member.id.hex()
            raise Turned(Ending.CERTIFICATE, node, f"brings the signing certificate of {other}")
        try:
            tickets.admit(
                run.key,
                entry.hello.ticket,
                run=name,
                node_id=peer.id,
                tls_fingerprint=peer.fingerprint,
                gateway=self._gateway,
                now=wall,
            )
        except PeerError as error:
            what = str(error).partition(": ")[2]
            raise Turned(Ending.TICKET, node, what) from error
        if node in run.dismissed and not fetches_goodbye:
            raise Turned(Ending.TICKET, node, "replayed a ticket after goodbye")
        return run

    def _resumed(self, session: Session | None, entry: Entry) -> Session:
        node = entry.peer.id.hex()
        if session is None or not _same(session, entry):
            raise Turned(Ending.NOT_RESUMED, node, "resumes a session that is not there")
        try:
            session.outbox.acked(entry.ack)
        except PeerError as error:
            raise Turned(Ending.NOT_RESUMED, node, "resumes another session's numbers") from error
        return session

    def up(self, stream: Stream, up: pb.Up) -> None:
        """Take what came on a stream; a breach ends the session."""
        if stream.ending is not None:
            return
        session = stream.session
        if up.HasField("hello"):
            self.expel(stream, Ending.MALFORMED, f"{session.node}: says hello twice on one stream")
            return
        try:
            session.outbox.acked(up.ack)
            fresh = up.HasField("message") and session.inbox.accept(up.seq, len(up.message))
        except PeerError as error:
            self.expel(stream, Ending.MALFORMED, str(error))
            return
        if fresh and up.ack >= session.fence:
            self._emit(session.run, "message", up.message, node=session.node)
        if session.inbox.owes:
            stream.wake()

    def broken(self, stream: Stream, now: float) -> None:
        """Note that a stream is gone; its session waits a little for the next one."""
        if stream.session.stream is stream:
            stream.session.stream = None
            stream.session.broken_at = now

    def expel(self, stream: Stream, ending: Ending, line: str) -> None:
        """End the session of a stream that broke a rule; an older stream ends alone."""
        if stream.session.stream is stream and self.holds(stream.session):
            self._leave(stream.session, ending, line)
        else:
            stream.end(ending)

    def live(self, run: str, peer: Peer) -> Session:
        """Return the session in whose name a call of `peer` may act.

        Raises:
            Turned: There is none, or it belongs to another certificate.
        """
        node = peer.id.hex()
        if run not in self.runs():
            raise Turned(Ending.NO_RUN, node, f"calls for run {run!r}, which is not served here")
        session = self._runs[run].sessions.get(node)
        if session is None or session.leaving or session.fingerprint != peer.fingerprint:
            raise Turned(Ending.NO_SESSION, node, f"calls for run {run!r} without a session")
        return session

    def holds(self, session: Session) -> bool:
        """Say whether this is still the session of its node."""
        run = self._runs.get(session.run)
        held = run is not None and run.sessions.get(session.node) is session
        return held and not session.leaving

    # -- from the CA ------------------------------------------------------------------------

    def relay(self, trust: pb.Trust) -> None:
        """Tell every node who issues members, and whom it removed, now and after each welcome."""
        self._relayed.trust = trust
        for run in self._runs.values():
            for session in run.sessions.values():
                if session.stream is not None:
                    session.stream.wake()

    def remove(self, node: str) -> None:
        """End every session of a node that is no member any more."""
        for run in self._runs.values():
            if (session := run.sessions.get(node)) is not None:
                self._leave(session, Ending.REMOVED, f"{node}: was removed from the federation")

    # -- from the ServerApp -----------------------------------------------------------------

    def post(self, run: str, node: str, message: bytes) -> None:
        """Send a message to a node; one that has no session has left, and that was said."""
        session = self._runs[run].sessions.get(node)
        if session is None or session.leaving:
            return
        try:
            session.outbox.add(message)
        except PeerError as error:
            self._leave(session, Ending.UNREAD, str(error))
            return
        if session.stream is not None:
            session.stream.wake()

    def goodbye(self, run: str, now: float, node: str | None = None) -> None:
        """Say goodbye to one node, or to all: then the run is over."""
        found = self._runs[run]
        going = [s for s in found.sessions.values() if node in {None, s.node} and not s.leaving]
        data = pb.ToClient(goodbye=pb.Goodbye()).SerializeToString()
        for session in going:
            self.post(run, session.node, data)
            if found.sessions.get(session.node) is session:
                session.leaving = True
                self._emit(run, "left", node=session.node)
                if session.stream is not None:
                    session.stream.end(Ending.GOODBYE)
                else:
                    session.broken_at = now
        if node is not None:
            found.dismissed.add(node)
        else:
            found.over = True
            self._ended.append(run)

    # -- time -------------------------------------------------------------------------------

    def tick(self, now: float) -> list[str]:
        """Let time end what it ends; return the runs that got their goodbye."""
        still, self._ticked = max(now - self._ticked, 0.0), now
        for run in self._runs.values():
            for session in list(run.sessions.values()):
                if still > STOOD_STILL:  # what they said meanwhile has not been read yet
                    session.heard += still
                self._age(session, now)
        over = [run for run in self.runs() if now >= self._runs[run].deserted_at + SUCCESSOR]
        for name in over:
            self._say("run", f"run {name}: no ServerApp came for {SUCCESSOR:.0f} s; goodbye to all")
            self.goodbye(name, now)
        for name in [name for name, run in self._runs.items() if run.over and not run.sessions]:
            del self._runs[name]
        return over

    def _age(self, session: Session, now: float) -> None:
        """Let time end one session, or its stream."""
        stream = session.stream
        if now >= session.until:
            self._leave(session, Ending.EXPIRED, f"{session.node}: a certificate expired")
        elif now >= session.broken_at + GRACE:
            self._leave(session, Ending.NO_SESSION, f"{session.node}: did not come back")
        elif stream is not None and stream.ending is None and now >= session.heard + SILENCE:
            self._say("silent", f"{session.node}: nothing came of it for {SILENCE:.0f} s")
            stream.end(Ending.SILENT)
            self.broken(stream, now)

    def shut_down(self) -> None:
        """End every stream, because this process stops."""
        for run in self._runs.values():
            for session in run.sessions.values():
                if session.stream is not None:
                    session.stream.end(Ending.SHUTDOWN)

    def _leave(self, session: Session, ending: Ending, line: str) -> None:
        """Remove a session, end its stream and tell the ServerApp, unless it was let go."""
        self._runs[session.run].sessions.pop(session.node, None)
        if session.leaving:
            return
        self._say(ending.name.lower(), line)
        if session.stream is not None:
            session.stream.end(ending)
        self._emit(session.run, "left", node=session.node)


def _unaware(session: Session) -> bool:
    """Say whether the node may not know of its session: it broke before it had all been written."""
    return session.silent and session.written < session.outbox.sent


def _same(session: Session, entry: Entry) -> bool:
    """Say whether both certificates are those of the session."""
    given = entry.peer.fingerprint, entry.hello.certificate
    return (session.fingerprint, session.der) == given
