"""The scheme `plain`: the same code and message as scheme A, with the masks off.

An update is signed by its sender over the attempt's ctx0 and the SHA-256 of the message, under
the label `plain`, so that nobody else's bytes can be counted for it. It hides nothing from the
server. docs/protocol.md, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import keys
from . import messages_pb2 as pb
from .errors import PeerError

if TYPE_CHECKING:
    from .standpoint import Identity
    from .verification import Member

NAME = "plain"
_NO_U2 = bytes(32)


def header(own: Identity, ctx0: bytes, y_hash: bytes) -> pb.MaskedHeader:
    """Return the signed header of one's own update."""
    signature = keys.sign(own.signing, NAME, ctx0, own.id, y_hash)
    return pb.MaskedHeader(u2_hash=_NO_U2, y_hash=y_hash, signature=signature)


def check(member: Member, ctx0: bytes, got: pb.MaskedHeader) -> None:
    """Refuse a header that this member did not sign for this attempt.

    Raises:
        PeerError: Names the member.
    """
    if not keys.verify(member.public, got.signature, NAME, ctx0, member.id, got.y_hash):
        raise PeerError(member.id.hex(), "its update is not signed for this round")
