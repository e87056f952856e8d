"""How a test is split and put together again: by hand, and against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.strategies.testing import MOST, ROWS, means, parts, shares, total


@pytest.mark.parametrize(
    ("examples", "lengths"),
    [
        (1, [1]),
        (512, [512]),
        (513, [512, 1]),
        (64 * 512, [512] * 64),
        (64 * 512 + 1, [1024] * 32 + [1]),
    ],
)
def test_parts_by_hand(examples: int, lengths: list[int]) -> None:
    assert [len(rows) for rows in parts(examples)] == lengths


@given(st.integers(1, 10**9))
def test_parts_cover_every_example_once_and_are_never_many(examples: int) -> None:
    found = parts(examples)
    assert (found[0].start, found[-1].stop) == (0, examples)
    assert all(one.stop == two.start and len(one) % ROWS == 0 for one, two in pairwise(found))
    assert 1 <= len(found) <= MOST


@given(st.integers(1, MOST), st.integers(1, MOST))
def test_shares_cover_every_part_once_and_are_even(count: int, hands: int) -> None:
    found = shares(count, hands)
    assert list(chain(*found)) == list(range(count))
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=MOST))
def test_a_sum_is_exact_and_rounded_once(losses: list[float]) -> None:
    found = total([{"loss": loss, "seen": 3} for loss in losses])
    assert found == {"loss": float(sum(map(Fraction, losses))), "seen": 3 * len(losses)}
    assert isinstance(found["seen"], int)
    backwards = total([{"loss": loss, "seen": 3} for loss in reversed(losses)])
    assert np.float64(backwards["loss"]).tobytes() == np.float64(found["loss"]).tobytes()


def test_means_by_hand() -> None:
    sums = {"examples": 8, "loss": 6.0, "correct": 7, "tokens": 32}
    assert means(sums) == {"loss": 0.75, "accuracy": 0.875, "tokens": 4.0}
