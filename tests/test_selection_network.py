"""The pruned networks select what sorting selects; their sizes are the published ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.strategies.selection_network import (
    Network,
    median,
    merge_exchange,
    prune,
    sorting,
    trimmed,
)


def run(network: Network, values: list[float]) -> list[float]:
    """Return what comes out, by the definition; a value that is not kept becomes NaN."""
    wires = list(values)
    for low, high, keep_low, keep_high in network.comparators:
        small, large = min(wires[low], wires[high]), max(wires[low], wires[high])
        wires[low] = small if keep_low else float("nan")
        wires[high] = large if keep_high else float("nan")
    return [wires[place] for place in network.outputs]


@pytest.mark.parametrize("wires", range(1, 13))
def test_it_sorts_every_sequence_of_zeros_and_ones(wires: int) -> None:
    # Knuth 5.3.4, theorem Z: a network that sorts these sorts everything.
    network = sorting(wires)
    for values in itertools.product([0.0, 1.0], repeat=wires):
        assert run(network, list(values)) == sorted(values)


@pytest.mark.parametrize("wires", range(1, 66))
def test_median_and_trimmed_select_for_every_number_of_clients(wires: int) -> None:
    rng = np.random.default_rng(wires)
    for values in (rng.normal(size=wires), rng.integers(0, 4, wires).astype(float)):
        ordered = sorted(values.tolist())
        middle = ordered[(wires - 1) // 2 : wires // 2 + 1]
        assert sorted(run(median(wires), values.tolist())) == middle
        for cut in {0, 1, wires // 5, (wires - 1) // 2}:
            if 2 * cut < wires:
                kept = sorted(run(trimmed(wires, cut), values.tolist()))
                assert kept == ordered[cut : wires - cut]


@given(st.data())
def test_any_classes_of_ranks(data: st.DataObject) -> None:
    wires = data.draw(st.integers(1, 24))
    owner = data.draw(st.lists(st.integers(0, 3), min_size=wires, max_size=wires))
    classes = [[rank for rank in range(wires) if owner[rank] == name] for name in (1, 2, 3)]
    values = data.draw(st.permutations([float(v) for v in range(wires)]))
    network = prune(wires, classes)
    came = dict(zip(network.outputs, run(network, list(values)), strict=True))
    for ranks in classes:
        assert sorted(came[rank] for rank in ranks) == [float(rank) for rank in ranks]


@pytest.mark.parametrize(
    ("wires", "full", "pruned", "operations"),
    [  # Knuth's count of merge exchange; the rest are Umbel's own, as the GPU kernel shows them
        (16, 63, 53, 92),
        (17, 74, 61, 106),
        (25, 138, 113, 202),
        (32, 191, 157, 284),
        (33, 207, 169, 306),
        (50, 395, 329, 610),
        (64, 543, 445, 828),
        (100, 1077, 889, 1680),
        (128, 1471, 1213, 2300),
    ],
)
def test_sizes(wires: int, full: int, pruned: int, operations: int) -> None:
    middle = prune(wires, [{rank} for rank in {(wires - 1) // 2, wires // 2}])
    assert len(merge_exchange(wires)) == full
    assert (len(middle.comparators), middle.operations) == (pruned, operations)
    assert median(wires).operations <= operations


def test_what_is_not_asked_for_costs_nothing() -> None:
    assert prune(8, []).comparators == ()
    assert prune(8, [range(8)]).comparators == ()
    assert trimmed(9, 0).operations == 0
    assert sorting(1) == Network(1, (), (0,))


def test_refusals() -> None:
    with pytest.raises(SettingsError, match="1 or more"):
        merge_exchange(0)
    with pytest.raises(SettingsError, match="a cut of 0 to 1 at either end for 4 clients"):
        trimmed(4, 2)
    with pytest.raises(SettingsError):
        trimmed(4, -1)
    for classes in ([{4}], [{-1}], [{1}, {1}]):
        with pytest.raises(SettingsError, match="each once"):
            prune(4, classes)
