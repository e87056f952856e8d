"""Shamir over GF(256): vectors, plain-integer arithmetic, and any t shares of any subset."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.entropy import os_entropy
from umbel.protocol.shamir import combine, split, weights

if TYPE_CHECKING:
    from umbel.protocol.entropy import Entropy


def _gives(data: bytes) -> Entropy:
    """Return an entropy that gives exactly these bytes."""

    def fill(buffer: bytearray | memoryview) -> None:
        assert len(buffer) == len(data)
        buffer[:] = data

    return fill


def _times(a: int, b: int) -> int:
    """Multiply in GF(2)[z] modulo 0x11B, bit by bit."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def _inverse(a: int) -> int:
    return next(b for b in range(1, 256) if _times(a, b) == 1)


def _points(*rows: list[int]) -> Any:
    return np.array(rows)


def _hex(array: Any) -> str:
    return str(array.tobytes().hex(" "))


def test_the_oracle_of_this_file() -> None:
    assert _times(0x57, 0x83) == 0xC1  # FIPS 197, section 4.2
    assert _inverse(0x53) == 0xCA
    powers = itertools.accumulate(range(7), lambda x, _: _times(x, 3), initial=1)
    assert bytes(powers).hex(" ") == "01 03 05 0f 11 33 55 ff"


def test_every_product_of_the_field() -> None:
    # With secret 0 and threshold 2 the share at x is coefficient * x: all products, x <= 254.
    shares = split(bytes(256), 2, 254, entropy=_gives(bytes(range(256))))
    expected = [[_times(c, x) for c in range(256)] for x in range(1, 255)]
    assert shares.tolist() == expected


def test_the_vector_of_the_protocol() -> None:
    # Secret 2a, c1 = 11, c2 = 22, threshold 3.
    shares = split(b"\x2a", 3, 5, entropy=_gives(b"\x11\x22"))
    assert _hex(shares) == "19 80 b3 78 4b"
    used = shares[[0, 1, 3]][None]
    assert _hex(combine(_points([1, 2, 4]), used)) == "2a"
    # Moving the origin to 5 predicts the share there: x becomes x + 5, and addition is XOR.
    assert _hex(combine(_points([1 ^ 5, 2 ^ 5, 4 ^ 5]), used)) == "4b"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([1, 2, 3], "01 01 01"),
        ([1, 2, 4], "62 a4 c7"),
        ([3, 7, 200], "4e 25 6a"),
        ([1, 2, 3, 4, 5], "01 d0 d0 d1 d1"),
        ([9], "01"),
    ],
)
def test_weights_of_the_protocol(points: list[int], expected: str) -> None:
    assert _hex(weights(_points(points))) == expected


@given(st.lists(st.integers(1, 254), min_size=1, max_size=12, unique=True))
def test_weights_are_lagrange_in_plain_integers(points: list[int]) -> None:
    expected = []
    for x in points:
        factor = 1
        for other in points:
            if other != x:
                factor = _times(factor, _times(other, _inverse(x ^ other)))
        expected.append(factor)
    assert weights(_points(points)).tolist() == [expected]


@given(
    secret=st.binary(min_size=1, max_size=70),
    sizes=st.integers(2, 254).flatmap(lambda n: st.tuples(st.integers(2, min(n, 40)), st.just(n))),
    order=st.randoms(use_true_random=False),
)
def test_any_t_shares_in_any_order_recover(
    secret: bytes, sizes: tuple[int, int], order: random.Random
) -> None:
    threshold, count = sizes
    shares = split(bytearray(secret), threshold, count, entropy=os_entropy)
    assert shares.shape == (count, len(secret))
    xs = order.sample(range(1, count + 1), threshold)
    used = shares[[x - 1 for x in xs]][None]
    assert combine(_points(xs), used).tobytes() == secret


def test_every_subset_of_a_small_split_recovers() -> None:
    secret = bytes(range(64))
    shares = split(secret, 3, 7, entropy=os_entropy)
    subsets = list(itertools.combinations(range(1, 8), 3))
    used = np.stack([shares[[x - 1 for x in xs]] for xs in subsets])
    assert {row.tobytes() for row in combine(np.array(subsets), used)} == {secret}


def test_the_largest_split_recovers() -> None:
    secret = bytes(range(64))
    shares = split(secret, 254, 254, entropy=os_entropy)
    xs = np.arange(1, 255, dtype=np.uint8)[::-1]
    assert combine(xs[None], shares[::-1][None]).tobytes() == secret


def test_every_owner_has_points_of_its_own() -> None:
    rng = random.Random(1)  # noqa: S311 - a test wants to be repeated
    secrets = [bytes([owner]) * 64 for owner in range(20)]
    xs = [rng.sample(range(1, 33), 22) for _ in secrets]
    used = np.stack(
        [
            split(secret, 22, 32, entropy=os_entropy)[[x - 1 for x in row]]
            for secret, row in zip(secrets, xs, strict=True)
        ]
    )
    assert [row.tobytes() for row in combine(np.array(xs), used)] == secrets
    one_by_one = [combine(np.array([row]), used[i][None]) for i, row in enumerate(xs)]
    assert np.concatenate(one_by_one).tobytes() == b"".join(secrets)


def test_t_minus_one_shares_fit_every_secret() -> None:
    # Threshold 3: for two given shares and each candidate secret, exactly one pair (c1, c2)
    # exists; so among all 65536 pairs every secret is found equally often: once.
    pairs = np.array(list(itertools.product(range(256), repeat=2)), np.uint8)
    shares = split(bytes(65536), 3, 2 + 1, entropy=_gives(pairs.T.tobytes()))
    # With secret 0 the shares at 1 and 2 take every pair of values exactly once; adding a
    # secret s adds s to both, which is again every pair once.
    seen = shares[0].astype(np.int64) * 256 + shares[1]
    assert np.array_equal(np.sort(seen), np.arange(65536))


def test_one_wrong_share_gives_a_wrong_secret() -> None:
    shares = split(b"secret", 3, 5, entropy=os_entropy)
    shares[1, 2] ^= 1
    wrong = combine(_points([1, 2, 3]), shares[None, :3]).tobytes()
    assert [a == b for a, b in zip(wrong, b"secret", strict=True)] == [1, 1, 0, 1, 1, 1]


def test_a_split_keeps_the_secret_and_wipes_its_coefficients() -> None:
    kept: list[bytearray | memoryview] = []

    def remember(buffer: bytearray | memoryview) -> None:
        os_entropy(buffer)
        kept.append(buffer)

    secret = bytearray(b"secret")
    split(secret, 4, 5, entropy=remember)
    assert secret == b"secret"
    assert [bytes(buffer) for buffer in kept] == [bytes(18)]


@pytest.mark.parametrize(
    ("secret", "threshold", "count"),
    [(b"", 2, 3), (b"s", 1, 3), (b"s", 0, 3), (b"s", 4, 3), (b"s", 2, 255), (b"s", -1, -1)],
)
def test_what_cannot_be_split_is_refused(secret: bytes, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="2 <= threshold <= count <= 254 and a secret"):
        split(secret, threshold, count, entropy=os_entropy)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.array([[1, 2, 2]]), "distinct x"),
        (np.array([[1, 2, 3], [7, 1, 7]]), "distinct x"),
        (np.array([[0, 1, 2]]), "expected 1 .. 9, got 0 .. 2"),
        (np.array([[1, 2, 10]]), "expected 1 .. 9, got 1 .. 10"),
        (np.array([[1, 2, 257]]), "expected 1 .. 9"),
        (np.array([[-1, 2, 3]]), "expected 1 .. 9"),
        (np.array([1, 2, 3]), r"expected integers \(owners, t\)"),
        (np.zeros((2, 0), np.int64), r"expected integers \(owners, t\)"),
        (np.array([[1.0, 2.0]]), r"expected integers \(owners, t\)"),
    ],
)
def test_points_are_checked_before_any_arithmetic(points: Any, message: str) -> None:
    shares = np.zeros((*points.shape, 4), np.uint8)
    with pytest.raises(ValueError, match=message):
        combine(points, shares, highest=9)


@pytest.mark.parametrize(
    "shares",
    [
        np.zeros((1, 2, 4), np.uint8),
        np.zeros((2, 3, 4), np.uint8),
        np.zeros((1, 3), np.uint8),
        np.zeros((1, 3, 4), np.int64),
    ],
    ids=lambda shares: f"{shares.dtype}{shares.shape}",
)
def test_shares_of_another_shape_are_refused(shares: Any) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 \(1, 3, L\)"):
        combine(_points([1, 2, 3]), shares)


def test_no_owner_is_no_secret() -> None:
    empty = combine(np.zeros((0, 3), np.int64), np.zeros((0, 3, 64), np.uint8))
    assert empty.shape == (0, 64)
