"""Scheme A's server in an attempt that its successor can finish: what it keeps, how it goes on.

    U is fixed -> transcript -> disk -> votes asked for
    disk -> reopen -> Survivors once more -> votes -> releases

A member that still has the secrets of the attempt answers the same questions with the same
bytes (member.py); nothing but the answers is lost with a server. docs/protocol.md, section 7.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import messages_pb2 as pb
from .aggregator import ServerSide
from .errors import Malformed
from .scheme_a import Event
from .transcript import Transcript, without_blobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from .verification import Member


class Reopenable(ServerSide):
    """The server in one attempt, from its first message or from a transcript."""

    def transcript(self, certificate_of: Callable[[bytes], bytes]) -> Transcript:
        """Return what a successor needs once the survivors are fixed.

        Args:
            certificate_of: A member's certificate (DER) by its id.
        """
        members = []
        for entry in self.entries:
            signature = self._gathered[entry.id][2]
            keys = pb.Keys(mask_pk=entry.mask_pk, seal_pk=entry.seal_pk, signature=signature)
            members.append((certificate_of(entry.id), keys))
        return Transcript(
            ctx0=self.ctx0,
            ctx=self.ctx,
            members=tuple(members),
            shares={i: without_blobs(self._shares[i]) for i in self.u2},
            headers={i: self._headers[i] for i in self.u},
        )

    def reopen(
        self, kept: Transcript, member_of: Callable[[bytes], Member]
    ) -> dict[bytes, pb.Survivors]:
        """Take up the attempt of `kept` and return what each survivor gets (trip 3 down).

        Args:
            kept: What an earlier process of this server wrote.
            member_of: Verifies a certificate (DER); raises BadCertificate.

        Raises:
            PeerError: A certificate or key is none any more, or the attempt is not that of
                this server's terms.
            TooFewMembers: As `freeze` and `end_uploads`.
        """
        for der, message in kept.members:
            self.keys(member_of(der), message)
        self.freeze()
        if (self.ctx0, self.ctx) != (kept.ctx0, kept.ctx):
            got = f"{kept.ctx0[:4].hex()}, {kept.ctx[:4].hex()}"
            raise Malformed("transcript", "context", "that of these terms", got)
        dealt = {len(message.blobs) for message in kept.shares.values()}
        if not dealt <= {self._plan().k}:
            raise Malformed("transcript", "shares of a member", self._plan().k, sorted(dealt))
        self.state = self._next(Event.REOPEN)
        self._shares, self._headers = dict(kept.shares), dict(kept.headers)
        self.u2, self._whole = tuple(sorted(kept.shares)), set(kept.headers)
        return self.end_uploads()
