"""The member list: which ids are revoked, signed by the CA that issues members.

Its bytes are `umbel/members/1` and the length-prefixed fields federation, epoch, time of
issue, expiry (numbers in decimal ASCII, times in seconds since 1970) and the revoked ids,
sorted, 16 bytes each; then the length-prefixed ECDSA-SHA256 signature over all that. No
certificate body begins like the label, so neither can be shown as the other.

The server relays it. A device keeps the highest epoch that it has seen, refuses an older one,
and joins no secure round without a list in force: hiding a revocation works until the expiry,
at most seven days, and no longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from . import messages_pb2 as pb
from .canonical import lp
from .certificates import ID_BYTES
from .errors import Malformed, Refused, SettingsError
from .fields import number, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .certificates import Authority

LABEL = b"umbel/members/1"
LIFE = timedelta(days=7)
EARLY = timedelta(days=1)
"""A list may have been issued so long after now, by a clock that is slow: it is signed daily, and
a device whose clock is some hours behind is none the worse for it while its certificates hold."""
MAX_BYTES = 1 << 20  # 65,000 revoked ids

_PEER = "member list"


@dataclass(frozen=True, slots=True)
class MemberList:
    """Which ids of a federation are revoked, from `issued` to `expires` (aware datetimes)."""

    federation: str
    epoch: int
    issued: datetime
    expires: datetime
    revoked: frozenset[bytes] = frozenset()

    def sign(self, authority: Authority) -> bytes:
        """Return the bytes that a device accepts from this authority's federation.

        Raises:
            SettingsError: Another federation, a life that is not allowed, or an id or an epoch
                that is none.
        """
        if self.federation != authority.federation:
            raise SettingsError("member list", authority.federation, self.federation)
        if not timedelta(0) < self.expires - self.issued <= LIFE:
            got = str(self.expires - self.issued)
            raise SettingsError("member list: life", f"more than 0, at most {LIFE}", got)
        if self.epoch < 1 or any(len(item) != ID_BYTES for item in self.revoked):
            raise SettingsError("member list", "an epoch from 1 up and 16-byte ids", self.epoch)
        body = self._body()
        return body + lp(authority.key.sign(body, ec.ECDSA(hashes.SHA256())))

    @classmethod
    def open(
        cls, raw: bytes, issuers: Iterable[ec.EllipticCurvePublicKey], federation: str
    ) -> MemberList:
        """Return a list that one of the issuers has signed for this federation, whenever.

        Args:
            raw: The bytes that `sign` made.
            issuers: Public keys of the CAs that issue members, verified by the pinned root.
            federation: The device's own.

        Raises:
            Refused: `member list`, with the cause.
        """
        try:
            found = cls._parse(raw, issuers)
        except Malformed as error:
            raise Refused(pb.REASON_MEMBER_LIST, str(error)) from error
        if found.federation != federation:
            raise Refused(pb.REASON_MEMBER_LIST, f"of the federation {found.federation!r}")
        if found.expires - found.issued > LIFE:
            raise Refused(pb.REASON_MEMBER_LIST, f"in force for more than {LIFE.days} days")
        return found

    def check(self, now: datetime, newest: int = 0) -> None:
        """Refuse a list that is not in force, or older than one that was seen.

        Args:
            now: An aware datetime.
            newest: The highest epoch that this device has seen.

        Raises:
            Refused: `member list`, with the cause.
        """
        issued, expires = self.issued, self.expires
        for wrong, cause in (
            (self.epoch < newest, f"epoch {self.epoch} is older than {newest}, seen before"),
            (now < issued - EARLY, f"issued on {issued:%F %R} UTC, after today: check the clock"),
            (now >= expires, f"expired on {expires:%F %R} UTC"),
        ):
            if wrong:
                raise Refused(pb.REASON_MEMBER_LIST, cause)

    @classmethod
    def _parse(cls, raw: bytes, issuers: Iterable[ec.EllipticCurvePublicKey]) -> MemberList:
        """Read the fields of bytes that one of the issuers signed."""
        federation, epoch, issued, expires, ids, signature = _fields(raw)
        signed = raw[: -len(lp(signature))]
        if not any(_verifies(issuer, signature, signed) for issuer in issuers):
            raise Malformed(_PEER, "signature is not the issuing CA's")
        if len(ids) % ID_BYTES:
            raise Malformed(_PEER, "revoked ids", f"{ID_BYTES} bytes each", len(ids))
        return cls(
            federation.decode("utf-8", "replace"),
            number(epoch, _PEER),
            _time(number(issued, _PEER)),
            _time(number(expires, _PEER)),
            frozenset(ids[i : i + ID_BYTES] for i in range(0, len(ids), ID_BYTES)),
        )

    def _body(self) -> bytes:
        numbers = (self.epoch, int(self.issued.timestamp()), int(self.expires.timestamp()))
        decimal = (str(value).encode("ascii") for value in numbers)
        return pack(LABEL, self.federation.encode(), *decimal, b"".join(sorted(self.revoked)))


def epoch_of(raw: bytes) -> int:
    """Return the epoch that a list claims: of one that was verified when it was kept.

    Raises:
        Malformed: It is no list.
    """
    return number(_fields(raw)[1], _PEER)


def _fields(raw: bytes) -> list[bytes]:
    if len(raw) > MAX_BYTES:
        raise Malformed(_PEER, "size", f"at most {MAX_BYTES} bytes", len(raw))
    return unpack(LABEL, raw, 6, _PEER)


def _verifies(issuer: ec.EllipticCurvePublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        issuer.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _time(seconds: int) -> datetime:
    """Return the time; the signature came from the CA, so a wild one is the CA's mistake."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise Malformed(_PEER, "time", "seconds since 1970", seconds) from error
