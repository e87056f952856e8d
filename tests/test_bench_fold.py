"""`umbel bench fold`: arithmetic by hand, the peer's mean, and a whole run in small."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from umbel.benchmarks import flower_fold, fold, torch_fold
from umbel.benchmarks.layer_sizes import layer_sizes
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.server.core import torch_folds


def test_the_figures_of_a_case_by_hand() -> None:
    # 12 GB of updates: 1 s is 12 GB/s. STREAM took 1.5 s for 36 GB of traffic, 24 GB/s; at 5
    # bytes of traffic for 4 of an update it would take updates at 19.2 GB/s.
    seconds = {name: [1.0] for name in [*torch_fold.TRAFFIC, "float/pair"]}
    found = seconds | {"peer": [8.0], "stream/1": [1.5], "stream/2": [0.75]}
    lines = {m.case: m.line() for m in torch_fold.measurements(found, 12e9)}
    one = lines["float/threads=1"]
    assert (one["umbel"], one["peer"], one["ratio"]) == (12.0, 1.5, 8.0)
    assert (one["limit"], one["of_limit"]) == (19.2, 0.625)
    assert lines["float/threads=2"]["limit"] == 38.4
    # 3 bytes for bf16, 2 for int8; 1 % of 4 + 4 bytes and a line of 64 fetched and written back
    assert lines["bf16/threads=1"]["limit"] == 32.0
    assert lines["int8/threads=1"]["limit"] == 48.0
    assert lines["sparse/threads=1"]["limit"] == pytest.approx(24 * 4 / 1.36, rel=1e-3)


def test_the_pair_is_compared_with_in_place() -> None:
    seconds = {n: [1.0] for n in [*torch_fold.TRAFFIC, "peer", "stream/1", "stream/2"]}
    found = seconds | {"float/pair": [1.25]}
    lines = {m.case: m.line() for m in torch_fold.measurements(found, 1e9)}
    assert (lines["float/pair"]["ratio"], lines["float/pair"]["peer_name"]) == (0.8, "in place")


def test_a_small_run_has_every_case_of_the_table() -> None:
    lines = [m.line() for m in fold.run(params=20_000, clients=19, runs=1)]
    assert sorted(str(line["case"]) for line in lines) == sorted(fold.CASES)
    assert all(line["unit"] == "GB/s" and line["ratio"] for line in lines)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    list(fold.run(params=1000, clients=2, runs=1))
    assert torch.get_num_threads() == before


def test_a_fold_that_is_not_the_mean_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_folds, "fold", lambda *_: None)
    with pytest.raises(VoidRound, match="the means of Umbel and Flower differ"):
        list(fold.run(params=1000, clients=2, runs=1))


def test_flowers_replies_hold_the_rows_and_their_weights() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 1000)).astype(np.float32)
    mean = flower_fold.aggregate(flower_fold.replies(rows, [1.0, 2.0, 5.0], layer_sizes(1000, 7)))
    assert len(mean) == 7
    expected = np.average(rows.astype(np.float64), axis=0, weights=[1, 2, 5])
    assert np.abs(flower_fold.flat(mean) - expected).max() < 1e-6


@pytest.mark.parametrize(("params", "count"), [(1, 100), (100, 100), (101, 100), (10**7, 100)])
def test_layers_are_uneven_and_sum_to_the_model(params: int, count: int) -> None:
    sizes = layer_sizes(params, count)
    assert sum(sizes) == params
    assert len(sizes) == min(params, count)
    assert min(sizes) >= 1
    assert params < 1000 or max(sizes) > 10 * min(sizes)


@pytest.mark.parametrize("option", ["params", "clients", "runs"])
def test_sizes_are_checked_first(option: str) -> None:
    numbers: dict[str, Any] = {option: 0}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(fold.run(**numbers))


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = list(fold.run())
    assert [m.case for m in found] == list(fold.CASES)
    assert all("umbel[torch]" in str(m.absent) for m in found)
