"""Who the other members are, for one session: the certificates that came, and the member list.

A roster names members by fingerprint; each certificate travels once a session. A node that the
member list has revoked is no member, wherever its certificate came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol import messages_pb2 as pb
from ..protocol.errors import BadCertificate, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from ..protocol.membership import Membership
    from ..protocol.verification import Member


class Others:
    """The other members of a session's rounds."""

    def __init__(self, membership: Membership, clock: Callable[[], datetime]) -> None:
        """Know no certificate yet; `clock` is the device's wall time."""
        self._membership, self._clock = membership, clock
        self._certificates: dict[bytes, bytes] = {}

    def trust(self, trust: pb.Trust) -> None:
        """Take over who decides about members, and the list of those who were removed.

        Raises:
            Refused: `member list`: the list is none to go by, and the one before stays.
            SettingsError, StateError: It could not be kept.
        """
        self._membership.learn(trust.issuing)
        if trust.members:
            self._membership.take(trust.members, self._clock())

    def listed(self) -> None:
        """Refuse, as `member list`, while no list is in force."""
        self._membership.check(self._clock())

    def learn(self, certificates: Iterable[bytes]) -> None:
        """Keep every good certificate: the gateway sends each once, also beside a bad one.

        Raises:
            Refused: `certificate`: one of them makes nobody a member.
        """
        bad: BadCertificate | None = None
        for der in certificates:
            try:
                member = self._membership.verifier.member(der, self._clock())
            except BadCertificate as error:
                bad = bad or error
            else:
                self._certificates[member.fingerprint] = der
        if bad is not None:
            raise Refused(pb.REASON_CERTIFICATE, str(bad)) from bad

    def resolve(self, fingerprint: bytes) -> Member:
        """Return the member whose certificate has this fingerprint; BadCertificate if none has."""
        der = self._certificates.get(fingerprint)
        if der is None:
            raise BadCertificate("roster", f"no certificate came for {fingerprint[:4].hex()}")
        return self._membership.verifier.member(der, self._clock())

    def forget(self) -> None:
        """Forget the certificates: the next session's gateway sends them again."""
        self._certificates.clear()
