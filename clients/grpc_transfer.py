"""Bulk bytes of one attempt: the `Upload` and `Fetch` calls, resumed after a break.

    upload   metadata umbel-run, umbel-ctx-bin; the gateway's initial metadata `umbel-offset`
             says that a slot is free and from where to send; then raw frames; it answers with
             8 bytes, the little-endian count of what it has
    fetch    FetchRequest{run, digest, offset}, then raw frames from that offset on

Each transfer runs in a thread beside the session, which goes on hearing the gateway: an attempt
that is closed stops its transfer. What is sent again comes from the one buffer that the session
keeps, byte for byte.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import TYPE_CHECKING

import grpc

from .grpc_line import FIRST_WAIT_S, FOR_GOOD, LONGEST_WAIT_S, SERVICE
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Malformed, PeerError
from ..protocol.frames import HEADER, Kind, frames
from ..protocol.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .session import Fetch, Upload

OFFSET, RUN, CTX = "umbel-offset", "umbel-run", "umbel-ctx-bin"
_DIGITS = 20
"""Of the largest offset; int() of thousands raises."""
STILL_CLOSED = frozenset({grpc.StatusCode.FAILED_PRECONDITION})
"""No session of this node is open there: after a break the line is resumed first."""


class Carriers:
    """Threads that run transfers, kept for the next: a start costs more than a small transfer."""

    def __init__(self) -> None:
        """Start none yet."""
        self._idle: queue.SimpleQueue[queue.SimpleQueue[Transfer | None]] = queue.SimpleQueue()
        self._closed = threading.Event()

    def carry(self, transfer: Transfer) -> None:
        """Run a transfer in a thread that has nothing to do, or in a new one."""
        try:
            inbox = self._idle.get_nowait()
        except queue.Empty:
            inbox = queue.SimpleQueue()
            name = "umbel-transfer"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put(transfer)

    def close(self) -> None:
        """Let the threads go, those that still run a transfer after it."""
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().put(None)

    def _serve(self, inbox: queue.SimpleQueue[Transfer | None]) -> None:
        while (transfer := inbox.get()) is not None:
            transfer.run()
            del transfer  # its buffer is the session's to free
            self._idle.put(inbox)
            if self._closed.is_set():
                self.close()


class Transfer:
    """One upload or fetch, run by `Carriers`; `stop` ends it for good."""

    def __init__(self, work: Callable[[Transfer], None], start: object, fail: Failed) -> None:
        """Take the work, the terms that it belongs to, and whom to tell when it cannot go on."""
        self.start = start
        self.stopped, self.over = threading.Event(), threading.Event()
        self.bytes = 0
        self._work, self._fail = work, fail
        self._call: grpc.Call | None = None

    def stop(self) -> None:
        """End the transfer; what it still hands over is of no use to anybody."""
        self.stopped.set()
        call = self._call
        if call is not None:
            call.cancel()

    def holds(self, call: grpc.Call) -> None:
        """Note the call that `stop` has to cancel."""
        self._call = call
        if self.stopped.is_set():
            call.cancel()

    def run(self) -> None:
        """Do it, again after each break, until it is done, given up or stopped."""
        try:
            self._run()
        finally:
            self.over.set()

    def _run(self) -> None:
        wait = FIRST_WAIT_S
        while not self.stopped.is_set():
            before = self.bytes
            try:
                self._work(self)
            except grpc.RpcError as error:
                code, words = error.code(), error.details()
                if code in FOR_GOOD and code not in STILL_CLOSED:
                    self._give_up(f"{code.name.lower().replace('_', ' ')}: {words}")
                    return
            except PeerError as error:
                self._give_up(str(error))
                return
            except grpc.FutureCancelledError:  # by `stop`
                return
            else:
                return
            wait = FIRST_WAIT_S if self.bytes > before else min(2 * wait, LONGEST_WAIT_S)
            self.stopped.wait(wait)

    def _give_up(self, why: str) -> None:
        if not self.stopped.is_set():
            self._fail(self, why)


if TYPE_CHECKING:
    Failed = Callable[[Transfer, str], None]


def uploading(
    channel: grpc.Channel, run: str, action: Upload, done: Callable[[Transfer], None]
) -> Callable[[Transfer], None]:
    """Return the work of an upload; `done` hears when the last bytes are on their way.

    Not when the gateway has answered: its next message may overtake its answer.
    """
    method: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"{SERVICE}/Upload")
    metadata, pace = ((RUN, run), (CTX, action.subject)), Pace(time.monotonic)

    def work(transfer: Transfer) -> None:
        granted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        call = method.future(_from(granted, action, transfer, done, pace), metadata=metadata)
        transfer.holds(call)
        try:
            granted.put(_offset(call.initial_metadata(), len(action.buffer)))
        finally:
            granted.put(None)  # lets go of the thread that reads it
        answer = call.result()
        if int.from_bytes(answer, "little") != len(action.buffer):
            raise _Again

    return work


def fetching(
    channel: grpc.Channel, run: str, action: Fetch, take: Callable[[Transfer, bytes], None]
) -> Callable[[Transfer], None]:
    """Return the work of a fetch; `take` gets every frame, in order."""
    method: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"{SERVICE}/Fetch")
    received = 0

    def work(transfer: Transfer) -> None:
        nonlocal received
        request = pb.FetchRequest(run=run, digest=action.digest, offset=received)
        call = method(request.SerializeToString())
        transfer.holds(call)
        for frame in call:
            transfer.bytes += len(frame)
            take(transfer, frame)
            received += max(len(frame) - HEADER, 0)
        if received < action.total:
            raise _Again

    return work


class _Again(grpc.RpcError):
    """The call ended in order, but not everything is there."""

    def code(self) -> grpc.StatusCode:
        """Return a status that is tried again."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return words for a log."""
        return "ended early"


def _from(
    granted: queue.SimpleQueue[int | None],
    action: Upload,
    transfer: Transfer,
    done: Callable[[Transfer], None],
    pace: Pace,
) -> Iterator[bytes]:
    """Yield the frames from the offset that the gateway grants; none when it grants none."""
    offset = granted.get()
    if offset is None:
        return
    left = len(action.buffer) - offset
    if not left:  # the answer to an earlier call was lost
        done(transfer)
    pace.begin()
    for frame in frames(Kind.UPLOAD, action.subject, action.buffer, offset, pace):
        if transfer.stopped.is_set():
            return
        left -= len(frame) - HEADER
        transfer.bytes += len(frame)
        if not left:
            done(transfer)
        yield frame


def _offset(metadata: object, total: int) -> int | None:
    """Return the granted offset; None where the call ended before there was one."""
    for key, value in metadata or ():  # type: ignore[attr-defined]
        if key == OFFSET:
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
            if not number or int(text) > total:
                raise Malformed("gateway", OFFSET, f"0..{total}", text[:32])
            return int(text)
    return None
