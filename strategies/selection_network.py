"""Sorting networks that stop at the ranks a rule needs: median and trimmed mean without a sort.

A network is a fixed list of comparators (i, j): the smaller of two values goes to wire i, the
larger to wire j. It has no branch on the data, so a whole tile of coordinates passes each
comparator at once, and any order of equal values gives the same result. This module only makes
the lists; numpy_tiles.py, numba_tiles.py, torch_tiles.py and triton_median.py run them.

Batcher's merge exchange sorts any number of wires (Knuth, The Art of Computer Programming 3,
5.2.2, algorithm M). `prune` walks it backwards and keeps what the wanted ranks depend on. Ranks
come in classes whose order inside does not matter, since only their sum is asked for: a
comparator between two wires of one class, or of none, is dropped. Wires: values, so clients.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MIXED = -2  # read by a comparator that is kept
_UNWANTED = -1


class Comparator(NamedTuple):
    """Wires `low` < `high`; which of smaller and larger value is read later on."""

    low: int
    high: int
    keep_low: bool
    keep_high: bool


class Network(NamedTuple):
    """Comparators in order, and the wires on which the wanted ranks come out."""

    wires: int
    comparators: tuple[Comparator, ...]
    outputs: tuple[int, ...]
    """Ascending; the ranks themselves where every class has one rank, else as a set."""

    @property
    def operations(self) -> int:
        """Minima and maxima that are taken."""
        return sum(one.keep_low + one.keep_high for one in self.comparators)


def merge_exchange(wires: int) -> list[tuple[int, int]]:
    """Return the pairs of Batcher's merge exchange, which sorts `wires` values ascending.

    Raises:
        SettingsError: `wires` is below 1.
    """
    if wires < 1:
        raise SettingsError("sorting network", "1 or more values", wires)
    pairs: list[tuple[int, int]] = []
    first = 1 << ((wires - 1).bit_length() - 1) if wires > 1 else 0
    p = first
    while p > 0:
        q, r, step = first, 0, p
        while True:
            pairs += [(i, i + step) for i in range(wires - step) if i & p == r]
            if q == p:
                break
            step, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def prune(wires: int, classes: Sequence[Iterable[int]]) -> Network:
    """Return the part of merge exchange that brings each class of ranks to its own wires.

    Args:
        wires: Values to select from, n.
        classes: Disjoint sets of ranks, 0 the smallest. A class arrives on the wires of its
            ranks in any order; ranks in no class are not asked for.

    Raises:
        SettingsError: A rank is outside 0 to n - 1 or in two classes.
    """
    label = [_UNWANTED] * wires
    for number, ranks in enumerate(classes):
        for rank in ranks:
            if not 0 <= rank < wires or label[rank] != _UNWANTED:
                raise SettingsError("ranks", f"each once, below {wires}", rank)
            label[rank] = number
    outputs = tuple(rank for rank in range(wires) if label[rank] != _UNWANTED)
    kept = []
    for low, high in reversed(merge_exchange(wires)):
        if label[low] == label[high] != _MIXED:
            continue
        kept.append(Comparator(low, high, label[low] != _UNWANTED, label[high] != _UNWANTED))
        label[low] = label[high] = _MIXED
    return Network(wires, tuple(reversed(kept)), outputs)


@cache
def median(wires: int) -> Network:
    """Return the network of the middle value, or of the middle two, whose half sum is taken."""
    return prune(wires, [{(wires - 1) // 2, wires // 2}])


@cache
def trimmed(wires: int, cut: int) -> Network:
    """Return the network of what is left when the `cut` smallest and largest are dropped.

    Raises:
        SettingsError: Nothing would be left.
    """
    check_cut(wires, cut)
    return prune(wires, [range(cut, wires - cut)])


@cache
def sorting(wires: int) -> Network:
    """Return the whole network: every rank on its own wire."""
    return prune(wires, [(rank,) for rank in range(wires)])


def check_cut(clients: int, cut: int) -> None:
    """Check that a trimmed mean of `clients` values has something left.

    Raises:
        SettingsError: `cut` is negative or 2 * cut is not below `clients`.
    """
    if cut < 0 or 2 * cut >= clients:
        raise SettingsError(
            "trimmed mean",
            f"a cut of 0 to {(clients - 1) // 2} at either end for {clients} clients",
            cut,
            "cut less or wait for more clients",
        )
