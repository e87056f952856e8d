"""`umbel bench step`: a whole run in small; that its peer is Flower's: tests of torch_step."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from umbel.benchmarks import flower_step, step
from umbel.protocol.errors import SettingsError


def test_a_small_run_has_every_case_with_peer_and_limit() -> None:
    lines = [m.line() for m in step.run(params=5000, runs=1)]
    assert [line["case"] for line in lines] == [*step.CASES, *step.IN_TORCH]
    assert all(line["unit"] == "s" and line["ratio"] and line["of_limit"] for line in lines)
    assert [str(line["peer_name"]).split()[-1] for line in lines] == [
        "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM",
    ] * 2  # fmt: skip


def test_flowers_fedadam_widens_the_model_and_the_others_do_not() -> None:
    start = {"w": np.zeros(3, np.float32)}
    found = {
        name: flower_step.Peer(name, {}, start).step({"w": np.ones(3, np.float32)})["w"].dtype
        for name in step.CASES
    }
    assert found["adam"] == np.float64
    assert {found[name] for name in ("yogi", "adagrad", "momentum")} == {np.dtype(np.float32)}


@pytest.mark.parametrize("option", ["params", "runs"])
def test_sizes_are_checked_first(option: str) -> None:
    numbers: dict[str, Any] = {option: 0}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(step.run(**numbers))


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = list(step.run(params=1000, runs=1))
    assert [m.case for m in found] == [*step.CASES, *step.IN_TORCH]
    assert all(m.samples for m in found[:4])
    assert all("umbel[torch]" in str(m.absent) for m in found[4:])
