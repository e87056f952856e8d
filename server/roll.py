"""Who has a session with this run, and which certificates each of them has been sent.

The newest session of a node wins. A certificate travels to a node once a session: a roster names
members by fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .invitation import Joined
from ..protocol.errors import BadCertificate, PeerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ..protocol.verification import Verifier


class Roll(Mapping[str, Joined]):
    """The nodes that are here: by id, hex, in the order of their coming."""

    def __init__(self, verifier: Verifier | None) -> None:
        """Start with nobody; without a verifier it stays so."""
        self._verifier = verifier
        self._nodes: dict[str, Joined] = {}
        self._prints, self._sent = dict[bytes, int](), dict[str, int]()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[str]:
        """Go through their ids."""
        return iter(self._nodes)

    def __getitem__(self, node: str) -> Joined:
        """Return who a node is."""
        return self._nodes[node]

    def enter(self, der: bytes, wall: datetime, version: str = "") -> tuple[str, bool]:
        """Admit the bearer of a member's certificate; return its id and whether it was here.

        Raises:
            BadCertificate: It is no member of this federation.
        """
        joined = self.judged(der, wall)._replace(version=version)
        node = joined.member.id.hex()
        again = node in self._nodes
        self._nodes[node] = joined
        self._sent[node] = 0
        return node, again

    def judged(self, der: bytes, wall: datetime) -> Joined:
        """Return whose certificate this is; BadCertificate where it is no member's."""
        if self._verifier is None:
            raise BadCertificate("this run", "takes no members")
        return Joined(self._verifier.member(der, wall), der)

    def leave(self, node: str) -> None:
        """Note that a node's session ended."""
        self._nodes.pop(node, None)

    def resumed(self, der: bytes, wall: datetime) -> str:
        """Return the id of a node whose broken connection is taken up again.

        Raises:
            BadCertificate: It is no member.
            PeerError: It has no session with this run.
        """
        node = self.judged(der, wall).member.id.hex()
        if node not in self._nodes:
            raise PeerError(node, "has no session to resume; join anew")
        return node

    def knows(self, node: str, fingerprint: bytes) -> bool:
        """Say whether the node has this certificate, and note that it will: one bit a pair."""
        bit = 1 << self._prints.setdefault(fingerprint, len(self._prints))
        sent = self._sent.get(node, 0)
        self._sent[node] = sent | bit
        return bool(sent & bit)
