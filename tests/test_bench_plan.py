"""`umbel bench plan` in small, and the memory of a plan of a million devices."""

from __future__ import annotations

import pytest

from umbel.benchmarks import plan


@pytest.mark.slow
def test_a_small_run_has_every_case() -> None:
    lines = [m.line() for m in plan.run(clients=1000, cohort=5, rounds=10, params=100, runs=1)]
    assert [(line["case"], line["unit"]) for line in lines] == [
        ("devices=1e3/seconds", "s"),
        ("devices=1e3/memory", "MiB"),
        ("devices=1e3/cohort=250/seconds", "s"),
        ("devices=1e3/cohort=250/memory", "MiB"),
    ]
    assert all(line["peer"] is None for line in lines)
