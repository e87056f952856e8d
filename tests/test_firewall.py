"""The firewall: each way to be wrong is refused by name, and nothing is changed."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from umbel.protocol.codec import Codec
from umbel.protocol.errors import BadUpdate, Refused, SettingsError
from umbel.protocol.layout import COUNT, METRIC_BITS, REAL, MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.firewall import Firewall

MANIFEST = Manifest.of(
    {
        "conv": np.zeros((4, 3), np.float32),
        "head": np.zeros(17, np.float32),
        "seen": np.array(0),
        "half": np.zeros(2, ml_dtypes.bfloat16),
    }
)
CODEC = Codec(members=10, value_range=1.0, weight_cap=64)
LAYOUT = MessageLayout(MANIFEST, {"loss": REAL, "correct": COUNT}, "train")
FLAT = MessageLayout(MANIFEST, {"loss": REAL, "correct": COUNT}, "evaluate")
WALL = Firewall(MANIFEST, max_norm=2.0, weight_cap=100)

Arrays = dict[str, NDArray[Any]]


def deltas(value: float = 0.25) -> Arrays:
    """31 values: 12 + 17 + 2."""
    return {
        "conv": np.full((4, 3), value, np.float32),
        "head": np.full(17, value, np.float32),
        "half": np.full(2, value, np.float32),
    }


def message(value: float = 0.25, weight: int = 32) -> bytearray:
    numbers: dict[str, float | int] = {"loss": 1.5, "correct": 7}
    return LAYOUT.build(deltas(value), weight, numbers, CODEC, bytes(range(32)))


def test_a_good_update_passes_and_stays_as_it_was() -> None:
    arrays = deltas()
    WALL.check_arrays("n", arrays, 100)
    assert all((array == 0.25).all() for array in arrays.values())
    raw = message()
    before = bytes(raw)
    WALL.check_message("n", memoryview(raw).toreadonly(), LAYOUT, CODEC)
    assert bytes(raw) == before


def _set(name: str, array: NDArray[Any]) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: array})


def _poke(value: float) -> Callable[[Arrays], None]:
    def poke(arrays: Arrays) -> None:
        arrays["head"][16] = value

    return poke


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda a: a.pop("head"), r"node 3: arrays: expected 'head', got none of that name"),
        (_set("extra", np.zeros(1)), r"node 3: arrays: expected 3 known names, got 'extra'"),
        (_set("conv", np.zeros((1, 3))), r"'conv': expected float \(4, 3\), got .*\(1, 3\)"),
        (_set("conv", np.zeros(12, np.float32)), r"'conv': expected float \(4, 3\), got .*\(12,\)"),
        (_set("conv", np.zeros((4, 3), np.int64)), r"'conv': expected float .*, got int64"),
        (_set("seen", np.array(9)), r"expected 3 known names, got 'seen'"),
        (_poke(np.nan), r"node 3: array 'head': expected finite values, got nan"),
        (_poke(-np.inf), r"node 3: array 'head': expected finite values, got -inf"),
        (_poke(2.5), r"node 3: L2 norm of the delta: expected at most 2\.0, got 2\.8"),
    ],
)  # fmt: skip
def test_a_bad_float_update_is_named(change: Callable[[Arrays], object], complaint: str) -> None:
    arrays = deltas()
    change(arrays)
    with pytest.raises(BadUpdate, match=complaint):
        WALL.check_arrays("node 3", arrays, 5)


@pytest.mark.parametrize("weight", [0, -5, 101, True, 1.0, np.float64(3)])
def test_a_bad_weight_is_named(weight: Any) -> None:
    with pytest.raises(BadUpdate, match=r"node 3: weight: expected an integer in 1\.\.100, got"):
        WALL.check_arrays("node 3", deltas(), weight)


def _word32(index: int, value: int) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        np.frombuffer(raw, "<i4", LAYOUT.words32)[index] = value

    return change


def _word64(index: int, value: int) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        np.frombuffer(raw, "<u8", offset=LAYOUT.split)[index] = value % 2**64

    return change


Q = CODEC.q_max
BOUND = 2 ** (METRIC_BITS - 4)  # ceil(log2 10) = 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    # Section 32: conv in words 0..11, head 16..32, half 48..49, 64 in all.
    # Section 64: 1, weight, saturated, correct, loss, 1.
    [
        (_word32(3, Q + 1), rf"array 'conv': expected codes of at most {Q}, got {Q + 1}"),
        (_word32(32, -Q - 1), rf"array 'head': expected codes of at most {Q}, got {-Q - 1}"),
        (_word32(49, -(2**31)), r"array 'half': expected codes"),
        (_word32(12, 1), r"words between two arrays: expected zeros"),
        (_word32(40, -1), r"words between two arrays: expected zeros"),
        (_word32(63, 1), r"words between two arrays: expected zeros"),
        (_word64(0, 2), r"the two ones: expected \(1, 1\), got \(2, 1\)"),
        (_word64(5, 0), r"the two ones: expected \(1, 1\), got \(1, 0\)"),
        (_word64(1, 0), r"weight: expected an integer in 1\.\.64, got 0"),
        (_word64(1, 65), r"weight: expected an integer in 1\.\.64, got 65"),
        (_word64(1, -1), r"weight: expected"),
        (_word64(2, 32), r"saturated count: expected at most 31, got 32"),
        (_word64(3, BOUND + 1), rf"metric 'correct': expected at most {BOUND} in magnitude"),
        (_word64(3, -BOUND - 1), r"metric 'correct'"),
        (_word64(4, BOUND * 2**24 + 1), r"metric 'loss'"),
        (_word64(4, -(2**63)), r"metric 'loss'"),
        (lambda raw: raw.extend(bytes(8)), r"ring message: expected 304 bytes, got 312"),
        (lambda raw: raw.clear(), r"ring message: expected 304 bytes, got 0"),
    ],
)  # fmt: skip
def test_a_bad_ring_message_is_named(change: Callable[[bytearray], object], complaint: str) -> None:
    raw = message()
    change(raw)
    with pytest.raises(BadUpdate, match=f"node 3: {complaint}"):
        WALL.check_message("node 3", raw, LAYOUT, CODEC)


def test_the_limits_themselves_pass() -> None:
    raw = message()
    changes = (_word32(3, Q), _word32(16, -Q), _word64(1, 64), _word64(2, 31))
    for change in (*changes, _word64(3, -BOUND), _word64(4, BOUND * 2**24)):
        change(raw)
    Firewall(MANIFEST, max_norm=None, weight_cap=64).check_message("n", raw, LAYOUT, CODEC)


def test_the_metric_bound_is_the_one_that_devices_keep() -> None:
    def build(value: int) -> bytearray:
        numbers = {"loss": 0.0, "correct": value}
        return LAYOUT.build(deltas(), 1, numbers, CODEC, bytes(32))

    WALL.check_message("n", build(BOUND), LAYOUT, CODEC)
    with pytest.raises(Refused):
        build(BOUND + 1)


def test_the_norm_is_that_of_the_decoded_delta() -> None:
    # 31 equal values of v have the norm v * sqrt(31): 2 at v = 0.3592.
    WALL.check_message("n", message(0.3590, weight=3), LAYOUT, CODEC)
    with pytest.raises(BadUpdate, match=r"L2 norm of the delta: expected at most 2\.0, got 2\.004"):
        WALL.check_message("n", message(0.3600, weight=3), LAYOUT, CODEC)


def test_the_runs_own_cap_counts_when_it_is_smaller() -> None:
    with pytest.raises(BadUpdate, match=r"1\.\.16, got 32"):
        Firewall(MANIFEST, max_norm=None, weight_cap=16).check_message(
            "n", message(), LAYOUT, CODEC
        )


def test_an_evaluation_weighs_one_and_saturates_nothing() -> None:
    raw = FLAT.build(None, 1, {"loss": 2.5, "correct": 3}, CODEC, bytes(32))
    WALL.check_message("n", raw, FLAT, CODEC)
    words = np.frombuffer(raw, "<u8")
    for index, complaint in ((1, "weight"), (2, "saturated")):
        words[index] += 1
        with pytest.raises(BadUpdate, match=complaint):
            WALL.check_message("n", raw, FLAT, CODEC)
        words[index] -= 1


@pytest.mark.parametrize(
    ("max_norm", "weight_cap"), [(0.0, 1), (-1.0, 1), (np.nan, 1), (np.inf, 1), (None, 0)]
)
def test_bounds_have_ranges(max_norm: float | None, weight_cap: int) -> None:
    with pytest.raises(SettingsError, match="firewall"):
        Firewall(MANIFEST, max_norm=max_norm, weight_cap=weight_cap)
