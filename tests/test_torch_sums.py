"""Judging and adding stacks of tensors, against the same for one numpy update at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from umbel.simulation.engine import torch_sums, verdicts
from umbel.simulation.engine.verdicts import Bounds
from umbel.simulation.engine.work import Verdict


def stacks(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((6, 50), (6, 0), (6, 1), (6, 33))
    found = [torch.randn(*shape, generator=generator, dtype=dtype) * 5 for shape in shapes]
    found[0][1, 7] = float("nan")
    found[2][3, 0] = -float("inf")
    found[3][4] *= 1000
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 64, 1 << 15])
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(1000.0, 48.2), Bounds(50.0, 9000.0)])
def test_stacks_are_judged_and_added_as_single_updates(
    dtype: torch.dtype, block: int, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(torch_sums.BLOCK, "cpu", block)
    updates, scales = stacks(dtype), np.array([3, 1, 2.5, 7, 1, 11])
    rows = [[update[k].numpy() for update in updates] for k in range(6)]
    expected = [verdicts.judge(row, bounds) for row in rows]
    found = torch_sums.judge(updates, 6, bounds)
    assert found.tolist() == expected
    assert expected[1] == expected[3] == Verdict.NOT_FINITE

    counted = found == Verdict.COUNTED
    whole = np.zeros(84, np.int64)
    for k in np.flatnonzero(counted):
        verdicts.add(whole, rows[k], scales[k], 36)
    total = torch.zeros(84, dtype=torch.int64)
    torch_sums.add(total, updates, np.where(counted, scales, 0.0), 36)
    assert np.array_equal(total.numpy(), whole)
    assert counted.any()
