"""`umbel bench clock` in small, and the memory of a million clients."""

from __future__ import annotations

from umbel.benchmarks import clock, flower_clock
from umbel.benchmarks.ingest_process import other
from umbel.benchmarks.process_memory import MIB


def test_a_small_run_has_every_case() -> None:
    lines = [m.line() for m in clock.run(clients=10_000, cohort=10, rounds=20, nodes=50, runs=1)]
    assert [(line["case"], line["unit"]) for line in lines] == [
        ("register/1e4", "s"),
        ("memory/1e4", "MiB"),
        ("round/10-of-1e4", "s"),
        ("event/10-of-1e4", "s"),
    ]
    assert lines[2]["peer_name"] == f"{flower_clock.NAME}, one sweep of 50 nodes"
    assert lines[2]["runs"] == 20


def test_a_million_clients_take_at_most_50_mb() -> None:
    with other("clock_process") as process:
        found = process.ask(clients=1_000_000, cohort=100, rounds=20)
    assert found["memory"] <= 50_000_000
    assert found["memory"] >= 20_000_000  # the arrays are there
    assert found["memory"] / MIB > 19
