"""An unchanged Flower app in the simulator: FedAvg's own numbers, history, and commands."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import umbel
from umbel.cli import main
from umbel.protocol.errors import SettingsError, UmbelError
from umbel.server.run_directory import RunDirectory
from umbel.simulation import flower_simulate
from umbel.simulation.flower_simulate import FlowerOptions, run_simulation
from umbel.tests import flower_sim_apps as apps

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Result

DIGITS = Path(__file__).parents[1] / "examples" / "flower-digits"


def test_the_model_is_that_of_a_plain_loop_for_any_number_of_workers(tmp_path: Path) -> None:
    found: list[Result] = []
    before = random.getstate()
    for workers in (1, 2, 3):
        options = FlowerOptions(workers=workers, home=tmp_path, run=f"r{workers}")
        made = run_simulation(apps.server_app(found), apps.client_app(), 5, options=options)
        assert made is not None
        assert made.path == tmp_path / "runs" / f"r{workers}"
    assert random.getstate() == before
    models = [result.arrays.to_numpy_ndarrays() for result in found]
    for got, expected in zip(models[0], apps.looped(3, 5), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert got.dtype == expected.dtype
    for other in models[1:]:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in models[0]]


def test_a_seed_decides_who_trains(tmp_path: Path) -> None:
    rosters = {}
    for run, seed in (("a", 3), ("b", 3), ("c", 4)):
        some = apps.server_app([], fraction_train=0.25, min_train_nodes=2, min_available_nodes=2)
        options = FlowerOptions(workers=1, home=tmp_path, run=run, seed=seed)
        made = run_simulation(some, apps.client_app(), 20, options=options)
        assert made is not None
        rosters[run] = [[made.names[n] for n in record.roster] for record in made.records]
    assert rosters["a"] == rosters["b"] != rosters["c"]
    assert len({tuple(roster) for roster in rosters["a"]}) > 1


def test_the_run_has_a_directory_with_its_rounds_and_models(tmp_path: Path) -> None:
    found: list[Result] = []
    seen: list[tuple[int, float]] = []

    def central(number: int, arrays: Any) -> MetricRecord:
        seen.append((number, float(arrays.to_numpy_ndarrays()[1][0])))
        return MetricRecord({"accuracy": 0.5 + number / 100, "wrong": [1, 2]})

    app = ServerApp()

    @app.main()
    def start(grid: Any, _context: Any) -> None:
        strategy = FedAvg()
        model = ArrayRecord(apps.initial())
        found.append(strategy.start(grid, model, num_rounds=2, evaluate_fn=central))

    options = FlowerOptions(workers=2, home=tmp_path, run="kept", seed=9)
    made = run_simulation(app, apps.client_app(), 4, options=options)
    assert made is not None
    with RunDirectory.open(tmp_path, "kept") as kept:
        kept.ledger.verify()
        records, about = kept.ledger.rounds(), kept.ledger.run()
        assert [(r.round, r.phase, r.outcome) for r in records] == [
            (n, phase, "finished") for n in (1, 2) for phase in ("train", "evaluate")
        ]
        assert records == made.records
        assert about.config["strategy"] == "FedAvg"
        assert about.config["rounds"] == 2
        for record in records:
            assert sorted(made.names[node] for node in record.survivors) == [0, 1, 2, 3]
        for number, first in seen:
            assert kept.read_round(number)["1"][0] == first
        weights = [apps.weight(node) for node in range(4)]
        loss = sum(w / (n + 1) for n, w in enumerate(weights)) / sum(weights)
        assert records[0].metrics["train.loss"] == pytest.approx(loss, rel=1e-12)
        assert [records[0].metrics["test.accuracy"], records[2].metrics["test.accuracy"]] == [
            0.51, 0.52,
        ]  # fmt: skip
        means = found[0].evaluate_metrics_clientapp[2]
        assert records[3].metrics["eval.sum"] == pytest.approx(means["sum"], rel=1e-12)
    assert made.accuracy == 0.52


def test_a_round_without_a_good_reply_is_recorded_with_its_cause(tmp_path: Path) -> None:
    def broken(_message: Any, _context: Any) -> Any:
        raise OSError("the disk")

    options = FlowerOptions(workers=1, home=tmp_path, run="r")
    made = run_simulation(apps.server_app([], 1), apps.client_app(broken), 2, options=options)
    assert made is not None
    (record,) = made.records
    assert record.outcome == "aborted"
    assert re.fullmatch(r"node [01]: OSError: the disk", record.cause)
    assert record.cause in str(made.failure)


def test_what_a_server_app_raises_passes_and_the_pool_is_gone(tmp_path: Path) -> None:
    app = ServerApp()

    @app.main()
    def start(grid: Any, _context: Any) -> None:
        raise LookupError("no such strategy")

    with pytest.raises(LookupError, match="no such strategy"):
        run_simulation(app, apps.client_app(), 3, options=FlowerOptions(home=tmp_path))


@pytest.mark.parametrize(
    ("config", "cores", "workers"),
    [
        ({}, 8, 8),
        ({"client_resources": {"num_cpus": 2, "num_gpus": 0.0}}, 8, 4),
        ({"client-resources": {"num-cpus": 3}}, 8, 2),
        ({"client_resources": {"num_cpus": 64}, "init_args": {"x": 1}}, 8, 1),
        ({"client_resources": {"num_gpus": 0.5}}, 8, 4),
        ({"client_resources": {"num_gpus": 4}}, 8, 1),
    ],
)
def test_flowers_resources_say_how_many_workers(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], cores: int, workers: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert flower_simulate._workers(config) == workers


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"actors": {}}, "backend_config: expected keys among"),
        ({"client_resources": {"num_cpus": -1}}, "client_resources.num_cpus: expected 0 or more"),
        ({"client_resources": {"num_cpus": "2"}}, "client_resources.num_cpus: expected 0 or more"),
    ],
)
def test_a_wrong_configuration_is_named(config: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SettingsError, match=wrong):
        run_simulation(apps.server_app([]), apps.client_app(), 2, backend_config=config)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SettingsError, match="num_supernodes: expected an integer of 1 or more"):
        umbel.run_simulation(apps.server_app([]), apps.client_app(), 0)
    with pytest.raises(SettingsError, match="expected a ServerApp and a ClientApp"):
        umbel.run_simulation(apps.client_app(), apps.server_app([]), 1)  # type: ignore[arg-type]


def test_the_example_runs_unchanged_by_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    asked = ["--clients", "4", "--rounds", "2", "-c", "local-epochs=3", "--workers", "2"]
    assert main(["simulate", str(DIGITS), *asked, "--format", "json", "--run", "fd"]) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert "norm of the final weights" in out.err
    assert [r["phase"] for r in said["rounds"]] == ["train", "evaluate"] * 2
    assert said["rounds"][3]["metrics"]["eval.accuracy"] > 0.8
    assert Path(said["model"]).is_file()
    sys.path.remove(str(DIGITS))


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        (["-c", "lr=0.1"], "run-config: expected a key that the app declares: learning-rate,"),
        (["--in-process"], "--in-process: expected an app with a umbel Task"),
        (["-c", "workers=-1"], "--workers: expected an integer, 0 for one a core"),
        (["--tier", "T0"], "--tier: expected T3 or auto"),
        (["--hand-over", "sum"], "--hand-over: expected an app with a umbel Task"),
        (["--clients", "0"], "clients: expected 1 or more, got 0"),
        (["--clients", "-1"], "clients: expected 1 or more, got -1"),
        (["--run", "../x"], "run id: expected letters, digits"),
    ],
)
def test_what_such_an_app_cannot_have_is_said(
    asked: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(DIGITS), *asked]) == 2
    assert wrong in capsys.readouterr().err


BROKEN = """
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()

@server.main()
def main(grid: Grid, context: Context) -> None:
    print(sorted(context.run_config.items()))
    raise ValueError("no plan")
"""
PYPROJECT = """
[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "simulated_broken:client"
[tool.flwr.app.config]
a.b = 1
[tool.flwr.federations]
default = "sim"
[tool.flwr.federations.sim]
options.num-supernodes = {nodes}
"""


def write_app(folder: Path, server: str = "simulated_broken:server", nodes: object = 3) -> Path:
    (folder / "simulated_broken.py").write_text(BROKEN, "utf-8")
    text = PYPROJECT.format(server=server, nodes=nodes)
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return folder


def test_a_server_apps_error_is_one_line_after_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    app, options = write_app(tmp_path), FlowerOptions(workers=1, home=tmp_path)
    with pytest.raises(UmbelError, match="the ServerApp raised ValueError: no plan; its trace"):
        flower_simulate.simulate_app(app, replace(options, config={"a.b": 2}))
    said = capsys.readouterr()
    assert "[('a.b', 2)]" in said.out
    assert 'raise ValueError("no plan")' in said.err
    with pytest.raises(SettingsError, match="serverapp simulated_broken:client: expected a flwr"):
        flower_simulate.simulate_app(write_app(tmp_path, "simulated_broken:client"), options)
    with pytest.raises(SettingsError, match="num-supernodes: expected an integer of 1 or more"):
        flower_simulate.simulate_app(write_app(tmp_path, nodes=0), options)
    with pytest.raises(SettingsError, match=r"expected 'package\.module:attribute', got 'broken'"):
        flower_simulate.simulate_app(write_app(tmp_path, "broken"), options)
    del sys.modules["simulated_broken"]
