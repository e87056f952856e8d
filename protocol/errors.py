"""The errors of the platform. Each branch says whose move is next.

UmbelError
├── SettingsError        a flag, file or argument is wrong; the operator edits it
├── StateError           what this machine kept is damaged, locked or full; the operator acts
├── Refused              this device will not go on; its owner's policy or a protocol rule says so
├── PeerError            a peer broke an agreement; drop that peer
│   ├── Malformed            bytes that are no message, or a field outside its limits
│   ├── BadCertificate       no valid membership of this federation
│   │   └── Revoked              one that the federation took back
│   └── BadUpdate            an update that may not touch a sum
└── RoundFailed          a round closed without a result; the model is unchanged; retry
    ├── TooFewMembers        fewer members than the floors or the tolerance allow
    └── VoidRound            the sum came out, and must not be used

A caller catches a branch, never a list. No message holds a secret, and none holds a character
that a terminal would obey: parts of it may come from a peer. So no message is longer than
`LONGEST` characters either, and saying a value never fails, whatever it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import messages_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 1000
"""Characters of a message."""
_VALUE = 240
"""Characters of one value in it."""


class UmbelError(Exception):
    """Base of every error that this package raises on purpose."""

    def __str__(self) -> str:
        """Return the message as one line that steers no terminal, whatever a peer wrote into it."""
        return one_line(_cut(super().__str__(), LONGEST))


class SettingsError(UmbelError):
    """A setting has a key, a type or a value that is not allowed."""

    def __init__(self, where: str, expected: str, got: object, move: str = "") -> None:
        """Name the place (`file:line`, `--flag` or `table.key`), both values and the next move."""
        super().__init__(
            f"{_cut(where)}: expected {expected}, got {said(got, repr)}"
            + (f"; {move}" if move else "")
        )
        self.where = where


class StateError(UmbelError):
    """State on this machine cannot be trusted or written."""

    def __init__(self, where: str, expected: str, got: object, move: str = "") -> None:
        """Name the file or resource, what should be there, what is, and the next move."""
        super().__init__(
            f"{_cut(where)}: expected {expected}, got {said(got)}" + (f"; {move}" if move else "")
        )
        self.where = where


class Refused(UmbelError):
    """This device refuses; the reason travels, the detail stays here."""

    def __init__(self, reason: pb.Reason, detail: str, key: str = "") -> None:
        """`reason` goes to the server, `key` with it for policy; `detail` is for the console."""
        super().__init__(f"{reason_text(reason)}: {detail}")
        self.reason = reason
        self.key = key


class PeerError(UmbelError):
    """A peer sent something that the protocol forbids."""

    def __init__(self, peer: str, what: str, expected: object = None, got: object = None) -> None:
        """Name the peer, the thing that is wrong, what was expected and what came."""
        tail = "" if expected is None else f": expected {said(expected)}, got {said(got)}"
        super().__init__(f"{peer}: {what}{tail}")
        self.peer, self._what = peer, what

    @property
    def record(self) -> str:
        """What a ledger may hold of it."""
        return str(self)


class Malformed(PeerError):
    """Bytes that are no message of this protocol, or a field outside its limits."""


class BadCertificate(PeerError):
    """A certificate that does not make its bearer a member of this federation."""


class Revoked(BadCertificate):
    """The certificate of a node that was removed from the federation."""


class BadUpdate(PeerError):
    """An update that the firewall keeps out of the sum."""

    @property
    def record(self) -> str:
        """What a ledger may hold of it: the values are one client's, and stay out."""
        return one_line(_cut(f"{self.peer}: {self._what}", LONGEST))


class RoundFailed(UmbelError):
    """A round closed without a usable result; the model is unchanged."""


class TooFewMembers(RoundFailed):
    """Fewer members than a floor or the tolerance for losses allows."""


class VoidRound(RoundFailed):
    """A round whose sum was formed but must not be published."""

    def __init__(self, what: str, member: bytes = b"") -> None:
        """Say what is wrong; `member` is the id of the one whose fault it is, where known."""
        super().__init__(what)
        self.member = member


def said(value: object, how: Callable[[object], str] = str) -> str:
    """Return a value as a message says it: cut, and in place of what cannot be said its type."""
    try:
        return _cut(how(value))
    except (RecursionError, ValueError):  # a deep nest, an integer of thousands of digits
        return f"a {type(value).__name__} too large to say"


def _cut(text: str, most: int = _VALUE) -> str:
    """Return a text of at most `most` characters: of a longer one its beginning and its end."""
    if len(text) <= most:
        return text
    return f"{text[: 3 * most // 4]} ... {text[-(most // 4 - 5) :]}"


def one_line(text: str) -> str:
    """Return a text with blanks for white space, and escapes for what cannot be printed."""
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def reason_text(reason: pb.Reason) -> str:
    """Return a code as words: REASON_WOULD_DIFFERENCE is `would difference`."""
    return pb.Reason.Name(reason).removeprefix("REASON_").replace("_", " ").lower()
