"""The codec against exact fractions and Python integers."""

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.codec import TILE, Codec, check_sum, headroom
from umbel.protocol.errors import Refused, SettingsError, VoidRound

U_MAX = 2**32 - 1


def reference(codec: Codec, value: float, weight: int, u: int) -> tuple[int, bool]:
    """The rule in exact rationals: y in float64, then floor and compare without rounding."""
    y = codec.q_max / (codec.value_range * codec.weight_cap) * weight * value
    if math.isinf(y):
        return (codec.q_max if y > 0 else -codec.q_max), True
    exact = Fraction(y)
    low = math.floor(exact)
    q = low + (Fraction(u, 2**32) < exact - low)
    clamped = max(-codec.q_max, min(codec.q_max, q))
    return clamped, clamped != q


def encode(
    codec: Codec, values: NDArray[Any], weight: int, rounding: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], int]:
    words = np.full(values.shape, 0xDEADBEEF, np.uint32)
    saturated = codec.encode(values, weight, words, rounding)
    return words, saturated


def same_as_reference(
    codec: Codec, values: NDArray[Any], weight: int, rounding: NDArray[np.uint32]
) -> int:
    words, saturated = encode(codec, values, weight, rounding)
    pairs = zip(values.astype(np.float64).tolist(), rounding.tolist(), strict=True)
    expected = [reference(codec, value, weight, u) for value, u in pairs]
    assert words.tolist() == [q % 2**32 for q, _ in expected]
    assert saturated == sum(clamped for _, clamped in expected)
    return saturated


@pytest.mark.parametrize(
    ("members", "bits"), [(1, 32), (2, 31), (10, 28), (100, 25), (1000, 22), (1024, 22)]
)
def test_bits_of_the_specification(members: int, bits: int) -> None:
    codec = Codec(members, 0.1, 100)
    assert codec.bits == bits
    assert codec.q_max == 2 ** (bits - 1) - 1
    assert codec.scale == codec.q_max / (0.1 * 100)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", ">f4", ">f8"])
@pytest.mark.parametrize(("members", "weight"), [(1, 7), (3, 1), (100, 100), (1000, 64)])
def test_every_word_is_the_exact_one(dtype: str, members: int, weight: int) -> None:
    rng = np.random.default_rng(5)
    # A third of the values lies beyond the range: clamping and counting are compared as well.
    values = rng.normal(scale=0.1, size=3000)
    cast = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rounding = rng.integers(0, 2**32, size=3000, dtype=np.uint32)
    saturated = same_as_reference(Codec(members, 0.1, 100), cast, weight, rounding)
    assert (saturated > 0) is (weight > 50)


def test_tiles_join_without_a_seam() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(scale=0.01, size=TILE + 37).astype(np.float32)
    values[TILE + 3] = 5.0  # only the second tile has to clamp
    rounding = rng.integers(0, 2**32, size=values.size, dtype=np.uint32)
    assert same_as_reference(Codec(50, 0.1, 10), values, 9, rounding) == 1


@settings(max_examples=300)
@given(
    members=st.integers(1, 2000),
    weight=st.integers(1, 1000),
    value=st.floats(allow_nan=False, allow_infinity=False),
    u=st.integers(0, U_MAX),
)
def test_any_finite_value_is_rounded_exactly(
    members: int, weight: int, value: float, u: int
) -> None:
    # Subnormals, steps beside an integer and values near the largest float included.
    rounding = np.array([u], np.uint32)
    same_as_reference(Codec(members, 0.1, 1000), np.array([value]), weight, rounding)


@given(st.integers(-3, 3), st.integers(-3, 3), st.sampled_from([0, 1, 2**31, U_MAX]))
def test_steps_beside_an_integer_are_rounded_exactly(base: int, ulps: int, u: int) -> None:
    codec = Codec(4, 2.0**29 - 1, 1)  # scale 1: y is the value itself
    value = float(base)
    for _ in range(abs(ulps)):
        value = math.nextafter(value, math.inf if ulps > 0 else -math.inf)
    same_as_reference(codec, np.array([value]), 1, np.array([u], np.uint32))


@example(4, -1.0, -0.5, 2**31)  # frac(y) = u: rounds down, to -Q - 1
@example(4, -1.0, -0.5, 2**31 - 1)  # rounds up, to -Q
@example(4, 1.0, 0.5, 2**31)
@example(4, 1.0, 0.5, 2**31 - 1)
@given(
    st.sampled_from([1, 4, 1000]),
    st.sampled_from([-1.0, 1.0]),
    st.floats(-1.5, 1.5),
    st.integers(0, U_MAX),
)
def test_the_edge_of_the_range_is_clamped_and_counted_exactly(
    members: int, sign: float, beyond: float, u: int
) -> None:
    q = Codec(members, 1.0, 1).q_max
    codec = Codec(members, float(q), 1)  # scale 1 again
    same_as_reference(codec, np.array([sign * q + beyond]), 1, np.array([u], np.uint32))


@pytest.mark.parametrize("u", [0, U_MAX])
@pytest.mark.parametrize("members", [1, 3, 128, 1000])
def test_the_largest_value_stays_q_whatever_the_rounding(members: int, u: int) -> None:
    # floor(y + u) would give Q + 1 here.
    codec = Codec(members, 1.0, 1)
    words, saturated = encode(codec, np.array([1.0, -1.0]), 1, np.array([u, u], np.uint32))
    assert words.view(np.int32).tolist() == [codec.q_max, -codec.q_max]
    assert saturated == 0


def test_a_sum_of_all_members_never_wraps() -> None:
    for members in range(1, 2001):
        assert members * Codec(members, 0.1, 100).q_max <= 2**31 - 1


def test_a_code_that_could_wrap_is_refused() -> None:
    # 2^(b-1) in place of 2^(b-1) - 1: at n = 128 the sum is 2^31 exactly.
    headroom(128, 2**24 - 1)
    with pytest.raises(SettingsError, match=f"got {2**31}"):
        headroom(128, 2**24)


@pytest.mark.parametrize("weight", [1, 50, 1000])
def test_unbiased_over_a_thousand_encodings(weight: int) -> None:
    # q is floor(y) or one more, with the probability p = frac(y) of the latter, so the mean of
    # N encodings has the standard error sqrt(p (1 - p) / N). Flower's float32 code is off by
    # 4.6 % at weight 1. The sum over the coordinates is held to 4 standard errors too.
    codec, times = Codec(1000, 0.1, 1000), 1000
    values = np.array([0.01, -0.01, 1e-7, -3e-7, 0.0123, 0.0999, -0.0501, 2.5e-5])
    rng = np.random.default_rng(8)
    rounding = rng.integers(0, 2**32, size=(times, values.size), dtype=np.uint32)
    codes = np.stack([encode(codec, values, weight, u)[0].view(np.int32) for u in rounding])
    y = codec.scale * weight * values
    p = y - np.floor(y)
    error = codes.mean(axis=0) - y
    variance = p * (1 - p) / times
    assert (np.abs(error) <= 4 * np.sqrt(variance)).all()
    assert abs(error.sum()) <= 4 * math.sqrt(variance.sum())
    assert (codes.min(axis=0) < codes.max(axis=0)).any()


def test_the_mean_of_a_round_keeps_the_error_bound() -> None:
    # Per coordinate the decoded mean is sum(q) / (s W), W = sum(w), the true one sum(w v) / W
    # = sum(y) / (s W). As |q - y| < 1 for each of |U| survivors,
    #   |error| < |U| / (s W) = (c w_cap / Q) / w_mean = (c / Q) (w_cap / w_mean).
    # y itself carries a relative float64 error of at most 2^-52: below 2^-20 of one step here.
    members, survivors, dim, c, cap = 40, 33, 400, 0.1, 600
    codec = Codec(members, c, cap)
    rng = np.random.default_rng(9)
    deltas = rng.uniform(-c, c, size=(survivors, dim)).astype(np.float32)
    weights = rng.integers(1, cap + 1, size=survivors).tolist()
    total = np.zeros(dim, np.uint32)
    for delta, weight in zip(deltas, weights, strict=True):
        rounding = rng.integers(0, 2**32, size=dim, dtype=np.uint32)
        words, saturated = encode(codec, delta, weight, rounding)
        assert saturated == 0
        total += words
    check_sum(total, codec.bound(survivors))
    mean = np.empty(dim)
    codec.decode(total, sum(weights), mean)
    true = np.average(deltas.astype(np.float64), axis=0, weights=weights)
    bound = c / codec.q_max * cap / (sum(weights) / survivors)
    error = np.abs(mean - true)
    assert error.max() < bound
    # And the spread is that of a fair rounding: at most bound / (2 sqrt(|U|)).
    assert error.std() < bound / 2 / math.sqrt(survivors)


def test_a_frozen_layer_comes_back_as_exact_zeros() -> None:
    codec = Codec(1000, 0.1, 1000)
    values = np.array([0.0, -0.0] * 50)
    rng = np.random.default_rng(10)
    total = np.zeros(100, np.uint32)
    for weight in (1, 500, 1000):
        rounding = rng.integers(0, 2**32, size=100, dtype=np.uint32)
        rounding[:2] = (0, U_MAX)
        total += encode(codec, values, weight, rounding)[0]
    mean = np.ones(100, np.float32)
    codec.decode(total, 1501, mean)
    assert mean.tobytes() == bytes(400)  # not even a minus sign


def test_the_integer_sum_is_that_of_python_integers() -> None:
    # value_range = Q and cap 1 give s = 1: decode(total, 1) is the signed sum itself.
    members = 300
    codec = Codec(members, 2.0**22 - 1, 1)
    assert codec.scale == 1.0
    rng = np.random.default_rng(11)
    total, exact = np.zeros(500, np.uint32), [0] * 500
    for _ in range(members):
        values = rng.uniform(-codec.q_max, codec.q_max, size=500)
        values[0] = codec.q_max
        values[1] = -codec.q_max
        rounding = rng.integers(0, 2**32, size=500, dtype=np.uint32)
        total += encode(codec, values, 1, rounding)[0]
        pairs = zip(values.tolist(), rounding.tolist(), strict=True)
        codes = [reference(codec, value, 1, u)[0] for value, u in pairs]
        exact = [a + b for a, b in zip(exact, codes, strict=True)]
    assert exact[0] == members * codec.q_max
    decoded = np.empty(500)
    codec.decode(total, 1, decoded)
    assert decoded.tolist() == exact


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("place", [0, 2, TILE + 1])
def test_nan_and_infinity_are_refused(bad: float, dtype: Any, place: int) -> None:
    values = np.zeros(TILE + 2, dtype)
    values[1] = 7.0  # a clamped value beside it must not hide it
    values[place] = bad
    with pytest.raises(Refused) as caught:
        encode(Codec(10, 0.1, 100), values, 5, np.zeros(TILE + 2, np.uint32))
    assert caught.value.reason == pb.REASON_NOT_FINITE


def test_clamped_values_are_counted() -> None:
    # c = 1, weight = cap: the range is [-1, 1]. 1.5, -2, 1e308 and -1e308 are outside; 1e308 is
    # finite though 1e308 * s is not.
    codec = Codec(10, 1.0, 4)
    values = np.array([1.0, -1.0, 1.5, -2.0, 0.5, 1e308, -1e308])
    words, saturated = encode(codec, values, 4, np.full(7, 5, np.uint32))
    q = codec.q_max
    assert saturated == 4
    assert words.view(np.int32).tolist() == [q, -q, q, -q, (q + 1) // 2, q, -q]


def test_words_may_lie_in_the_rounding_words() -> None:
    rng = np.random.default_rng(12)
    values = rng.normal(scale=0.05, size=TILE + 9)
    rounding = rng.integers(0, 2**32, size=values.size, dtype=np.uint32)
    codec = Codec(10, 0.1, 100)
    apart, saturated = encode(codec, values, 100, rounding)
    assert codec.encode(values, 100, rounding, rounding) == saturated
    assert rounding.tolist() == apart.tolist()


def test_no_copy_of_the_update_is_made() -> None:
    # Two scratch tiles, 8 bytes a value, and little more; one copy of d float64 would be 8 MB.
    values = np.full(1_000_000, 0.01, np.float32)
    words = np.zeros(values.size, np.uint32)
    codec = Codec(100, 0.1, 10)
    tracemalloc.start()
    codec.encode(values, 3, words, words)
    codec.decode(words, 3, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 8 * TILE + 100_000


def test_strided_and_big_endian_words() -> None:
    rng = np.random.default_rng(13)
    values = rng.normal(scale=0.01, size=(60, 2)).astype(np.float32)[:, 0]
    rounding = rng.integers(0, 2**32, size=60, dtype=np.uint32)
    codec = Codec(10, 0.1, 100)
    expected, _ = encode(codec, values.copy(), 3, rounding)
    words = np.zeros(60, ">u4")
    codec.encode(values, 3, words, rounding.astype(">u4"))
    assert words.tolist() == expected.tolist()
    means = np.empty((2, 60))
    codec.decode(expected, 3, means[0])
    codec.decode(words, 3, means[1])
    assert means[0].tolist() == means[1].tolist()


@pytest.mark.parametrize(
    ("dtype", "unit", "smallest"),
    [
        (np.float16, -10, -24),
        (ml_dtypes.bfloat16, -7, -133),
        (np.float32, -23, -149),
        (np.float64, -52, -1074),
    ],
)
def test_decode_is_the_quotient_rounded_once(dtype: Any, unit: int, smallest: int) -> None:
    # Half a unit in the last place of the dtype, and what float64 itself may be off by.
    codec = Codec(100, 0.1, 1000)
    sums = [0, 1, -1, 12345, -99999999, 2**31 - 200]
    out = np.empty(len(sums), dtype)
    codec.decode(np.array([s % 2**32 for s in sums], np.uint32), 777, out)
    for total, got in zip(sums, out.astype(np.float64).tolist(), strict=True):
        exact = Fraction(total) * Fraction(codec.value_range) * 1000 / (codec.q_max * 777)
        allowed = (Fraction(2) ** unit / 2 + Fraction(2) ** -50) * abs(exact)
        assert abs(Fraction(got) - exact) <= allowed + Fraction(2) ** smallest / 2


@pytest.mark.parametrize("survivors", [1, 77, 100])
def test_a_sum_beyond_what_the_survivors_can_send_is_void(survivors: int) -> None:
    codec = Codec(100, 0.1, 100)
    bound = survivors * codec.q_max
    assert codec.bound(survivors) == bound
    check_sum(np.array([bound, -bound % 2**32, 0], np.uint32), bound)
    for bad in (bound + 1, -bound - 1, 2**31, -(2**31)):
        with pytest.raises(VoidRound, match="masks did not cancel"):
            check_sum(np.array([0, bad % 2**32], np.uint32), bound)
    check_sum(np.empty(0, np.uint32), bound)


def test_no_values_no_words() -> None:
    codec = Codec(3, 0.1, 10)
    assert encode(codec, np.empty(0), 1, np.empty(0, np.uint32))[1] == 0
    codec.decode(np.empty(0, np.uint32), 1, np.empty(0))


@pytest.mark.parametrize(
    ("members", "value_range", "weight_cap", "where"),
    [
        (0, 0.1, 1, "members"),
        (2**20 + 1, 0.1, 1, "members"),
        (3.0, 0.1, 1, "members"),
        (3, 0.0, 1, "value_range"),
        (3, -1.0, 1, "value_range"),
        (3, math.nan, 1, "value_range"),
        (3, math.inf, 1, "value_range"),
        (3, 1e-310, 1, "value_range"),
        (3, 0.1, 0, "weight_cap"),
        (3, 0.1, 2**32 + 1, "weight_cap"),
        (3, 0.1, True, "weight_cap"),
    ],
)
def test_settings_out_of_range_are_named(
    members: Any, value_range: float, weight_cap: int, where: str
) -> None:
    with pytest.raises(SettingsError, match=rf"codec\.{where}"):
        Codec(members, value_range, weight_cap)


def test_the_weight_is_capped_and_positive() -> None:
    codec = Codec(3, 0.1, 100)
    assert [codec.capped(w) for w in (1, 100, 101, 10**9)] == [1, 100, 100, 100]
    for bad in (0, -1, 1.5, True):
        with pytest.raises(Refused, match="no positive integer"):
            codec.capped(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "weight", "words", "rounding", "what"),
    [
        (np.zeros((2, 2)), 1, np.zeros((2, 2), np.uint32), np.zeros((2, 2), np.uint32), "flat"),
        (np.zeros(2, int), 1, np.zeros(2, np.uint32), np.zeros(2, np.uint32), "float array"),
        (np.zeros(2), 1, np.zeros(3, np.uint32), np.zeros(2, np.uint32), "words are"),
        (np.zeros(2), 1, np.zeros(2, np.uint32), np.zeros(2, np.int32), "rounding are"),
        (np.zeros(2), 0, np.zeros(2, np.uint32), np.zeros(2, np.uint32), "weight lies"),
        (np.zeros(2), 11, np.zeros(2, np.uint32), np.zeros(2, np.uint32), "weight lies"),
    ],
)
def test_arrays_that_do_not_belong_together(
    values: Any, weight: int, words: Any, rounding: Any, what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        Codec(3, 0.1, 10).encode(values, weight, words, rounding)


def test_decode_refuses_what_it_cannot_fill() -> None:
    codec = Codec(3, 0.1, 10)
    words = np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="1 or more, got 0"):
        codec.decode(words, 0, np.zeros(2))
    for out in (np.zeros(3), np.zeros(2, int)):
        with pytest.raises(ValueError, match="out is a float array"):
            codec.decode(words, 1, out)
    with pytest.raises(ValueError, match="words are uint32"):
        codec.decode(words.astype(np.uint64), 1, np.zeros(2))
