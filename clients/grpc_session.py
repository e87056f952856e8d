"""One device's session over gRPC: what the session decides, carried out.

    line (grpc_line.py)           messages, each once ─┐
    transfers (grpc_transfer.py)  frames, the end     ─┴► one queue ─► Session

The session computes in the caller's thread (training takes minutes there) while the line is kept
up behind it. It ends on goodbye, when the gateway has been away for the lease, when the gateway
ends it for good, or between two attempts: six hours after it began (the Flower message that invited
it lives for twelve), or before its leaves end. A server lets it go a round earlier, and waits.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .clock import gateway_leaf, misfit
from .grpc_line import Line, Over, dial
from .grpc_transfer import Carriers, Transfer, fetching, uploading
from .lease import Lease
from .owner import Owner
from .recorder import Recorder
from .session import Fetch, Send, Session
from .. import __version__
from ..protocol import messages_pb2 as pb
from ..protocol.errors import PeerError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .device_files import DeviceFiles
    from .session import Action, Device, Upload

AWAY_S = 60.0
"""How long the gateway may be away before a session is given up."""
LONGEST_S = 6 * 3600.0
"""After this a session begins no further attempt, whatever an invitation says."""
LEAF_S = 10.0
"""Seconds before the first of its leaves ends from which on a session begins no attempt: the next
one, by the renewed leaves, does."""
WAITING = 16
"""Events that may wait for the session: frames of 1 MiB among them."""
LOOK_S = 0.5
UP, DOWN = 0, 1


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a run says to be joined; none of it is a trust anchor."""

    run: str
    ticket: bytes
    lease: float = LONGEST_S
    """Seconds after which no further attempt is begun."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session came to: this much may travel, `detail` may not."""

    reason: pb.Reason
    rounds: int = 0
    """Rounds in which this device sent a vector; an attempt that is repeated counts once."""
    bytes_up: int = 0
    bytes_down: int = 0
    detail: str = ""


class _Frame(NamedTuple):
    transfer: Transfer
    data: bytes


class _Ended(NamedTuple):
    transfer: Transfer
    why: str
    """Empty where every byte has left."""


Event = bytes | pb.Trust | Over | _Frame | _Ended


class GatewaySession:
    """A session and its line, until it ends."""

    def __init__(self, files: DeviceFiles, device: Device, invitation: Invitation) -> None:
        """Dial the device's own gateway; nothing is sent yet."""
        self._device, self._run = device, invitation.run
        left = (files.ends() - files.clock()).total_seconds() - LEAF_S
        self._lease = min(invitation.lease, LONGEST_S, left)
        self._files = files
        self._channel = dial(files.gateway, files.tls(files.clock()))
        # Bounded by what `_room` holds: a bounded `Queue` costs several thread switches an event.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(WAITING):
            self._room.put(None)
        self._over = threading.Event()
        self._carriers = Carriers()
        self._server = Lease(self._stop_training)
        self._transfer: Transfer | None = None
        self._rounds: set[tuple[int, int]] = set()
        self._moved, self._way = [0, 0], UP
        self._hello = pb.Hello(
            run=invitation.run,
            ticket=invitation.ticket,
            certificate=device.identity.certificate,
            version=__version__,
        )
        self._line = self._new_line()
        self._record = Recorder(
            files.directory, invitation.run, files.gateway, device.app, device.log, self._bytes
        )
        self._session = Session(device, self._record)
        self._owner = Owner(files.directory, self._break_off)

    def serve(self) -> Outcome:
        """Take part until the session ends; returns what came of it and closes everything."""
        over = Over(pb.REASON_UNSPECIFIED, "ended by an error of its own")
        try:
            over = self._until_over()
        except PeerError as error:
            over = Over(pb.REASON_UNSPECIFIED, str(error))
        finally:
            outcome = self._close(over)
        return outcome

    def _until_over(self) -> Over:
        """Do what comes until the session ends."""
        began = time.monotonic()
        self._owner.open()
        self._line.open()
        over: Over | None = None
        while over is None:
            over = self._next()
            old = time.monotonic() - began > self._lease
            if over is not None and over.anew:
                self._join_anew(over)
                over = None
            elif over is None and old and self._session.start is None:
                detail = "the longest life of a session, or its certificates', is over"
                over = Over(pb.REASON_GOODBYE, detail)
            over = over or self._halted() or self._limited()
        return over

    def _halted(self) -> Over | None:
        """Return the end that the owner wants: between two attempts, or at once."""
        halt = self._owner.halt
        if halt is None or not (halt.now or self._session.start is None):
            return None
        self._session.halted = halt.why
        self._act(self._session.leave())
        return Over(pb.REASON_PAUSED, halt.why)

    def _break_off(self, why: str) -> None:
        """Stop what trains: the owner does not want its end."""
        self._session.halted = why
        self._device.update.interrupt(why)

    def _limited(self) -> Over | None:
        """Return the end that the policy's limits want, between two attempts."""
        limits = self._device.limits
        if limits is None:
            return None
        limits.moved(sum(self._bytes()))
        if self._session.start is not None:
            return None
        try:
            limits.look()
        except Refused as error:
            return Over(error.reason, str(error))
        return None

    def _new_line(self) -> Line:
        return Line(
            self._channel,
            self._hello,
            deliver=self._deliver,
            served=self._note_server,
            lease=AWAY_S,
            log=self._say,
            clock=self._files.clock,
            evidence=self._evidence,
        )

    def _evidence(self) -> str:
        """Return what the gateway's certificate shows of this device's clock."""
        leaf = gateway_leaf(self._files.gateway, self._files.root(), self._files.issuing())
        if leaf is None:
            return ""
        return misfit("the gateway's certificate", leaf, self._files.clock())

    def _deliver(self, event: bytes | pb.Trust | Over) -> None:
        """Take what comes on the line; nobody waits for a training whose session is over."""
        if isinstance(event, Over):
            self._device.update.interrupt("the session is over")
        self._post(event)

    def _note_server(self, there: bool) -> None:
        self._record.server(there)
        if there:
            self._server.held()
        else:
            self._server.lost()

    def _stop_training(self) -> None:
        """End what trains: the lease is over."""
        why = f"no server for {self._server.seconds:.0f} s"
        if self._device.update.interrupt(why):
            self._device.log(f"{why}: what trained is stopped; the session waits for the next one")

    def _join_anew(self, over: Over) -> None:
        """Begin another session with the same ticket: the gateway has not kept this one.

        What the device holds of its attempt stays: a server that was lost may still finish it.
        """
        self._device.log(f"gateway: {over.detail}; this device joins anew")
        self._stop_transfer()
        self._moved[UP] += self._line.bytes_up
        self._moved[DOWN] += self._line.bytes_down
        self._line = self._new_line()
        self._line.open()

    # -- events -----------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        """Take an event from another thread; waits while the session computes."""
        while not self._over.is_set():
            try:
                self._room.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            self._events.put(event)
            return

    def _next(self) -> Over | None:
        """Do what the next event asks for; returns how the session ended, if it did."""
        try:
            event = self._events.get(timeout=LOOK_S)
        except queue.Empty:
            return None
        self._room.put(None)
        if isinstance(event, Over):
            return event
        if isinstance(event, pb.Trust):
            self._session.trust(event)
        elif isinstance(event, bytes):
            self._act(self._session.receive(event))
            self._drop_stale()
            if pb.ToClient.FromString(event).HasField("goodbye"):
                return Over(pb.REASON_GOODBYE, "goodbye")
        elif event.transfer is self._transfer:
            self._progress(event)
            self._drop_stale()
        return None

    def _progress(self, event: _Frame | _Ended) -> None:
        """Take a frame, or the end, of the transfer of the open attempt."""
        if isinstance(event, _Frame):
            self._act(self._session.frame(event.data))
        elif event.why:
            self._device.log(f"a transfer was given up: {event.why}")
        else:
            self._session.delivered()

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._line.send(action.data)
            elif isinstance(action, Fetch):
                self._fetch(action)
            else:
                self._upload(action)

    def _fetch(self, action: Fetch) -> None:
        def take(transfer: Transfer, frame: bytes) -> None:
            self._post(_Frame(transfer, frame))

        self._begin(fetching(self._channel, self._run, action, take), DOWN)

    def _upload(self, action: Upload) -> None:
        def done(transfer: Transfer) -> None:
            self._post(_Ended(transfer, ""))

        self._begin(uploading(self._channel, self._run, action, done), UP)
        start = self._session.start
        if start is not None:
            self._rounds.add((start.round, start.phase))

    def _begin(self, work: Callable[[Transfer], None], way: int) -> None:
        """Start a transfer for the open attempt, in place of the one before."""
        self._stop_transfer()
        self._way, start = way, self._session.start
        self._transfer = Transfer(work, start, lambda t, why: self._post(_Ended(t, why)))
        self._carriers.carry(self._transfer)

    def _drop_stale(self) -> None:
        """Stop the transfer of an attempt that is over."""
        if self._transfer is not None and self._transfer.start is not self._session.start:
            self._stop_transfer()

    def _stop_transfer(self) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.stop()
            self._moved[self._way] += transfer.bytes

    def _bytes(self) -> tuple[int, int]:
        """Return the bytes up and down since the session began."""
        moved, transfer = [self._line.bytes_up, self._line.bytes_down], self._transfer
        if transfer is not None:
            moved[self._way] += transfer.bytes
        return moved[UP] + self._moved[UP], moved[DOWN] + self._moved[DOWN]

    def _say(self, line: str) -> None:
        self._device.log(line)
        self._record.word(line)

    def _close(self, over: Over) -> Outcome:
        """Close everything; the last thing to be written down is what came of it."""
        self._over.set()
        self._owner.close()
        self._server.held()
        self._stop_transfer()
        self._carriers.close()
        self._session.close()
        self._line.close()
        self._channel.close()
        moved = self._bytes()
        outcome = Outcome(over.reason, len(self._rounds), *moved, over.detail)
        self._record.over(outcome)
        if (limits := self._device.limits) is not None:
            limits.moved(sum(moved))
            limits.close()
        return outcome
