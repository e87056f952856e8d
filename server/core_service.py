"""The core service: sessions, sums and models of every run, between gateway and ServerApps.

The gateway (grpc_gateway.py) calls it for each thing that a device does, a ServerApp's commands
reach it through core_commands.py. All of it runs in one event loop; nothing in here waits but
for a free slot, and for a ServerApp that reads too slowly.

Back-pressure: a vector's frames are read only when a slot is granted, in the order of asking;
a device's messages only while the ServerApp's unread events are below `HIGH_WATER`. Memory:
slots and accumulator of each open sum, the model of a run and the next one while it is stepped,
its moments, the events that wait.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from .calls import Calls
from .core_view import Watch
from .endings import Ending, Turned
from .served import Download, Served, Upload, not_open
from .sessions import Entry, Sessions
from ..protocol import messages_pb2 as pb
from ..protocol import wire
from ..protocol.errors import PeerError, Revoked

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .core.worlds import AnyWorld
    from .core_view import Seen
    from .served import Outlet
    from .streams import Stream
    from ..protocol.membership import Membership
    from ..protocol.verification import Peer

HIGH_WATER = 8 << 20
"""Bytes of unread events from which on devices' messages wait in their streams."""
JUMP = timedelta(minutes=1)
"""A difference between this machine's clock and what has passed that makes a jump of it."""
PATIENCE = 10.0
"""Seconds for which an upload may wait for its sum to be opened."""
T = TypeVar("T")


class Core:
    """Everything of a core service but its two sockets."""

    def __init__(
        self,
        membership: Membership,
        gateway: str,
        world: AnyWorld,
        *,
        clock: Callable[[], float],
        wall: Callable[[], datetime],
        say: Callable[[str, str], None],
        limit: int = 2000,
    ) -> None:
        """Serve no run yet.

        Args:
            membership: Knows the federation's root.
            gateway: The name in tickets.
            world: Slots.
            clock: Monotonic seconds.
            wall: An aware datetime.
            say: Takes a kind and a line for the log.
            limit: Most sessions.
        """
        self.gateway, self.world = gateway, world
        self.clock, self.wall, self.say = clock, wall, say
        self.served: dict[str, Served] = {}
        self.sessions = Sessions(gateway, self.emit, say, limit)
        self._began = clock(), wall()
        self.forget: Callable[[str], None] = lambda _run: None
        """Called when a run is over: its ticket key is of no use any more."""
        self.watch = Watch()
        """What an operator may see of the nodes."""
        self.calls = Calls()
        """What nodes upload and fetch."""
        self._membership, self._verifier = membership, membership.verifier
        self._trust = pb.Trust()
        self._said: set[str] = set()

    def say_once(self, kind: str, line: str) -> None:
        """Say a line unless it was said before."""
        if line not in self._said:
            self._said.add(line)
            self.say(kind, line)

    @property
    def since(self) -> float:
        """Seconds since this service began."""
        return self.clock() - self._began[0]

    def seen(self, node: str) -> Seen:
        """Return what is kept of a node that was just heard."""
        return self.watch.of(node, self.wall().timestamp())

    def turned(self, error: Turned) -> None:
        """Note that a call was turned away."""
        self.watch.turned(error, self.wall().timestamp())

    def steady(self) -> datetime:
        """Return the time that was at the start, and what has passed since: it never jumps.

        By it tickets are minted and admitted, so that a clock that is set ends no session.
        """
        since, then = self._began
        return then + timedelta(seconds=self.clock() - since)

    def emit(self, run: str, op: str, payload: bytes | memoryview = b"", **fields: object) -> None:
        """Send an event to the run's ServerApp; without one nobody needs it."""
        served = self.served.get(run)
        if served is not None and served.outlet is not None:
            fields["bytes"] = {"up": served.up, "down": served.down}
            served.outlet.send(op, payload, fields)

    # -- what devices do --------------------------------------------------------------------

    def peer(self, certificate: bytes) -> Peer:
        """Return who is at the other end of a call, judged anew."""
        try:
            return self._judged(lambda now: self._verifier.peer(certificate, now))[0]
        except Revoked as error:
            raise Turned(Ending.REMOVED, "a peer", f"was refused: {error}") from error
        except PeerError as error:
            raise Turned(Ending.CERTIFICATE, "a peer", f"was refused: {error}") from error

    def _judged(self, judge: Callable[[datetime], T]) -> tuple[T, datetime]:
        """Judge a certificate by this machine's clock, or by what it was before it jumped.

        Returns:
            What was judged, and the time by which it passed.
        """
        wall = self.wall()
        try:
            return judge(wall), wall
        except PeerError:
            steady = self.steady()
            if abs(wall - steady) < JUMP:
                raise
            return judge(steady), steady

    def enter(self, peer: Peer, data: bytes, wake: Callable[[], None]) -> Stream:
        """Take the first message of a stream and return the stream of a session."""
        node = peer.id.hex()
        try:
            up = wire.parse_up(data, node)
        except PeerError as error:
            raise Turned(Ending.MALFORMED, node, f"said no hello: {error}") from error
        if not up.HasField("hello"):
            raise Turned(Ending.MALFORMED, node, "began its stream without hello")
        der = up.hello.certificate
        try:
            member, now = self._judged(lambda at: self._verifier.member(der, at))
        except PeerError as error:
            raise Turned(Ending.CERTIFICATE, node, f"was refused: {error}") from error
        rest = (min(peer.not_after, member.not_after) - now).total_seconds()
        said = int(self.wall().timestamp())
        entry = Entry(up.hello, up.ack, peer, member, self.clock() + rest, said)
        stream = self.sessions.enter(entry, wake, self.steady(), self.clock())
        self.seen(node).joined += not up.hello.resume
        return stream

    async def up(self, stream: Stream, data: bytes) -> None:
        """Take a message of a stream; return when the ServerApp has room for the next."""
        try:
            up = wire.parse_up(data, stream.session.node)
        except PeerError as error:
            self.sessions.expel(stream, Ending.MALFORMED, str(error))
            return
        served = self.served.get(stream.session.run)
        if served is None:
            return
        served.up += len(up.message)
        self.seen(stream.session.node).up += len(up.message)
        stream.session.heard = self.clock()
        self.sessions.up(stream, up)
        if served.outlet is not None and served.outlet.waiting > HIGH_WATER:
            stream.session.heard = math.inf  # it is we who do not listen
            await served.outlet.room()
            stream.session.heard = self.clock()

    def sent(self, stream: Stream, size: int) -> None:
        """Count bytes that went down a stream."""
        served = self.served.get(stream.session.run)
        if served is not None:
            served.down += size
        if (seen := self.watch.nodes.get(stream.session.node)) is not None:
            seen.down += size  # which is no sign of it

    def broken(self, stream: Stream) -> None:
        """Note that a stream is gone."""
        self.sessions.broken(stream, self.clock())

    async def upload(self, peer: Peer, run: str, ctx: bytes) -> Upload:
        """Return an upload when a slot is granted; that is the back-pressure.

        Raises:
            Turned: No session, no such sum, or the node is not wanted.
        """
        session = self.sessions.live(run, peer)
        served, node = self.served[run], session.node
        earlier = served.waiting.pop(node, None)
        if earlier is not None and not earlier[1].done():
            earlier[1].set_exception(Turned(Ending.TAKEN_OVER, node, "began its upload anew"))
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        served.waiting[node] = ctx, granted
        served.pump(self.clock())

        def too_long() -> None:
            if not granted.done() and (served.sum is None or served.sum.ctx != ctx):
                granted.set_exception(not_open(node))

        timer = asyncio.get_running_loop().call_later(PATIENCE, too_long)
        try:
            offset = await granted
        finally:
            timer.cancel()
            if served.waiting.get(node, (b"", None))[1] is granted:
                del served.waiting[node]
                if served.sum is not None:
                    served.sum.give_up(node)
        if served.sum is None or served.sum.ctx != ctx:
            raise not_open(node)
        upload = Upload(served, session, served.sum, offset)
        served.uploads[node] = upload
        return upload

    def frame(self, upload: Upload, data: bytes) -> bool:
        """Take one frame of an upload and say whether the vector is whole.

        Raises:
            Turned: The frame is wrong, or came after a newer upload, session or sum.
        """
        served, session = upload.served, upload.session
        node, now = session.node, self.clock()
        here = self.served.get(session.run) is served and self.sessions.holds(session)
        if not here or served.uploads.get(node) is not upload:
            raise Turned(Ending.TAKEN_OVER, node, "sent a frame after a newer connection's")
        served.up += len(data)
        self.seen(node).up += len(data)
        session.heard = max(session.heard, now)
        try:
            whole = upload.into.frame(node, data, now)
        finally:
            served.pump(now)  # a bad one leaves a free slot
        upload.received = upload.into.grant(node, now) or 0
        return whole

    def ended(self, upload: Upload) -> None:
        """Note that an upload call is over."""
        if upload.served.uploads.get(upload.session.node) is upload:
            del upload.served.uploads[upload.session.node]

    def model(self, peer: Peer, data: bytes) -> Download:
        """Return the model that is asked for, and from where on.

        Raises:
            Turned: No session, or no such model.
        """
        node = peer.id.hex()
        try:
            request = wire.parse_fetch(data, node)
        except PeerError as error:
            raise Turned(Ending.MALFORMED, node, f"asks for no model: {error}") from error
        session = self.sessions.live(request.run, peer)
        served = self.served[request.run]
        model = served.published(request.digest)
        if model is None or request.offset > len(model):
            raise Turned(Ending.NO_MODEL, node, f"asks for model {request.digest[:4].hex()}")
        return Download(served, session, request.digest, model, request.offset)

    def fetched(self, download: Download, size: int) -> None:
        """Note that a device has taken a frame of a model.

        Raises:
            Turned: The model is not in force any more: nothing keeps it.
        """
        if download.served.published(download.digest) is None:
            what = f"was still fetching model {download.digest[:4].hex()}"
            raise Turned(Ending.NO_MODEL, download.session.node, what)
        download.served.down += size
        self.seen(download.session.node).down += size
        download.session.heard = max(download.session.heard, self.clock())

    # -- what the CA decides ------------------------------------------------------------------

    def trust(self, trust: pb.Trust) -> None:
        """Go by these issuing CAs and this member list; whom it removed is ended, by name.

        Raises:
            Refused: The list is none to go by: the one before is relayed on.
        """
        before, membership = self._membership.revoked(), self._membership
        membership.learn(trust.issuing)
        self._trust.ClearField("issuing")
        self._trust.issuing.extend(trust.issuing)
        try:
            if trust.members and membership.take(trust.members, self.wall()):
                self._trust.members = trust.members
                epoch, gone = membership.epoch, len(membership.revoked())
                self.say("members", f"member list of epoch {epoch}: {gone} removed")
        finally:
            for node in sorted(membership.revoked() - before):
                self._remove(node.hex())
            self._relay()

    def trusted(self, run: str) -> None:
        """Tell a run's ServerApp who issues members, and whom it removed."""
        self.emit(run, "trust", self._trust.SerializeToString())

    def _relay(self) -> None:
        relayed = pb.Trust()
        relayed.CopyFrom(self._trust)
        self.sessions.relay(relayed)
        for run in self.served:
            self.trusted(run)

    def _remove(self, node: str) -> None:
        """End whatever a node has here."""
        self.sessions.remove(node)
        self.calls.end(node, Turned(Ending.REMOVED, node, "was removed from the federation"))

    # -- runs and time ----------------------------------------------------------------------

    def open(self, run: str, key: bytes, outlet: Outlet) -> Served:
        """Serve a run; a ServerApp that had it before is let go."""
        served = self.served.setdefault(run, Served(key))
        if served.outlet is not None:
            self.say("run", f"run {run}: a new ServerApp took over")
            served.outlet.close()
        self.close_sum(served)
        served.outlet, served.up, served.down = outlet, 0, 0
        return served

    def desert(self, run: str, outlet: Outlet) -> None:
        """Note that a ServerApp's connection is closed; its open sum is of no use to another."""
        served = self.served.get(run)
        if served is not None and served.outlet is outlet:
            served.outlet = None
            self.close_sum(served)
            self.sessions.desert(run, self.clock())

    def close_sum(self, served: Served) -> None:
        """Give the slots back; who waits for one is turned away."""
        if served.sum is not None:
            served.past.append(served.sum.ctx)
            served.sum.close()
            served.sum = None
            if served.model is not None:
                served.model.drop_next()  # one that was stepped and not published
            served.pump(self.clock())

    def end_run(self, run: str) -> None:
        """Say goodbye to all, and keep nothing of the run."""
        if run in self.sessions.runs():
            self.sessions.goodbye(run, self.clock())
        served = self.served.pop(run)
        self.close_sum(served)
        served.put(None)
        for node, (_, granted) in served.waiting.items():
            if not granted.done():
                granted.set_exception(not_open(node))
        self.world.rest()
        self.forget(run)

    def tick(self) -> None:
        """Let time end what it ends."""
        now = self.clock()
        for run in self.sessions.tick(now):
            self.end_run(run)
        for served in self.served.values():
            if served.sum is None:
                continue
            if served.sum.due <= now:
                served.sum.tick(now)
            served.pump(now)
            served.sum.say_progress(now)

    def shut_down(self) -> None:
        """End every stream, give the models up: this process stops, and devices may try again."""
        for served in self.served.values():
            served.put(None)
        self.sessions.shut_down()
