"""A device's line to its gateway: one channel, and the `Session` stream kept up on it.

The channel trusts the pinned root and nothing else, shows the node's own TLS leaf, and is dialled
at the address in device.toml, whose name the gateway's certificate must bear.

A stream that breaks is opened again with `resume`: what the other side has not acknowledged is sent
again and counts once (protocol/replay.py). The line is over when the gateway ends it for good (a
goodbye, or a status that no retry can change), when it has been down for the whole lease, or when
it is closed.

A background thread keeps the stream; what arrives goes to `deliver`, in order, each once.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from .clock import skew
from ..protocol import messages_pb2 as pb
from ..protocol import wire
from ..protocol.errors import PeerError
from ..protocol.replay import Inbox, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from .device_files import TlsFiles

SERVICE = "/umbel.v1.Gateway"
GOODBYE = pb.ToClient(goodbye=pb.Goodbye()).SerializeToString()
BEAT_S = 4.0
"""After this something is sent, if only that this device lives: the gateway waits 10 s for it."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
"""Pause before the first new try, doubled up to the longest, each with a random half added."""
FOR_GOOD = {
    grpc.StatusCode.UNAUTHENTICATED: pb.REASON_CERTIFICATE,
    grpc.StatusCode.PERMISSION_DENIED: pb.REASON_UNSPECIFIED,  # the ticket, or the run is over
    grpc.StatusCode.ABORTED: pb.REASON_NEW_PROCESS,  # a newer connection of this node took over
    grpc.StatusCode.FAILED_PRECONDITION: pb.REASON_UNSPECIFIED,  # no session to resume
    grpc.StatusCode.NOT_FOUND: pb.REASON_UNSPECIFIED,
    grpc.StatusCode.INVALID_ARGUMENT: pb.REASON_UNSPECIFIED,
    grpc.StatusCode.UNIMPLEMENTED: pb.REASON_UNSPECIFIED,
}
"""Statuses that the same call would get again, and the code that they mean for the session."""
NOT_NOW = "CERTIFICATE_VERIFY_FAILED: certificate "
"""What gRPC says of a gateway's leaf that `is not yet valid` or `has expired` by this clock."""
OPTIONS = (
    # The gateway says something every 4 s: only where that does not come this device asks.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 8_000),  # gRPC 1.85 goes by this one, of any ping
    # No ping while a model comes: its answer would stand behind it on a slow line.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 << 20),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # for one try: TLS over a satellite takes seconds
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


def dial(address: str, files: TlsFiles) -> grpc.Channel:
    """Return a channel to the gateway; nothing is sent before the first call."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.root, private_key=files.key, certificate_chain=files.chain
    )
    return grpc.secure_channel(address, credentials, OPTIONS)


@dataclass(frozen=True, slots=True)
class Over:
    """Why a line ended: a code, and words for the device's own log."""

    reason: pb.Reason
    detail: str
    anew: bool = False
    """The session is gone at the gateway: another one may be begun with the same ticket."""


class Line:
    """One session's stream; `send` may be called from any thread."""

    def __init__(
        self,
        channel: grpc.Channel,
        hello: pb.Hello,
        *,
        deliver: Callable[[bytes | pb.Trust | Over], None],
        served: Callable[[bool], None],
        lease: float,
        log: Callable[[str], None],
        clock: Callable[[], datetime],
        evidence: Callable[[], str],
    ) -> None:
        """Open nothing yet.

        Args:
            channel: From `dial`.
            hello: Run, ticket and signing certificate; `resume` is set here.
            deliver: Takes each new message, each `Trust`, and once, at the end, an `Over`; it may
                block.
            served: Hears whether a server is there: at every message, and when the stream breaks.
            lease: Seconds that the line may be down.
            log: The device's own console.
            clock: The device's own, for a line about it only.
            evidence: What the gateway's certificate shows of that clock; asked when one of the two
                does not pass.
        """
        self._call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"{SERVICE}/Session"
        )
        self._hello, self._deliver, self._log = hello, deliver, log
        self._lease, self._served = lease, served
        self._clock, self._evidence = clock, evidence
        self._inbox, self._outbox = Inbox("gateway"), Outbox("gateway")
        self._lock = threading.Lock()
        self._out: queue.SimpleQueue[bytes | None] | None = None
        self._closed = threading.Event()
        self._stream: grpc.Call | None = None
        self._seen = time.monotonic()
        self._dismissed = False
        self._waited, self._cause, self._skew, self._warned = FIRST_WAIT_S, "", "", False
        self._theirs = 0, 0.0
        """Seconds since 1970 that the gateway said, and when, by monotonic seconds."""
        self._random = random.Random()  # noqa: S311 - not a secret, and not the app's own
        self._thread = threading.Thread(target=self._run, name="umbel-session", daemon=True)
        self.bytes_up = 0
        self.bytes_down = 0
        self.epoch = 0
        """Number of this node's connection, by the gateway's count; 0 before the first."""

    def open(self) -> None:
        """Start to connect, in the background."""
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Send a message, now or when the line is up again.

        Raises:
            PeerError: The gateway has not acknowledged for so long that nothing more is kept.
        """
        with self._lock:
            seq = self._outbox.add(message)
            if self._out is not None:
                self._put(pb.Up(seq=seq, ack=self._inbox.ack(), message=message))

    def close(self, wait: float = 2.0) -> None:
        """End the stream after what is on it has left, within `wait` seconds."""
        self._closed.set()
        with self._lock:
            if self._out is not None:
                self._out.put(None)
        if self._thread.is_alive():
            self._thread.join(wait)
        stream = self._stream
        if stream is not None:
            stream.cancel()

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        over = Over(pb.REASON_UNSPECIFIED, "closed")
        while not self._closed.is_set():
            try:
                self._once()
                cause = "the gateway ended the stream"
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                cause = f"{code.name.lower().replace('_', ' ')}: {details}"
                if NOT_NOW in cause:
                    cause = self._clocks() or cause
                if code in FOR_GOOD:
                    anew = code is grpc.StatusCode.FAILED_PRECONDITION and self.epoch > 0
                    over = Over(FOR_GOOD[code], cause, anew)
                    break
            except PeerError as error:
                over = Over(pb.REASON_UNSPECIFIED, str(error))
                break
            if self._dismissed:  # also while the session still computes
                over = Over(pb.REASON_GOODBYE, "goodbye")
                break
            down = time.monotonic() - self._seen
            if down >= self._lease:
                over = Over(pb.REASON_UNSPECIFIED, f"no gateway for {down:.0f} s; last: {cause}")
                break
            self._pause(cause)
        self._deliver(over)

    def _once(self) -> None:
        """Hold one stream until it ends."""
        out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        resume = self.epoch > 0
        self._hello.resume = resume
        first = pb.Up(hello=self._hello, ack=self._inbox.ack() if resume else 0)
        out.put(first.SerializeToString())
        stream = self._call(self._outgoing(out), wait_for_ready=False)
        self._stream = stream
        try:
            for raw in stream:
                self._take(wire.parse_down(raw), len(raw), out)
                self._compare_clocks()
        finally:
            with self._lock:
                if self._out is out:  # it was up
                    self._seen = time.monotonic()
                self._out = None
            out.put(None)  # lets go of the thread that reads it
            self._served(False)

    def _outgoing(self, out: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
        """Yield what is to be sent on one stream, and a sign of life where there is nothing."""
        while True:
            try:
                data = out.get(timeout=BEAT_S)
            except queue.Empty:
                with self._lock:
                    data = pb.Up(ack=self._inbox.ack()).SerializeToString()
            if data is None:
                return
            yield data

    def _take(self, down: pb.Down, size: int, out: queue.SimpleQueue[bytes | None]) -> None:
        self.bytes_down += size
        self._served(not down.deserted)
        with self._lock:
            self._outbox.acked(down.ack)
            if down.HasField("welcome"):
                self._welcome(down, out)
                return
        if down.HasField("trust"):
            self._deliver(down.trust)
            return
        with self._lock:
            if not down.seq or not self._inbox.accept(down.seq, len(down.message)):
                return
            if self._inbox.owes and self._out is not None:
                self._put(pb.Up(ack=self._inbox.ack()))
        self._dismissed = self._dismissed or down.message == GOODBYE
        self._deliver(down.message)

    def _welcome(self, down: pb.Down, out: queue.SimpleQueue[bytes | None]) -> None:
        """Send again what has not arrived, and let new messages follow; the lock is held."""
        self.epoch = down.welcome.epoch
        self._waited, self._cause, self._skew = FIRST_WAIT_S, "", ""
        self._out = out
        self._theirs = down.welcome.time, time.monotonic()
        for seq, message in self._outbox.after(down.ack):
            self._put(pb.Up(seq=seq, ack=self._inbox.ack(), message=message))

    def _compare_clocks(self) -> None:
        """Say so when this device's clock has come to differ from the gateway's."""
        said, at = self._theirs
        passed = int(time.monotonic() - at)
        wrong = skew(said + passed, self._clock()) if said else ""
        if wrong and not self._warned:
            self._log(wrong)
        self._warned = bool(wrong)

    def _put(self, up: pb.Up) -> None:
        """Hand one message to the stream; the lock is held and the stream is up."""
        data = up.SerializeToString()
        self.bytes_up += len(data)
        if self._out is not None:
            self._out.put(data)

    def _clocks(self) -> str:
        """Return the line about two clocks, found once for each time that the line is down."""
        if not self._skew:
            self._skew = self._evidence()
        return self._skew

    def _pause(self, cause: str) -> None:
        """Wait before the next try, longer each time, and say why where it is news."""
        wait = self._waited * (1 + self._random.random() / 2)
        if not self._closed.wait(wait) and cause != self._cause:
            self._log(f"gateway: {cause}; trying again")
            self._cause = cause
        self._waited = min(2 * self._waited, LONGEST_WAIT_S)
