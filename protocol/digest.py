"""The digest of a model: the root of a SHA-256 tree, so that many hands can hash one model.

The tree is the one of RFC 6962, section 2.1. With D the leaves in order and k the largest
power of two below their number n:

    root()     = SHA-256()
    root(d)    = SHA-256(0x00 || d)
    root(D)    = SHA-256(0x01 || root(D[0:k]) || root(D[k:n]))

Leaves are cut at absolute offsets of the manifest layout, so the root does not depend on how
many ranks hashed them. The last leaf may be short.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAF = 1 << 20
"""Bytes of a leaf."""

_LEAF_TAG = b"\x00"
_NODE_TAG = b"\x01"


def model_digest(buffer: bytes | bytearray | memoryview, leaf: int = LEAF) -> bytes:
    """Return the 32-byte root over a buffer in manifest layout; no part of it is copied.

    Args:
        buffer: The bytes, contiguous.
        leaf: Bytes of a leaf, 1 or more. Peers agree on `LEAF`; tests take smaller ones.

    Raises:
        ValueError: `leaf` is below 1.
    """
    return tree_root(leaf_hashes(buffer, leaf))


def leaf_hashes(buffer: bytes | bytearray | memoryview, leaf: int = LEAF) -> list[bytes]:
    """Return the hash of each leaf, in order: what a rank computes for the leaves it owns.

    Raises:
        ValueError: `leaf` is below 1.
    """
    if leaf < 1:
        raise ValueError(f"a leaf has 1 byte or more, got {leaf}")
    view = memoryview(buffer).cast("B")
    hashes = []
    for start in range(0, len(view), leaf):
        digest = hashlib.sha256(_LEAF_TAG)
        digest.update(view[start : start + leaf])
        hashes.append(digest.digest())
    return hashes


def tree_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over leaf hashes, 32 bytes each, in order.

    Full subtrees are joined as they become complete, the smallest on top of the stack; what is
    left at the end is joined from the right, which is where the RFC puts the short side.
    """
    stack: list[tuple[int, bytes]] = []
    for leaf in leaves:
        size, node = 1, leaf
        while stack and stack[-1][0] == size:
            node = _node(stack.pop()[1], node)
            size *= 2
        stack.append((size, node))
    if not stack:
        return hashlib.sha256().digest()
    root = stack.pop()[1]
    while stack:
        root = _node(stack.pop()[1], root)
    return root


def _node(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(_NODE_TAG + left + right).digest()
