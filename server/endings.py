"""How the gateway ends a stream or a call: a gRPC status with a fixed text, and a line for the log.

The text goes to the peer and says nothing that it does not know; the line stays here, names the
node and what was wrong, and holds no secret either.
"""

from __future__ import annotations

from enum import Enum

from ..protocol.errors import PeerError


class Ending(Enum):
    """How a stream or a call ends: gRPC status and its fixed text."""

    GOODBYE = ("OK", "")
    CERTIFICATE = ("UNAUTHENTICATED", "no certificate of this federation's member")
    REMOVED = ("UNAUTHENTICATED", "this node was removed from the federation")
    EXPIRED = ("UNAUTHENTICATED", "the certificate has expired")
    TICKET = ("PERMISSION_DENIED", "the ticket does not admit this certificate")
    NO_RUN = ("PERMISSION_DENIED", "no such run, or it is over")
    NO_SESSION = ("FAILED_PRECONDITION", "no session of this run with this certificate")
    NOT_RESUMED = ("FAILED_PRECONDITION", "no session to resume; join anew")
    NOT_WANTED = ("NOT_FOUND", "this vector is not wanted")
    NO_MODEL = ("NOT_FOUND", "no such model is published")
    TAKEN_OVER = ("ABORTED", "a newer connection of this node took over")
    UNREAD = ("RESOURCE_EXHAUSTED", "what is sent is not read")
    FULL = ("RESOURCE_EXHAUSTED", "the gateway takes no more sessions")
    MALFORMED = ("INVALID_ARGUMENT", "bytes that are no message of this protocol")
    SILENT = ("UNAVAILABLE", "nothing was heard of this device for too long")
    SHUTDOWN = ("UNAVAILABLE", "the gateway is stopping")


class Turned(PeerError):
    """A call that is turned away: the peer learns the ending, the log this line."""

    def __init__(self, ending: Ending, peer: str, what: str) -> None:
        """Say both."""
        super().__init__(peer, what)
        self.ending = ending
