"""Who is a member, by the newest member list: what a device knows, a gateway and a ServerApp.

    issuing CAs ── verified by the pinned root ──┐
    member list ── signed by one of them, or by a root that signs members ──► revoked ids, epoch

An authentic list revokes for good, also one that has expired or is older than another: a node that
was removed once never comes back under its id. In force is the list of the highest epoch that was
seen, from its issue to its expiry; without one a device joins no secure round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509

from . import messages_pb2 as pb
from .errors import Refused
from .members import MemberList, epoch_of
from .verification import UNREADABLE, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime


class Membership:
    """The verifier of one federation, with the member list that it goes by."""

    def __init__(
        self,
        root: x509.Certificate,
        federation: str,
        issuing: Iterable[x509.Certificate] = (),
        *,
        keep: Callable[[bytes], None] = lambda _raw: None,
    ) -> None:
        """Know no list yet.

        Args:
            root: The pinned root.
            federation: Its federation's name.
            issuing: CAs between it and the members that are known already.
            keep: Called with a list of a higher epoch before it counts; returns when it is durable.
        """
        self._own = tuple(issuing)
        self.verifier = Verifier(root, federation, self._own)
        self.federation = federation
        self.epoch = 0
        """The highest that was seen; 0 before the first."""
        self.list: MemberList | None = None
        """That of `epoch`, in force or expired since; None before the first."""
        self._keep = keep

    def recall(self, raw: bytes, now: datetime) -> None:
        """Take up the list that was kept: its epoch always, the rest where it is still in force.

        Raises:
            Malformed: It is no list.
        """
        self.epoch = max(self.epoch, epoch_of(raw))
        try:
            self.list = self._opened(raw, now)
        except Refused:  # another CA's, or expired: a newer one has to come
            self.list = None

    def learn(self, issuing: Sequence[bytes]) -> None:
        """Know these issuing CAs beside the own ones; none is trusted before the root vouches.

        Args:
            issuing: DER; what is no certificate is passed over.
        """
        self.verifier.issued_by([*self._own, *_readable(issuing)])

    def take(self, raw: bytes, now: datetime) -> bool:
        """Take a list over; return whether it is another than the one in force.

        Raises:
            Refused: `member list`: by no CA of the pinned root, of another federation, older than
                one that was seen, or not in force. The one before stays.
            StateError: It could not be kept; what it revokes is revoked all the same.
        """
        found = self._opened(raw, now)
        if found == self.list:
            return False
        if found.epoch > self.epoch:
            self.epoch = found.epoch
            self.list = found
            self._keep(raw)
        self.list = found
        return True

    def check(self, now: datetime) -> None:
        """Refuse where no list is in force.

        Raises:
            Refused: `member list`, with the cause.
        """
        if self.list is None:
            cause = f"none of this federation has come that is of epoch {self.epoch} or higher"
            raise Refused(pb.REASON_MEMBER_LIST, cause)
        self.list.check(now, self.epoch)

    def revoked(self) -> frozenset[bytes]:
        """Return the ids that are revoked."""
        return self.verifier.revoked

    def _opened(self, raw: bytes, now: datetime) -> MemberList:
        """Return a list that is in force; what an authentic one revokes is revoked before that."""
        found = MemberList.open(raw, self.verifier.issuers(now), self.federation)
        self.verifier.revoke(found.revoked)
        found.check(now, self.epoch)
        return found


def _readable(certificates: Sequence[bytes]) -> list[x509.Certificate]:
    found = []
    for der in certificates:
        try:
            found.append(x509.load_der_x509_certificate(der))
        except UNREADABLE:
            continue
    return found
