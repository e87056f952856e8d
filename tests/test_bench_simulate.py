"""`umbel bench simulate`: workloads by hand, each engine in small, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.benchmarks import simulate, simulation_work
from umbel.benchmarks.simulation_work import WORKLOADS, Workload
from umbel.protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

torch_simulation = pytest.importorskip(
    "umbel.benchmarks.torch_simulation", reason="the workloads' models are torch's"
)
torch_workloads = pytest.importorskip(
    "umbel.benchmarks.torch_workloads", reason="the workloads' models are torch's"
)
SMALL = Workload(clients=12, cohort=4, shape=(784,), samples=23)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Write the data of a small workload under the name of a large one."""
    threads = torch_simulation.torch.get_num_threads()
    monkeypatch.setitem(WORKLOADS, "mlp", SMALL)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    simulation_work.write_data("mlp", tmp_path)
    yield tmp_path
    torch_simulation.torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "parameters", "operations"),
    [("mlp", 60_430, 12.1e6), ("cnn", 60_328, 306e6), ("cifar", 1_626_442, 4.97e9)],
)
def test_models_have_their_parameters_and_operations(
    name: str, parameters: int, operations: float
) -> None:
    net = torch_workloads.model(name)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert torch_workloads.flop(name) == pytest.approx(operations, rel=0.01)


def test_everybody_reads_the_same_data_and_trains_the_same_cohort(small: Path) -> None:
    inputs, labels = simulation_work.mapped(small)
    assert inputs.shape == (12 * 23, 784)
    assert labels.shape == (12 * 23,)
    assert inputs.dtype == np.float32
    means = np.array([inputs[labels == digit].mean(axis=0) for digit in range(10)])
    assert 0.5 < means.std() < 0.7  # prototypes of 0.6, and little noise left of about 27 images
    assert WORKLOADS["cnn"].drawn(0).tolist() == (
        np.random.RandomState(1000).choice(1000, 100, replace=False).tolist()
    )


@pytest.mark.parametrize("what", ["T3", "rows/T3", "T2"])
def test_a_tiers_rounds_are_the_loops(small: Path, what: str) -> None:
    seconds = torch_simulation.tiered(what, "mlp", small, 2)
    assert len(seconds) == 2


def test_a_tier_that_trains_something_else_is_found_out(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_workloads, "LR", 0.1001)  # the loop's; the task has its own
    with pytest.raises(ValueError, match=r"after one round: .* from the plain loop's"):
        torch_simulation.tiered("T2", "mlp", small, 2)


def test_loop_and_flower_app_print_a_round_each(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from umbel.benchmarks import flower_simulation  # noqa: PLC0415 - registers apps

    torch_workloads.main(["mlp", str(small), "3"])
    monkeypatch.setenv(flower_simulation.ASKED, json.dumps(["mlp", str(small), 3]))
    flower_simulation._kept.cache_clear()
    flower_simulation.run("T3", "mlp")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line) for line in lines] == [3, 3]
    assert min(map(min, lines)) > 0


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"model": "resnet"}, "--model: expected one of mlp, cnn, cifar"),
        ({"only": "umbel/T9"}, "--only: expected cases among umbel/T0"),
        ({"runs": 0}, "--runs: expected 1 or more"),
        ({"rounds": 1}, "--rounds: expected 2 or more"),
        ({"peer_rounds": 1}, "--peer-rounds: expected 2 or more"),
    ],
)
def test_numbers_are_checked_first(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong):
        next(simulate.run(**options))


def test_each_figure_stands_beside_its_peers() -> None:
    bench = object.__new__(simulate._Bench)
    bench._model, bench._limit = "mlp", 30_000.0
    bench._rates = {"umbel/T0": [9000.0], "flower": [75.0], "pfl": [900.0]}
    bench._absent = {"umbel/T1": "no compiler"}
    lines = [m.line() for m in bench.measurements(["umbel/T0", "umbel/T1", "flower"])]
    assert [(m["case"], m["peer_name"], m["ratio"]) for m in lines] == [
        ("umbel/T0", "flower, mlp", 120.0),
        ("umbel/T0/pfl", "pfl, mlp", 10.0),
        ("umbel/T1", "flower, mlp", None),
        ("flower", None, None),
    ]
    assert lines[0]["of_limit"] == 0.3


@pytest.mark.slow
def test_a_turn_of_everything_that_needs_no_peer() -> None:
    python = str(Path(sys.executable).with_name("no-such-python"))
    only = "umbel/T3,umbel/T3-task,umbel/rows,torch-loop,flower,pfl"
    found = {
        m.case: m
        for m in simulate.run(runs=1, rounds=2, peer_rounds=2, only=only, peers_python=python)
    }
    assert set(found) == set(only.split(","))
    for case, measurement in found.items():
        if case in simulate.PEERS:
            assert "no-such-python" in str(measurement.absent)
        else:
            assert measurement.samples[0] > 1
            assert measurement.limit > measurement.samples[0]  # type: ignore[operator]
