"""Shard bounds: by hand, and what must hold for any length and any world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.server.core.shards import shards


@pytest.mark.parametrize(
    ("numel", "world", "expected"),
    [
        (5000, 1, [(0, 5000)]),
        (5000, 2, [(0, 3072), (3072, 5000)]),  # 5000 / 2048 = 2.4, so 3 * 1024
        (5000, 3, [(0, 2048), (2048, 4096), (4096, 5000)]),
        (1025, 4, [(0, 1024), (1024, 1025), (1025, 1025), (1025, 1025)]),
        (4096, 4, [(0, 1024), (1024, 2048), (2048, 3072), (3072, 4096)]),
        (0, 2, [(0, 0), (0, 0)]),
    ],
)
def test_bounds_by_hand(numel: int, world: int, expected: list[tuple[int, int]]) -> None:
    assert shards(numel, world) == expected


@given(st.integers(0, 10**10), st.integers(1, 8))
def test_every_word_has_one_owner_and_every_cut_is_aligned(numel: int, world: int) -> None:
    bounds = shards(numel, world)
    assert len(bounds) == world
    assert [low for low, _ in bounds] == [0, *(high for _, high in bounds[:-1])]
    assert bounds[-1][1] == numel
    assert all(low <= high for low, high in bounds)
    assert all(high % 1024 == 0 or high == numel for _, high in bounds)
    # Nobody has more than an even share and one alignment.
    assert max(high - low for low, high in bounds) < numel / world + 1024


@pytest.mark.parametrize(("numel", "world"), [(-1, 1), (10, 0)])
def test_a_world_of_none_is_refused(numel: int, world: int) -> None:
    with pytest.raises(SettingsError, match="1 or more ranks"):
        shards(numel, world)
