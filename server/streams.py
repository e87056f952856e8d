"""One node's session in a run, and the stream that carries it: what is written, and in what order.

Both are plain state: sessions.py says who may enter and what time ends, grpc_gateway.py writes what
`outgoing` and `beat` give. Memory of an idle session: its certificate and numbers, about 3 KiB.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..protocol import messages_pb2 as pb
from ..protocol.replay import Inbox, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .endings import Ending
    from ..protocol.verification import Peer


class Relayed:
    """What every stream of a gateway says of the CA; it comes from there, and is only passed on."""

    def __init__(self) -> None:
        """Have nothing to pass on."""
        self.trust: pb.Trust | None = None


class Stream:
    """One connection of a session; the gateway writes what `outgoing` gives after each `wake`."""

    def __init__(
        self,
        session: Session,
        epoch: int,
        written: int,
        wake: Callable[[], None],
        relayed: Relayed,
        time: int = 0,
    ) -> None:
        """Continue after the message numbered `written`; `time` is what the peer is told."""
        self.session = session
        self._relayed = relayed
        self._told: pb.Trust | None = None
        self.epoch = epoch
        self.ending: Ending | None = None
        self.wake = wake
        self._time = time
        self._written = written
        self._welcomed = False

    def outgoing(self) -> Iterator[bytes]:
        """Yield the messages that are to be written now: `welcome`, who is trusted, the rest."""
        session = self.session
        if not self._welcomed:
            self._welcomed = True
            yield self._down(welcome=pb.Welcome(epoch=self.epoch, time=self._time))
        if self._told is not self._relayed.trust:
            self._told = self._relayed.trust
            yield self._down(trust=self._told)
        for seq, message in session.outbox.after(self._written):
            self._written = session.written = seq
            yield self._down(seq=seq, message=message)
        if session.inbox.owes:
            yield self.beat()

    def beat(self) -> bytes:
        """Return a message that only says that this side lives."""
        return self._down()

    def _down(self, **content: Any) -> bytes:
        session = self.session
        down = pb.Down(ack=session.inbox.ack(), deserted=session.deserted, **content)
        return down.SerializeToString()

    def end(self, ending: Ending) -> None:
        """End it, once; messages that are not written yet go out before a goodbye only."""
        if self.ending is None:
            self.ending = ending
            self.wake()


class Session:
    """One node in one run."""

    def __init__(self, run: str, peer: Peer, hello: pb.Hello, until: float) -> None:
        """Begin one; `until` is when the first of its certificates ends."""
        self.run, self.version = run, hello.version
        self.node = peer.id.hex()
        self.fingerprint = peer.fingerprint
        self.der = hello.certificate
        self.until = until
        self.outbox, self.inbox = Outbox(self.node), Inbox(self.node)
        self.stream: Stream | None = None
        self.broken_at = math.inf
        self.heard = 0.0
        """When there was a sign of the node; infinity while this process does not listen."""
        self.deserted = False
        """Whether its run has no ServerApp."""
        self.written = 0
        """Number of the newest message that was handed to a stream."""
        self.leaving = False
        """Whether it was sent goodbye: it may come back for that, and for nothing else."""
        self.fence = 0
        """Number of the first message by the present ServerApp."""

    def joined(self, *, resumed: bool) -> dict[str, object]:
        """Return what a ServerApp is told of it, beside the certificate."""
        return {"node": self.node, "resumed": resumed, "version": self.version}

    @property
    def silent(self) -> bool:
        """Say whether its only stream broke before the node was heard, or had got anything.

        The node may not even know that it had a session; all that was sent is kept.
        """
        untouched = self.inbox.received == 0 and self.outbox.kept == self.outbox.sent
        return self.stream is None and untouched
