"""Shamir's secret sharing over GF(256), vectorised over secrets of many bytes and owners.

Every byte of a secret is the value at 0 of a random polynomial of degree `threshold - 1`;
holder x has its value at x. The field is GF(2)[z] modulo 0x11B, with generator 3; a product
is one gather from a table of 64 KiB.

Not constant-time: a gather by secret bytes can be seen in the cache by other programs of the
same machine. That concerns the client that splits; the server may know what it combines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .entropy import random_bytes, wipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .entropy import Entropy

MAX_COUNT = 254
MIN_THRESHOLD = 2  # with 1, every share is the secret
_POLYNOMIAL = 0x11B
_ORDER = 255  # of the multiplicative group


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8]]:
    """Return exp (512), log (256, log[0] = 0 unused) and the flat product table (65536)."""
    exp = np.zeros(512, np.uint8)
    log = np.zeros(256, np.int64)
    x = 1
    for i in range(_ORDER):
        exp[i] = exp[i + _ORDER] = x
        log[x] = i
        x ^= x << 1
        x ^= _POLYNOMIAL if x & 0x100 else 0
    product = exp[log[:, None] + log[None, :]]
    product[0, :] = product[:, 0] = 0
    return exp, log, product.reshape(-1)


_EXP, _LOG, _PRODUCT = _tables()


def split(
    secret: bytes | bytearray, threshold: int, count: int, *, entropy: Entropy
) -> NDArray[np.uint8]:
    """Split a secret of L bytes into `count` shares, any `threshold` of which give it back.

    Args:
        secret: The bytes to hide, at least one.
        threshold: Shares needed, 2 <= threshold <= count.
        count: Shares to make, at most 254.
        entropy: Source of the (threshold - 1) * L coefficient bytes, filled from the lowest
            coefficient up.

    Returns:
        uint8 array (count, L); row i is the share at x = i + 1. The caller wipes it.

    Raises:
        ValueError: An argument is outside its range.
    """
    if not MIN_THRESHOLD <= threshold <= count <= MAX_COUNT or not secret:
        raise ValueError(
            f"expected {MIN_THRESHOLD} <= threshold <= count <= {MAX_COUNT} and a secret, "
            f"got threshold {threshold}, count {count}, {len(secret)} bytes"
        )
    width = len(secret)
    random = random_bytes((threshold - 1) * width, entropy)
    coefficients = np.frombuffer(random, np.uint8).reshape(threshold - 1, width)
    shares = np.zeros((count, width), np.uint8)
    row = np.arange(1, count + 1, dtype=np.intp)[:, None] * 256
    index = np.empty((count, width), np.intp)
    for coefficient in coefficients[::-1]:  # Horner, from the highest down
        shares ^= coefficient
        np.add(row, shares, out=index)
        np.take(_PRODUCT, index, out=shares, mode="clip")
    shares ^= np.frombuffer(secret, np.uint8)
    wipe(coefficients, index)
    return shares


def weights(points: NDArray[Any], *, highest: int = MAX_COUNT) -> NDArray[np.uint8]:
    """Return the Lagrange weights at 0 of each owner's points.

    lambda_i is the product over j != i of x_j / (x_i + x_j), formed as a sum of logarithms.

    Args:
        points: Integers (owners, t), the x of the t shares used for each owner.
        highest: The largest x that a share of these owners can have.

    Returns:
        uint8 array (owners, t).

    Raises:
        ValueError: The shape is another, or a row has a point twice, zero or above `highest`.
    """
    x = np.asarray(points)
    if x.dtype.kind not in "iu" or x.ndim != 2 or not x.shape[1]:  # noqa: PLR2004
        raise ValueError(f"points: expected integers (owners, t), got {x.dtype} {x.shape}")
    if x.size and not 1 <= int(x.min()) <= int(x.max()) <= highest <= _ORDER:
        raise ValueError(f"points: expected 1 .. {highest}, got {int(x.min())} .. {int(x.max())}")
    if (np.diff(np.sort(x, axis=1), axis=1) == 0).any():
        raise ValueError("points: one owner's shares need distinct x")
    x = x.astype(np.uint8)
    log = _LOG[x]
    exponent = log.sum(axis=1, keepdims=True) - log
    for j in range(x.shape[1]):
        # Where i = j the difference is 0, whose table entry 0 adds nothing.
        exponent -= _LOG[x ^ x[:, j : j + 1]]
    factors: NDArray[np.uint8] = _EXP[exponent % _ORDER]
    return factors


def combine(
    points: NDArray[Any], shares: NDArray[np.uint8], *, highest: int = MAX_COUNT
) -> NDArray[np.uint8]:
    """Return the secrets that exactly t shares of each owner fix.

    A wrong share gives a wrong secret, not an error: the caller checks every share against
    its signed hash before, and the secret against key or commitment after.

    Args:
        points: Integers (owners, t), as in `weights`.
        shares: uint8 (owners, t, L); shares[o, i] is owner o's share at points[o, i].
        highest: As in `weights`.

    Returns:
        uint8 array (owners, L). The caller wipes it.

    Raises:
        ValueError: As `weights`, or `shares` has another shape or dtype.
    """
    factors = weights(points, highest=highest).astype(np.intp) * 256
    if shares.dtype != np.uint8 or shares.shape[:-1] != factors.shape:
        raise ValueError(
            f"shares: expected uint8 ({factors.shape[0]}, {factors.shape[1]}, L), "
            f"got {shares.dtype} {shares.shape}"
        )
    secrets = np.zeros((shares.shape[0], shares.shape[2]), np.uint8)
    index = np.empty(secrets.shape, np.intp)
    for i in range(factors.shape[1]):
        np.add(factors[:, i : i + 1], shares[:, i], out=index)
        secrets ^= _PRODUCT[index]
    wipe(index)
    return secrets
