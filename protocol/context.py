"""What every signature and key of a round is bound to: ctx0, the frozen roster, ctx.

ctx0 is SHA-256 over lp of the fields of `Terms` in their order: both sides compute it from
what they hold, so different models, settings or attempts never share a key. ctx adds the
roster, which does not exist before the round keys do; everything from trip 2 on uses ctx.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .canonical import canonical, lp
from .errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROTOCOL = 1
ENTRY_BYTES = 112
ZERO32 = bytes(32)
_ID_BYTES, _HASH_BYTES = 16, 32


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The fields of ctx0, in the order in which they are hashed.

    Attributes:
        protocol: Version of the protocol.
        scheme: `A`, or `plain`.
        ca: SHA-256 of the pinned CA certificate (DER), 32 bytes.
        app: SHA-256 of the app bundle, 32 bytes; zeros outside Flower.
        run: Umbel's run id, which a resumed run keeps; never Flower's.
        round: Number of the round.
        phase: `train` or `evaluate`.
        attempt: Number of the attempt, growing per run and model digest.
        model: Root of the SHA-256 tree over the bytes that the client loads, 32 bytes.
        config: The round's configuration as the client receives it.
        params: The numbers that do not depend on n (alpha, delta, ring bits, clip, ...).
        layout: SHA-256 of the manifest's canonical form, 32 bytes.
    """

    protocol: int = PROTOCOL
    scheme: str
    ca: bytes
    app: bytes
    run: str
    round: int
    phase: str
    attempt: int
    model: bytes
    config: Mapping[str, object]
    params: Mapping[str, object]
    layout: bytes

    def __post_init__(self) -> None:
        """Refuse digests of another length, an unknown phase and negative numbers."""
        for name in ("ca", "app", "model", "layout"):
            _exact(name, getattr(self, name), _HASH_BYTES)
        if self.phase not in {"train", "evaluate"}:
            raise ValueError(f"phase: expected train or evaluate, got {self.phase!r}")
        if min(self.protocol, self.round, self.attempt) < 0:
            raise ValueError("protocol, round and attempt are never negative")

    def ctx0(self) -> bytes:
        """Return the context of trip 1, 32 bytes.

        Raises:
            SettingsError: `config` or `params` has no canonical form.
        """
        fields = (
            b"umbel",
            b"%d" % self.protocol,
            self.scheme.encode(),
            self.ca,
            self.app,
            self.run.encode(),
            b"%d" % self.round,
            self.phase.encode(),
            b"%d" % self.attempt,
            self.model,
            canonical(self.config),
            canonical(self.params),
            self.layout,
        )
        return hashlib.sha256(lp(*fields)).digest()


class RosterEntry(NamedTuple):
    """One member of a frozen roster: id, certificate fingerprint and two round keys."""

    id: bytes
    fingerprint: bytes
    mask_pk: bytes
    seal_pk: bytes

    def pack(self) -> bytes:
        """Return the 112 bytes: id 16, fingerprint 32, mask_pk 32, seal_pk 32.

        Raises:
            ValueError: A field has another length.
        """
        _exact("id", self.id, _ID_BYTES)
        for name in ("fingerprint", "mask_pk", "seal_pk"):
            _exact(name, getattr(self, name), _HASH_BYTES)
        return b"".join(self)

    @classmethod
    def unpack_all(cls, data: bytes, peer: str = "server") -> list[RosterEntry]:
        """Return the entries in `data`, in their order.

        Raises:
            Malformed: The length is no multiple of 112; `peer` is named.
        """
        if len(data) % ENTRY_BYTES:
            raise Malformed(peer, "roster", f"a multiple of {ENTRY_BYTES} bytes", len(data))
        return [
            cls(
                data[at : at + 16],
                data[at + 16 : at + 48],
                data[at + 48 : at + 80],
                data[at + 80 : at + 112],
            )
            for at in range(0, len(data), ENTRY_BYTES)
        ]


def roster_root(entries: Iterable[RosterEntry]) -> bytes:
    """Return SHA-256 over the packed entries in roster order, 32 bytes."""
    return hashlib.sha256(b"".join(entry.pack() for entry in entries)).digest()


def context(ctx0: bytes, roster_root: bytes, committee: bytes = ZERO32) -> bytes:
    """Return ctx, 32 bytes; the committee root is zero in scheme A.

    Raises:
        ValueError: An argument does not have 32 bytes.
    """
    for name, value in (("ctx0", ctx0), ("roster_root", roster_root), ("committee", committee)):
        _exact(name, value, _HASH_BYTES)
    return hashlib.sha256(lp(b"umbel/ctx", ctx0, roster_root, committee)).digest()


def bitmap(positions: Iterable[int], n: int) -> bytes:
    """Return the set as ceil(n/8) bytes: position i in bit i mod 8, lowest first, of byte i/8.

    Raises:
        ValueError: A position lies outside 0 .. n-1.
    """
    bits = bytearray((n + 7) // 8)
    for position in positions:
        if not 0 <= position < n:
            raise ValueError(f"position {position} lies outside a roster of {n}")
        bits[position // 8] |= 1 << position % 8
    return bytes(bits)


def positions(bitmap: bytes, n: int) -> tuple[int, ...]:
    """Return the positions of a bitmap over n members, ascending.

    Raises:
        ValueError: Its length is not ceil(n/8), or a bit at n or above is set: then two
            bitmaps, with two hashes, would mean the same set.
    """
    if len(bitmap) != (n + 7) // 8:
        raise ValueError(f"a bitmap over {n} members has {(n + 7) // 8} bytes, got {len(bitmap)}")
    found = tuple(i for i in range(8 * len(bitmap)) if bitmap[i // 8] >> i % 8 & 1)
    if found and found[-1] >= n:
        raise ValueError(f"bit {found[-1]} is set in a bitmap over {n} members")
    return found


def _exact(name: str, value: bytes, length: int) -> None:
    """Refuse a field of another length."""
    if len(value) != length:
        raise ValueError(f"{name}: expected {length} bytes, got {len(value)}")
