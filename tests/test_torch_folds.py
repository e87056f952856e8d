"""The folds against numpy's float64 and uint64, in every encoding, in place and into the other."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import BadUpdate, SettingsError
from umbel.server.core import torch_folds as folds
from umbel.server.core.shards import shards
from umbel.server.core.torch_folds import BATCH, RING_TILE, TILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ring = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None]

WIDE = RING_TILE + 1500
"""More than a tile, and no multiple of anything."""


def _floats(k: int, m: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    total, rows = rng.standard_normal(m), rng.standard_normal((k, m))
    weights = rng.uniform(50, 500, k)
    return tuple(torch.from_numpy(a.astype(np.float32)) for a in (total, rows, weights))  # type: ignore[return-value]


def _expected(total: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> NDArray[Any]:
    """The sum in numpy's float64, of the values as they are in their own dtype."""
    wide = [tensor.to(torch.float64).numpy() for tensor in (total, rows, weights)]
    result: NDArray[Any] = wide[0] + wide[2] @ wide[1]
    return result


def _near(found: torch.Tensor, expected: NDArray[Any]) -> None:
    scale = np.abs(expected).max()
    assert np.abs(found.numpy() - expected).max() <= 1e-6 * scale


@pytest.mark.parametrize("kernel", [folds.fold, folds.fold_each])
@pytest.mark.parametrize("k", [0, 1, BATCH, 2 * BATCH + 3])
def test_a_fold_is_the_weighted_sum(kernel: Callable[..., None], k: int) -> None:
    total, rows, weights = _floats(k, WIDE)
    expected, before = _expected(total, rows, weights), total.clone()
    other = torch.full_like(total, torch.nan)
    kernel(total, rows, weights, other)
    assert torch.equal(total, before)  # a pair's committed half is left alone
    _near(other, expected)
    kernel(total, rows, weights)
    assert torch.equal(total, other)  # and in place gives the same bits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("k", [0, 3, 2 * BATCH + 3])
def test_a_narrow_fold_is_the_weighted_sum(dtype: torch.dtype, k: int) -> None:
    total, rows, weights = _floats(k, WIDE)
    narrow = (rows * 30).to(dtype)
    expected, before = _expected(total, narrow, weights), total.clone()
    tile, other = torch.empty(folds.tile_shape(k)), torch.full_like(total, torch.nan)
    folds.fold_cast(total, narrow, weights, tile, other)
    assert torch.equal(total, before)
    _near(other, expected)
    folds.fold_cast(total, narrow, weights, tile)
    assert torch.equal(total, other)


def test_an_int8_scale_is_part_of_the_weight() -> None:
    # two clients, by hand: 3 * 0.5 * 4 + (-2) * 0.25 * 8 = 6 - 4
    rows = torch.tensor([[3, 0], [-2, 127]], dtype=torch.int8)
    weights = torch.tensor([0.5 * 4, 0.25 * 8])
    total = torch.tensor([1.0, 1.0])
    folds.fold_cast(total, rows, weights, torch.empty(2, 2))
    assert total.tolist() == [3.0, 255.0]


@pytest.mark.parametrize("kernel", [folds.fold_ring, folds.ring_each])
@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize(("dtype", "unsigned"), [(np.int32, np.uint32), (np.int64, np.uint64)])
def test_a_ring_fold_wraps_around_as_unsigned_words_do(
    kernel: Ring, k: int, dtype: Any, unsigned: Any
) -> None:
    rng = np.random.default_rng(k)
    top = np.iinfo(unsigned).max
    words = rng.integers(0, top, (k + 1, WIDE), dtype=unsigned, endpoint=True)
    words[:, :3] = [0, top, top // 2 + 1]
    bits = 8 * words.itemsize
    expected = [sum(map(int, column)) % 2**bits for column in words[:, :200].T]
    total, rows = torch.from_numpy(words[0].view(dtype)), torch.from_numpy(words[1:].view(dtype))
    before, other = total.clone(), torch.full_like(total, 7)
    kernel(total, rows, other)
    assert torch.equal(total, before)
    kernel(total, rows, None)
    assert torch.equal(total, other)
    assert total.numpy().view(unsigned)[:200].tolist() == expected
    whole = before.numpy().view(unsigned) + words[1:].sum(axis=0, dtype=unsigned)
    assert np.array_equal(total.numpy().view(unsigned), whole)


def test_both_sections_of_a_message_are_summed_over_its_own_bytes() -> None:
    # one word of each section near its end, by hand: 2^32 - 1 + 2 = 1 and 2^64 - 1 + 3 = 2
    low, high = (2**32 - 1).to_bytes(4, "little"), (2**64 - 1).to_bytes(8, "little")
    total = bytearray(low * 16 + high)
    message = bytearray((2).to_bytes(4, "little") * 16 + (3).to_bytes(8, "little"))
    for mine, theirs in zip(folds.words(total, 64), folds.words(message, 64), strict=True):
        folds.fold_ring(mine, theirs[None])
    assert total == (1).to_bytes(4, "little") * 16 + (2).to_bytes(8, "little")


@pytest.mark.parametrize(("split", "lengths"), [(0, (0, 8)), (64, (16, 0))])
def test_a_message_may_lack_a_section(split: int, lengths: tuple[int, int]) -> None:
    assert tuple(map(len, folds.words(bytearray(64), split))) == lengths


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("kernel", ["float", "bf16", "ring"])
def test_any_world_has_the_bits_of_a_world_of_one(world: int, kernel: str) -> None:
    total, rows, weights = _floats(BATCH + 2, WIDE)
    integers = (rows * 2**29).to(torch.int32), (total * 2**29).to(torch.int32)

    def result(bounds: list[tuple[int, int]]) -> torch.Tensor:
        done = integers[1].clone() if kernel == "ring" else total.clone()
        for low, high in bounds:
            part = done[low:high]
            if kernel == "ring":
                folds.fold_ring(part, integers[0][:, low:high])
            elif kernel == "float":
                folds.fold(part, rows[:, low:high], weights)
            else:
                narrow, tile = rows.to(torch.bfloat16), torch.empty(folds.tile_shape(BATCH))
                folds.fold_cast(part, narrow[:, low:high], weights, tile)
        return done

    assert torch.equal(result(shards(WIDE, world)), result([(0, WIDE)]))


@given(
    st.lists(st.sets(st.integers(0, 4999), max_size=60), min_size=1, max_size=5),
    st.integers(1, 8),
    st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=40, deadline=None)
def test_a_sparse_fold_is_that_of_the_dense_updates(
    places: list[set[int]], world: int, dtype: torch.dtype
) -> None:
    rng, bounds = np.random.default_rng(1), shards(5000, world)
    total, scratch = torch.zeros(5000), torch.empty(60, dtype=dtype)
    dense = np.zeros(5000)
    for weight, chosen in enumerate(places, start=2):
        indices = torch.tensor(sorted(chosen), dtype=dtype)
        values = torch.from_numpy(rng.standard_normal(len(chosen)).astype(np.float32))
        folds.check_sparse("node", indices, values, 5000)
        dense[indices.numpy()] += weight * values.numpy().astype(np.float64)
        for (low, high), part in zip(bounds, folds.cut_sparse(indices, bounds), strict=True):
            mine = total[low:high]
            folds.fold_sparse(mine, low, indices[part], values[part], weight, scratch)
    assert np.abs(total.numpy() - dense).max() <= 1e-5


@pytest.mark.parametrize(
    ("indices", "values", "complaint"),
    [
        ([3, 3], [1.0, 1.0], "each above the one before"),
        ([4, 3], [1.0, 1.0], "each above the one before"),
        ([-1, 3], [1.0, 1.0], "0 to 9"),
        ([1, 10], [1.0, 1.0], "0 to 9"),
        ([1, 2], [1.0], "2 of them"),
        ([1.0, 2.0], [1.0, 1.0], "int32 or int64"),
    ],
)
def test_a_sparse_update_that_repeats_or_leaves_the_vector_is_refused(
    indices: list[int], values: list[float], complaint: str
) -> None:
    with pytest.raises(BadUpdate, match=complaint):
        folds.check_sparse("node-7", torch.tensor(indices), torch.tensor(values), 10)


def test_an_empty_sparse_update_is_one() -> None:
    folds.check_sparse("node", torch.empty(0, dtype=torch.int64), torch.empty(0), 10)


def test_a_sparse_fold_refuses_buffers_that_do_not_fit() -> None:
    total, indices, values = torch.zeros(4), torch.tensor([1, 2]), torch.ones(2)
    with pytest.raises(SettingsError, match="fold scratch"):
        folds.fold_sparse(total, 0, indices, values, 1.0, torch.empty(1, dtype=torch.int64))
    with pytest.raises(SettingsError, match="fold values"):
        folds.fold_sparse(total, 0, indices, values.double(), 1.0, torch.empty(2).long())
    assert not total.any()


def test_buffers_that_do_not_belong_together_are_refused_untouched() -> None:
    total, rows, weights = torch.zeros(8), torch.ones(2, 8), torch.ones(2)
    wrong: list[tuple[Callable[[], None], str]] = [
        (lambda: folds.fold(total, rows[:, :4], weights), "fold rows"),
        (lambda: folds.fold(total, rows.double(), weights), "fold rows"),
        (lambda: folds.fold(total, rows, weights[:1]), "fold weights"),
        (lambda: folds.fold(total, rows, weights, torch.zeros(7)), "fold other"),
        (lambda: folds.fold_cast(total, rows, weights, torch.empty(2, 8)), "fold rows"),
        (lambda: folds.fold_cast(total, rows.char(), weights, torch.empty(8)), "fold tile"),
        (lambda: folds.fold_ring(total, rows), "fold rows"),
        (lambda: folds.fold_ring(total.int(), rows.long()), "fold total"),
    ]
    for call, name in wrong:
        with pytest.raises(SettingsError, match=name):
            call()
    assert not total.any()


def test_a_fold_allocates_nothing_by_the_length_of_a_shard() -> None:
    """Torch's own profiler counts what its allocator hands out."""
    total, rows, weights = _floats(2 * BATCH, RING_TILE + TILE)
    ring, messages = total.int(), rows.int()
    tile, other = torch.empty(folds.tile_shape(BATCH)), torch.empty_like(total)
    narrow = rows.bfloat16()
    with torch.profiler.profile(profile_memory=True) as profile:
        folds.fold(total, rows, weights)
        folds.fold(total, rows, weights, other)
        folds.fold_ring(ring, messages)
        folds.fold_cast(total, narrow, weights, tile)
    taken = [event.cpu_memory_usage for event in profile.events() or ()]
    assert max(itertools.chain(taken, [0])) < 4096
