"""Random bytes for secrets, and the zeroing of secrets after use.

Secrets come from the operating system in every mode, simulation included. A function that
needs randomness takes it as `entropy`, without a default: whoever calls it says where secrets
come from, and only tests say anything but `os_entropy`.

Buffers are filled in place and are zeroed in place. That is best effort: Python `bytes`, the
key objects of the cryptography package, OpenSSL's own copies and swap stay out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import StateError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Entropy = Callable[[bytearray | memoryview], None]
"""Fills a writable buffer of any length with uniform bytes."""

SOURCE = "/dev/urandom"


def os_entropy(buffer: bytearray | memoryview) -> None:
    """Fill `buffer` from the operating system's generator.

    The one input in protocol/: `os.urandom` would leave an immutable copy behind, and a
    buffered file would keep one in its buffer.

    Raises:
        StateError: The source cannot be opened, fails or ends early.
    """
    rest = memoryview(buffer).cast("B")
    try:
        with open(SOURCE, "rb", buffering=0) as source:
            while rest:
                filled = source.readinto(rest)
                if not filled:
                    raise StateError(SOURCE, f"{len(rest)} more random bytes", "end of file")
                rest = rest[filled:]
    except OSError as error:
        move = "no secret can be made on this machine until it works"
        raise StateError(SOURCE, "a readable random source", error.strerror, move) from error


def random_bytes(n: int, entropy: Entropy) -> bytearray:
    """Return `n` bytes from `entropy`, in a buffer that `wipe` can zero."""
    buffer = bytearray(n)
    entropy(buffer)
    return buffer


def wipe(*buffers: bytearray | NDArray[Any]) -> None:
    """Zero every buffer in place; its length and shape stay.

    Raises:
        ValueError: An array is read-only, so that its content cannot be wiped.
    """
    for buffer in buffers:
        if isinstance(buffer, bytearray):
            buffer[:] = bytes(len(buffer))
        else:
            buffer.fill(0)
