"""A retried message counts once: numbering, keeping and dropping on a stream that may break.

Each direction of a session numbers its messages from 1. The sender keeps what the receiver has
not acknowledged and sends it again on the next stream; the receiver takes each number once, in
order. Both ends use the same two objects:

    sender    Outbox    add -> seq,  acked(ack),  after(seq) -> what to send
    receiver  Inbox     accept(seq) -> new or seen before,  ack() -> the highest seq received

An acknowledgement rides on the next message of the other direction; where none is due, `owes`
says when one must travel alone, so that the sender's memory stays small: it keeps at most
`MAX_MESSAGES` messages and `MAX_BYTES` bytes, and a peer that lets it run full is not reading.

No time and no transport in here; the numbers of one session only.
"""

from __future__ import annotations

from collections import deque

from .errors import Malformed, PeerError
from .wire import MAX_MESSAGE

MAX_MESSAGES = 64
"""Messages of one direction that may be unacknowledged."""
MAX_BYTES = 2 * MAX_MESSAGE
"""Their bytes; the largest message always fits an empty outbox."""
OWED_MESSAGES = 8
"""From here on an acknowledgement is sent without waiting for a message to carry it."""
OWED_BYTES = 16 << 10


class Outbox:
    """What was sent and not acknowledged, in order."""

    def __init__(
        self, peer: str, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Keep nothing yet; `peer` is the one who has to acknowledge."""
        self._peer = peer
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._kept: deque[bytes] = deque()
        self.sent = 0
        """Number of the newest message; 0 before the first."""
        self.kept_bytes = 0

    @property
    def kept(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._kept)

    def add(self, message: bytes) -> int:
        """Keep a message and return its number.

        Raises:
            PeerError: The peer has acknowledged too little for one more; nothing was kept.
        """
        size = self.kept_bytes + len(message)
        if self.kept >= self._max_messages or (self._kept and size > self._max_bytes):
            raise PeerError(
                self._peer,
                "does not read what it is sent",
                f"at most {self._max_messages} messages and {self._max_bytes} bytes unread",
                f"{self.kept + 1} and {size}",
            )
        self._kept.append(message)
        self.kept_bytes = size
        self.sent += 1
        return self.sent

    def acked(self, ack: int) -> None:
        """Forget what the peer has received; an older acknowledgement changes nothing.

        Raises:
            Malformed: It acknowledges what was never sent.
        """
        if ack > self.sent:
            raise Malformed(self._peer, "ack", f"at most {self.sent}", ack)
        for _ in range(ack - self.sent + self.kept):
            self.kept_bytes -= len(self._kept.popleft())

    def after(self, seq: int) -> list[tuple[int, bytes]]:
        """Return the kept messages numbered above `seq`, each with its number."""
        first = self.sent - self.kept + 1
        return [
            (first + place, message)
            for place, message in enumerate(self._kept)
            if first + place > seq
        ]


class Inbox:
    """What has been received, as one number."""

    def __init__(self, peer: str) -> None:
        """Expect number 1; `peer` is the one who sends."""
        self._peer = peer
        self.received = 0
        """Highest number received; none is missing below it."""
        self._acked = 0
        self._bytes = 0

    def accept(self, seq: int, size: int) -> bool:
        """Count a message of `size` bytes and say whether it is new.

        Raises:
            Malformed: It leaves a gap, or has no number.
        """
        if not 1 <= seq <= self.received + 1:
            raise Malformed(self._peer, "seq", f"1..{self.received + 1}", seq)
        if seq <= self.received:
            return False
        self.received = seq
        self._bytes += size
        return True

    @property
    def owes(self) -> bool:
        """Say whether the acknowledgement should not wait for a message to carry it."""
        return self.received - self._acked >= OWED_MESSAGES or self._bytes >= OWED_BYTES

    def ack(self) -> int:
        """Return the number to acknowledge; it counts as sent."""
        self._acked, self._bytes = self.received, 0
        return self.received
