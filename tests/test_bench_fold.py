"""`umbel bench fold`: arithmetic by hand, the peer's mean, and a whole run in small."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from umbel.benchmarks import flower_fold, fold, torch_fold, torch_ranked_fold
from umbel.benchmarks.layer_sizes import layer_sizes
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.server.core import torch_kernels


def _lines(seconds: dict[str, float]) -> dict[str, dict[str, object]]:
    """Return the cases of 4 clients with 750 million parameters: 12 GB; 1 s each unless given."""
    names = [
        *torch_fold.traffic(4, compiled=False),
        "float/pair",
        "read",
        "peer",
        "stream/1",
        "stream/2",
    ]
    found = {name: [seconds.get(name, 1.0)] for name in names}
    return {m.case: m.line() for m in torch_fold.measurements(found, 4, 750_000_000, False)}


def test_the_figures_of_a_case_by_hand() -> None:
    # 12 GB of updates in 1 s. STREAM took 1.5 s for 36 GB of traffic, 24 GB/s; at 6 bytes of
    # traffic (4, and 8 for a batch of 4) for 4 of an update it would take updates at 16 GB/s.
    lines = _lines({"peer": 8.0, "stream/1": 1.5, "stream/2": 0.75})
    one = lines["float/threads=1"]
    assert (one["umbel"], one["peer"], one["ratio"]) == (12.0, 1.5, 8.0)
    assert (one["limit"], one["of_limit"]) == (16.0, 0.75)
    assert lines["float/threads=2"]["limit"] == 32.0
    # the accumulator once for 4 clients, 2 bytes a value: 6, 4 and 3 bytes
    limits = [lines[f"{name}/threads=1"]["limit"] for name in ("ring", "bf16", "int8")]
    assert limits == [16.0, 24.0, 32.0]
    # 1 % of 4 + 4 bytes and a line of 64 fetched and written back
    assert lines["sparse/threads=1"]["limit"] == pytest.approx(24 * 4 / 1.36, rel=1e-3)


def test_the_traffic_of_eight_rows_in_a_compiled_pass() -> None:
    compiled, torch_s = torch_fold.traffic(32, compiled=True), torch_fold.traffic(32, False)
    assert (compiled["float/threads=1"], compiled["ring/threads=1"]) == (5.0, 5.0)
    assert (torch_s["float/threads=1"], torch_s["ring/threads=1"]) == (6.0, 4.25)


def test_reading_the_updates_is_the_other_limit_and_in_place_the_peer_of_the_pair() -> None:
    lines = _lines({"read": 0.8, "float/pair": 1.25})
    assert (lines["float/read"]["umbel"], lines["float/read"]["of_limit"]) == (12.0, 0.8)
    pair = lines["float/pair"]
    assert (pair["ratio"], pair["peer_name"], pair["of_limit"]) == (0.8, "in place", 0.64)


def test_a_small_run_has_every_case_of_the_table() -> None:
    lines = [m.line() for m in fold.run(params=300_000, clients=19, runs=1, ranks=False)]
    rates, memory = lines[:-2], lines[-2:]
    assert sorted(str(line["case"]) for line in rates) == sorted(fold.CASES)
    assert all(line["unit"] == "GB/s" and line["ratio"] for line in rates)
    assert [line["case"] for line in memory] == ["memory/64-over-8", "memory/named"]
    assert all(0.5 < float(str(line["umbel"])) < 2.0 for line in memory)


@pytest.mark.slow
def test_ranks_fold_too() -> None:
    one, two = (m.line() for m in torch_ranked_fold.cases(50_000, 9, 1))
    assert (one["case"], two["case"]) == fold.RANKED
    assert one["ratio"] == 1.0
    assert one["limit"]
    assert two["ratio"]
    assert two["limit"]


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    list(torch_fold.Race(1000, 2, 1).cases())
    assert torch.get_num_threads() == before


def test_a_fold_that_is_not_the_mean_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "fold", lambda *_: None)
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
    found = list(fold.run(params=300_000, runs=1))
    assert [m.case for m in found[:-2]] == [*fold.CASES, *fold.RANKED]
    assert all("umbel[torch]" in str(m.absent) for m in found[:-2])
    assert all(m.samples for m in found[-2:])
