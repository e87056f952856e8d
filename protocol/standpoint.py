"""What a member brings to an attempt, and what each of its steps gives (member.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from . import journal, rules
    from . import messages_pb2 as pb
    from .entropy import Entropy
    from .verification import Member


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who a member is: what its certificate says, and the key that proves it."""

    id: bytes
    """16 bytes, the id in the certificate's URI."""
    certificate: bytes
    """DER of the signing certificate."""
    signing: Ed25519PrivateKey = field(repr=False)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate's DER."""
        return sha256(self.certificate).digest()


class Step(NamedTuple):
    """What a step gives: the record to write and fsync first, and the message to send then."""

    record: journal.Record | None
    message: pb.ToServer


@dataclass(frozen=True, kw_only=True, slots=True)
class Standpoint:
    """What a member brings to an attempt beside its identity and the terms."""

    floors: rules.Floors
    """The device's own policy."""
    resolve: Callable[[bytes], Member]
    """Certificate fingerprint to verified member; raises BadCertificate."""
    entropy: Entropy = field(repr=False)
    voted: frozenset[bytes] | None = None
    """Ids of the survivors it already voted for on this model of this run."""
    previous: frozenset[bytes] | None = None
    """Ids of the survivors it voted for last, on whatever model of whatever run."""
