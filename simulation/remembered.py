"""Certificates and signatures that many devices of one process check: once each.

A device judges a certificate once a session, and checks each signature once. In one process a
thousand devices judge the same thousand certificates and check the same signatures: a million
times each what is a pure function of its input. Here every device still asks wherever it would
on its own; all ask one `Membership`, and a signature that was good is not computed again for the
same key, signature and bytes. A bad one is computed each time.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..protocol.membership import Membership
from ..protocol.verification import Member, Verifier

if TYPE_CHECKING:
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

Octets = bytes | bytearray | memoryview
LIMIT = 1 << 12
"""Most signatures of one key that are remembered; one signs three a round."""


class Remembered(Ed25519PublicKey):
    """A public key that knows which signatures it has found good."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        """Know none yet."""
        self._key, self._good = key, set[bytes]()

    def verify(self, signature: Octets, data: Octets) -> None:
        """Return if it is the signer's.

        Raises:
            InvalidSignature: It is not.
        """
        asked = sha256(b"".join((len(signature).to_bytes(8, "little"), signature, data))).digest()
        if asked in self._good:
            return
        self._key.verify(signature, data)
        if len(self._good) >= LIMIT:
            self._good.clear()
        self._good.add(asked)

    def public_bytes(
        self,
        encoding: serialization.Encoding,
        format: serialization.PublicFormat,  # noqa: A002 - the library names it
    ) -> bytes:
        """Return the key as the library writes it."""
        return self._key.public_bytes(encoding, format)

    def public_bytes_raw(self) -> bytes:
        """Return the key's 32 bytes."""
        return self._key.public_bytes_raw()

    def __eq__(self, other: object) -> bool:
        """Whether it is the same key."""
        if not isinstance(other, Ed25519PublicKey):
            return NotImplemented
        return self.public_bytes_raw() == other.public_bytes_raw()

    def __hash__(self) -> int:
        """Return a number that equal keys have."""
        return hash(self.public_bytes_raw())

    def __copy__(self) -> Ed25519PublicKey:
        """Return this key."""
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Ed25519PublicKey:
        """Return this key."""
        return self


class _Verifier(Verifier):
    """A verifier whose members' keys remember."""

    def __init__(self, root: x509.Certificate, federation: str) -> None:
        """Pin the root."""
        super().__init__(root, federation)
        self._members: dict[bytes, Member] = {}

    def member(self, der: bytes, now: datetime, claimed: bytes | None = None) -> Member:
        """Return the member whose signing certificate `der` is, as `Verifier.member`."""
        found = super().member(der, now, claimed)
        known = self._members.get(found.fingerprint)
        if known is None:
            known = self._members[found.fingerprint] = replace(
                found, public=Remembered(found.public)
            )
        return known


class SharedMembership(Membership):
    """What all devices of one process verify members by."""

    def __init__(self, root: x509.Certificate, federation: str) -> None:
        """Know no list yet."""
        super().__init__(root, federation)
        self.verifier = _Verifier(root, federation)
