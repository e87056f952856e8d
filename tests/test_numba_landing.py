"""The compiled passes over models that land: the exact sum, numpy's bits, what is refused."""

from __future__ import annotations

import importlib.util
import io
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol.errors import BadUpdate
from umbel.strategies import landing
from umbel.strategies.compiled import Compiled
from umbel.strategies.landing import SLOTS, Incoming, Landing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed: it comes with umbel[fast]", allow_module_level=True)

SIZE = 1009
"""No multiple of a vector register."""
COMPILED = Compiled(".numba_landing", "umbel.strategies")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Land by the kernels, compiled once for all these tests."""
    assert COMPILED.load()
    monkeypatch.setattr(landing, "COMPILED", COMPILED)
    return COMPILED


def sent(values: NDArray[np.float32]) -> dict[str, Incoming]:
    """Return an array as it comes, cut where no value ends."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    data = file.getvalue()
    cuts = [0, 200, *range(237, len(data), 1001), len(data)]
    parts = [data[a:b] for a, b in pairwise(cuts)]
    return {"w": Incoming("float32", "numpy.ndarray", iter(parts))}


def landed(updates: Sequence[NDArray[np.float32]], weights: Sequence[int]) -> NDArray[np.float32]:
    total = Landing({"w": np.zeros(SIZE, np.float32)})
    for number, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        total.take(f"node {number}", sent(update), weight)
    mean: NDArray[np.float32] = total.mean()["w"].copy()
    return mean


def updates_of(clients: int) -> tuple[list[NDArray[np.float32]], list[int]]:
    """Return models with |x| in 1..2, and weights of 9 bits: any order has the same sum."""
    rng = np.random.default_rng(clients)
    sign = rng.choice([-1.0, 1.0], size=SIZE)
    made = [(sign * rng.uniform(1.0, 2.0, SIZE)).astype(np.float32) for _ in range(clients)]
    return made, [int(w) for w in rng.integers(1, 512, clients)]


@pytest.mark.parametrize("clients", [1, 2, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS + 3])
@pytest.mark.usefixtures("compiled")
def test_any_batch_has_the_exact_mean(clients: int) -> None:
    updates, weights = updates_of(clients)
    mean = landed(updates, weights)
    for place in range(SIZE):
        parts = zip(weights, updates, strict=True)
        exact = sum(w * Fraction(float(u[place])) for w, u in parts) / sum(weights)
        assert mean[place] == np.float32(float(exact))


def test_the_bits_are_numpys(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, weights = updates_of(2 * SLOTS + 3)
    mine = landed(updates, weights)
    monkeypatch.setattr(landing, "COMPILED", Compiled(".none", "umbel.strategies"))
    assert compiled.module is not None
    assert landed(updates, weights).tobytes() == mine.tobytes()


@pytest.mark.usefixtures("compiled")
def test_a_landing_that_is_used_again_forgets_the_round_before() -> None:
    total = Landing({"w": np.zeros(SIZE, np.float32)})
    for value, wanted in ((3.0, 3.0), (-0.5, -0.5)):
        for number in range(SLOTS + 2):
            total.take(f"node {number}", sent(np.full(SIZE, value, np.float32)), 2.0)
        assert total.mean()["w"].tolist() == [wanted] * SIZE
        total = total.again(total.model)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 500, SIZE - 1])
def test_what_is_not_finite_is_refused(value: float, place: int) -> None:
    update = np.zeros(SIZE, np.float32)
    update[place] = value
    with pytest.raises(BadUpdate, match=r"node 0.*array 'w'.*finite values"):
        landed([update], [1])


@pytest.mark.usefixtures("compiled")
def test_the_largest_and_the_smallest_values_are_finite() -> None:
    edges = np.zeros(SIZE, np.float32)
    edges[:4] = [3.4028235e38, -3.4028235e38, 1e-45, -0.0]
    assert landed([edges], [1]).tolist() == edges.tolist()
