"""Rebuilding what the server may know: self masks of survivors, pair masks of the lost.

For every owner in U the t seed shares give b, checked against its commitment; for every
owner in U2 and not in U the t mask-key shares give its mask key, checked against the key
it advertised. All owners of a kind are combined in one array expression (shamir.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import graph, keys, shamir
from .entropy import wipe
from .errors import VoidRound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .context import RosterEntry


class Material(NamedTuple):
    """The public material of one attempt that the rebuilt secrets are checked against."""

    ctx: bytes
    entries: Sequence[RosterEntry]
    numbers: graph.Parameters
    u2: frozenset[int]
    u: frozenset[int]
    commitments: Mapping[int, bytes]


def streams(
    material: Material, usable: Mapping[int, Sequence[tuple[int, bytes]]]
) -> list[tuple[bytearray, int]]:
    """Return (stream key, sign) for every mask that the folded sum still carries.

    Args:
        material: Roster, U2, U, and what the owners committed to.
        usable: Per owner in U2 the shares (x, share of 32 bytes) that passed their hash: of
            the seed for an owner in U, of the mask key for one that was lost.

    Raises:
        VoidRound: Fewer than t shares for an owner, or a rebuilt secret that does not match.
    """
    alive = sorted(material.u)
    lost = sorted(material.u2 - material.u)
    needed = [v for v in lost if _survivors_around(material, v)]
    _check_enough(material, usable, [*alive, *needed])
    seeds, keys_of_lost = _combine(material, usable, alive), _combine(material, usable, needed)
    taken: list[tuple[bytearray, int]] = []
    try:
        for owner, seed in zip(alive, seeds, strict=True):
            taken.append(_self_stream(material, owner, seed))
        for owner, secret in zip(needed, keys_of_lost, strict=True):
            taken += _pair_streams(material, owner, secret)
    except VoidRound:
        wipe(*(key for key, _ in taken))
        raise
    finally:
        wipe(*seeds, *keys_of_lost)
    return taken


def _check_enough(
    material: Material,
    usable: Mapping[int, Sequence[tuple[int, bytes]]],
    owners: Sequence[int],
) -> None:
    t = material.numbers.t
    for owner in owners:
        if len(usable[owner]) < t:
            name = material.entries[owner].id.hex()
            # Nobody's fault by itself: shares may be missing because their holders are gone.
            raise VoidRound(f"{len(usable[owner])} good shares of member {name}, {t} are needed")


def _combine(
    material: Material,
    usable: Mapping[int, Sequence[tuple[int, bytes]]],
    owners: Sequence[int],
) -> list[bytearray]:
    t = material.numbers.t
    if not owners:
        return []
    points = np.array([[x for x, _ in usable[o][:t]] for o in owners], dtype=np.uint8)
    raw = b"".join(share for o in owners for _, share in usable[o][:t])
    shares = np.frombuffer(raw, dtype=np.uint8).reshape(len(owners), t, 32)
    secrets = shamir.combine(points, shares)
    apart = [bytearray(row.data) for row in secrets]
    wipe(secrets)
    return apart


def _self_stream(material: Material, owner: int, seed: bytearray) -> tuple[bytearray, int]:
    """Return the stream that a survivor added for itself."""
    own = material.entries[owner].id
    if keys.commitment(material.ctx, own, seed) != material.commitments[owner]:
        raise VoidRound(f"member {own.hex()} dealt shares of another seed than its own", own)
    return keys.self_key(seed, material.ctx, own), -1


def _pair_streams(material: Material, owner: int, secret: bytearray) -> list[tuple[bytearray, int]]:
    """Return the streams that the survivors added or subtracted for a lost member."""
    entry = material.entries[owner]
    pair = keys.KeyPair.from_secret(secret)
    if pair.public != entry.mask_pk:
        raise VoidRound(f"member {entry.id.hex()} dealt shares of another mask key", entry.id)
    taken = []
    for place in _survivors_around(material, owner):
        other = material.entries[place]
        shared = pair.exchange(other.mask_pk)
        # The smaller id added the stream, the larger subtracted it; this takes it off again.
        sign = -1 if other.id < entry.id else 1
        taken.append((keys.pair_key(shared, material.ctx, entry.id, other.id), sign))
        wipe(shared)
    pair.wipe()
    return taken


def _survivors_around(material: Material, place: int) -> list[int]:
    p = material.numbers
    return [v for v in graph.neighbours(place, p.n, p.k) if v in material.u]
