"""Simulated populations: the rounds against a plain loop, the same bits after any kill."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.cli import main
from umbel.protocol.errors import SettingsError, StateError
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.run_directory import RunDirectory
from umbel.simulation.clock.choosing import Pace, clock_for
from umbel.simulation.federation import node_id
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.strategies.optimizers import SGD
from umbel.strategies.staleness import weighting
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests.simulated_runs import ROUNDS, Points, digest, killed, points, run

if TYPE_CHECKING:
    from umbel.server.ledger import RoundRecord


def test_every_round_is_the_weighted_mean_of_its_cohort(tmp_path: Path) -> None:
    result = run(tmp_path, {"rounds": 4, "lr": 0.1, "local-epochs": 2})
    assert [record.outcome for record in result.records] == ["finished"] * 4
    trainer = TaskTrainer(Points())
    model = trainer.arrays(0)
    for record in result.records:
        settings = Settings(lr=0.1, epochs=2, round=record.round)
        mean = {name: np.zeros(array.shape) for name, array in model.items()}
        weight, loss = 0, 0.0
        for client in (result.names[node] for node in record.roster):
            site = umbel.Site(partition=client, partitions=20)
            found = trainer.train(model, site, settings)
            weight, loss = weight + client + 1, loss + found.metrics["train.loss"]
            for name, delta in found.deltas.items():
                mean[name] += (client + 1.0) * delta
        model = {n: a + (mean[n] / weight).astype(np.float32) for n, a in model.items()}
        assert record.metrics["train.loss"] == pytest.approx(loss / weight / 2)
        assert record.metrics["weight.mean"] == weight / 6
    for name, array in model.items():
        np.testing.assert_allclose(result.model[name], array, rtol=0, atol=1e-6)


def test_the_record_names_who_trained_and_where_the_time_went(tmp_path: Path) -> None:
    result = run(tmp_path, {"rounds": 3, "client-test-every": 2, "test-every": 2})
    one, two, three = result.records
    assert all(
        len(record.roster) == 6 and record.survivors == record.roster for record in result.records
    )
    index = result.names[one.roster[0]]
    assert one.roster[0] == node_id(0, index).hex()
    assert set(one.seconds) == {"decide", "train", "aggregate", "idle"}
    assert set(two.seconds) == {"decide", "train", "aggregate", "evaluate", "idle"}
    assert (one.metrics["clients.invited"], one.metrics["clients.refused"]) == (6.0, 0.0)
    assert "test.accuracy" not in one.metrics
    assert "eval.accuracy" not in one.metrics
    assert {"test.accuracy", "eval.accuracy", "clients.accuracy.p10"} <= set(two.metrics)
    assert "test.accuracy" in three.metrics  # the last is tested whatever its number
    with RunDirectory.open(tmp_path, "r") as directory:
        config = directory.ledger.run().config
        assert config["simulation"]["tier"] == "T3"
        assert config["simulation"]["reason"].startswith("tier T3")
        assert directory.ledger.rounds() == result.records


def test_the_spread_over_clients_is_that_of_the_received_model(tmp_path: Path) -> None:
    result = run(tmp_path, {"rounds": 1, "client-test-every": 1})
    (record,) = result.records
    trainer = TaskTrainer(Points())
    trainer.load(trainer.arrays(0))
    right = []
    for node in record.roster:
        inputs, labels = points(result.names[node] + 1, result.names[node])
        right.append(np.mean(trainer._engine.model.forward(inputs).argmax(1) == labels))
    for q in (10, 50, 90):
        assert record.metrics[f"clients.accuracy.p{q}"] == pytest.approx(np.percentile(right, q))


class Diverges(Points):
    """Client 3 has an infinite example, client 4 raises."""

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return one client's."""
        inputs, labels = super().train_data(site)
        if site.index == 4:
            raise RuntimeError("no such file")
        return (np.full_like(inputs, np.inf) if site.index == 3 else inputs), labels


def test_who_diverges_is_named_and_in_no_sum(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 6, "rounds": 1, "tier": "T3"}
    options = umbel.Options(run="r", home=tmp_path, secure=False, settings=settings)
    with np.errstate(all="ignore"):
        result = umbel.simulate(Diverges(), options)
    (record,) = result.records
    lost = {node_id(0, i).hex(): i for i in (3, 4)}
    assert set(record.roster) - set(record.survivors) == set(lost)
    assert record.metrics["clients.refused"] == 2.0
    assert record.metrics["weight.mean"] == (1 + 2 + 3 + 6) / 4
    with RunDirectory.open(tmp_path, "r") as directory:
        said = {lost[e.node]: e.code for e in directory.ledger.events() if e.kind == "refused"}
    assert said == {3: "REASON_NOT_FINITE", 4: "REASON_TASK_FAILED"}
    assert [line.partition(":")[0] for line in result.refusals] == ["client 4"]


class Prices(Points):
    """Targets of 10^5: squares of 10^10, and steps that are small all the same."""

    loss, optimizer = "mse", SGD(lr=1e-7)

    def model(self) -> umbel.MLP:
        """Return one output."""
        return umbel.MLP(5, 4, 1)

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return 20 examples."""
        inputs, labels = points(20, site.index)
        return inputs, (labels[:, None] + 1e5).astype(np.float32)

    def test_data(self) -> Any:
        """Return none."""


def test_a_loss_that_no_device_could_send_is_warned_of_once(tmp_path: Path) -> None:
    """The clients of sessions, which do send, all refuse: so would a deployment's."""
    said: dict[str, Any] = {"clients": 4, "cohort": 0, "rounds": 2, "workers": 1, "tier": "T3"}
    found, sessions = (
        umbel.simulate(Prices(), umbel.Options(home=tmp_path, secure=False, settings=settings))
        for settings in (said, {**said, "hand-over": "rows", "rounds": 1})
    )
    assert found.failure is None
    (line,) = found.warnings
    assert re.search(r"the loss of 4 of 4 clients.*above 2\.68435e\+08: devices refuse", line)
    assert sessions.failure is not None
    assert len(sessions.refusals) == 4
    assert all("metric 'loss': expected" in line for line in sessions.refusals)
    usual = umbel.simulate(Points(), umbel.Options(home=tmp_path, secure=False, settings=said))
    assert not [line for line in usual.warnings if "devices" in line]


def test_a_million_registered_clients_cost_nothing_a_round(tmp_path: Path) -> None:
    class Even(Points):
        def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
            return points(4, site.index)

    settings: dict[str, Any] = {"clients": 1_000_000, "rounds": 2, "cohort": 5, "tier": "T3"}
    options = umbel.Options(run="r", home=tmp_path, secure=False, settings=settings)
    result = umbel.simulate(Even(), options)
    assert len(result.names) == 10
    assert max(result.names.values()) > 1000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tier": "T9"}, "tier: expected one of T0, T1, T2, T3, auto"),
        ({"hand-over": "all"}, "hand-over: expected one of auto, sum, rows"),
        ({"workers": -1}, "workers: expected 0 to 1024, got -1"),
        ({"test-every": -1}, "test-every: expected 0 to"),
        ({"hand-over": "sum", "robust": "median"}, "hand-over: expected rows, because"),
    ],
)
def test_a_setting_outside_its_range_is_named(settings: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words):
        run(tmp_path, settings)
    assert list(tmp_path.iterdir()) == []


# ---- the same bits -----------------------------------------------------------------------------

RULES: dict[str, Any] = {"strategy": "fedadam", "server-eta": 0.01}
FLEET = """
[cohorts.all]
share = 1
samples = 10
speed = { lognormal = { median = 0.1, sigma = 1.0 } }
bandwidth = { loguniform = [1e3, 1e5] }
jitter = 0.2
dropout = 0.1
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the hash of a run that nothing disturbs."""
    return digest(run(tmp_path_factory.mktemp("whole"), RULES))


@pytest.mark.parametrize("tier", ["T0", "T3"])
def test_any_number_of_workers_gives_the_same_bits(tier: str, tmp_path: Path) -> None:
    if tier == "T0" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler for the native tier")
    found = set()
    for workers in (1, 2, 3):
        settings = {"rounds": 4, "tier": tier, "workers": workers}
        result = run(tmp_path / f"{workers}", settings)
        assert result.trained_by.startswith(f"tier {tier} ")
        found.add(digest(result))
    assert len(found) == 1


def test_sessions_may_have_a_tier_train_for_them(tmp_path: Path) -> None:
    def over_sessions(name: str, **more: Any) -> umbel.Result:
        settings: dict[str, Any] = {"clients": 4, "rounds": 2, **more}
        return umbel.simulate(Points(), umbel.Options(run=name, home=tmp_path, settings=settings))

    alone, together = over_sessions("alone"), over_sessions("together", tier="T3")
    assert (alone.trained_by, together.trained_by[:8]) == ("", "tier T3 ")
    assert together.security == "on (development CA)"
    assert digest(alone) == digest(together)


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["T0", "T1"])
def test_a_killed_run_of_a_fast_tier_goes_on_with_the_same_bits(tier: str, tmp_path: Path) -> None:
    settings = {"tier": tier, "model": "torch", "rounds": 40}
    hashes = {digest(run(tmp_path / f"{n}", {**settings, "workers": n})) for n in (1, 2, 3)}
    rng = np.random.default_rng(5)
    for point in range(20 if tier == "T0" else 4):
        home = tmp_path / f"killed {point}"
        killed(home, settings, int(rng.integers(1, 40)), float(rng.uniform(0, 0.02)), slow=0.005)
        hashes.add(digest(run(home, settings, resume=True)))
    assert len(hashes) == 1


@pytest.mark.parametrize(("line", "after"), [(1, 0.05), (9, 0.0), (ROUNDS, 0.01)])
def test_a_killed_run_goes_on_with_the_same_bits(
    line: int, after: float, whole: str, tmp_path: Path
) -> None:
    killed(tmp_path, RULES, line, after)
    result = run(tmp_path, RULES, resume=(tmp_path / "runs").exists())
    assert digest(result) == whole
    with RunDirectory.open(tmp_path, "r") as directory:
        directory.ledger.verify()
        finished = [r.round for r in directory.ledger.rounds() if r.outcome == "finished"]
        assert finished == list(range(1, ROUNDS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_killed_anywhere(seed: int, whole: str, tmp_path: Path) -> None:
    """Two kills a run, at moments of which the seed knows."""
    rng = np.random.default_rng(seed)
    for _ in range(2):
        killed(tmp_path, RULES, int(rng.integers(1, ROUNDS // 2)), float(rng.uniform(0, 0.02)))
    assert digest(run(tmp_path, RULES, resume=True)) == whole


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings of an asynchronous run, over a fleet."""
    file = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    file.write_text(FLEET)
    return {"fleet": str(file), "cohort": 9, "buffer": 3, "rounds": ROUNDS}


def test_an_asynchronous_run_trains_from_the_models_of_its_launches(
    asynchronous: dict[str, Any], tmp_path: Path
) -> None:
    models: dict[int, dict[str, Any]] = {}
    options = umbel.Options(
        run="r", home=tmp_path, secure=False,
        settings={"clients": 20, "tier": "T3", **asynchronous, "rounds": 12},
    )  # fmt: skip
    result = umbel.simulate(Points(), options)
    ages = {
        int(name.removeprefix("staleness.")): count
        for record in result.records
        for name, count in record.metrics.items()
        if name.startswith("staleness.")
    }
    assert max(ages) >= 3  # somebody starts from a model that is long gone
    times = [record.metrics["clock.closed"] for record in result.records]
    assert times == sorted(times)
    assert times[0] > 0
    # Played again by hand, from the decisions of an equal clock.
    trainer, weights = TaskTrainer(Points()), weighting("polynomial 0.5")
    models[0] = trainer.arrays(0)
    message = MessageLayout(Manifest.of(models[0]), trainer.declared(), "train")
    load = Load(down=message.manifest.total_bytes, up=message.total_bytes)
    fleet = read(Path(asynchronous["fleet"])).fleet(20, 0)
    clock = clock_for(fleet, 20, Pace(cohort=9, seed=0, buffer=3, load=load, deadline=600.0))
    for number in range(1, 13):
        decision = clock.decide(number)
        assert decision.models is not None
        assert decision.launches is not None
        mean, weight = {n: np.zeros(a.shape) for n, a in models[0].items()}, 0
        factors = weights(number - 1 - decision.models)
        for client, launch, version, factor in zip(
            decision.used, decision.launches, decision.models, factors, strict=True
        ):
            site = umbel.Site(partition=int(client), partitions=20)
            found = trainer.train(models[int(version)], site, Settings(round=int(launch)))
            weight += int(client) + 1
            for name, delta in found.deltas.items():
                mean[name] += (int(client) + 1) * factor * delta
        before = models[number - 1]
        models[number] = {n: a + (mean[n] / weight).astype(np.float32) for n, a in before.items()}
    for name, array in models[12].items():
        np.testing.assert_allclose(result.model[name], array, rtol=0, atol=2e-6)


@pytest.mark.parametrize("line", [14, 25])
def test_a_killed_asynchronous_run_goes_on_with_the_same_bits(
    line: int, asynchronous: dict[str, Any], tmp_path: Path
) -> None:
    whole = digest(run(tmp_path / "whole", asynchronous))
    killed(tmp_path / "parts", asynchronous, line, 0.0, slow=0.02)
    with RunDirectory.open(tmp_path / "parts", "r") as directory:
        assert directory.stored_extra(directory.latest() or 0)["versions"]  # older models are kept
    assert digest(run(tmp_path / "parts", asynchronous, resume=True)) == whole


def test_a_robust_rule_gets_the_rows_of_a_cohort(tmp_path: Path) -> None:
    result = run(tmp_path, {"rounds": 1, "robust": "median", "robust-byzantine": 1})
    (record,) = result.records
    trainer = TaskTrainer(Points())
    model = trainer.arrays(0)
    updates = [
        trainer.train(
            model, umbel.Site(partition=result.names[node], partitions=20), Settings(round=1)
        ).deltas
        for node in record.roster
    ]
    for name, array in model.items():
        expected = array + np.median([update[name] for update in updates], axis=0)
        np.testing.assert_allclose(result.model[name], expected, rtol=0, atol=1e-6)
    assert not list(result.path.glob("umbel-rows-*"))


def test_the_command_takes_a_run_of_an_app_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(
        '[tool.umbel]\ntask = "simulated_app:Points"\nclients = 8\nrounds = 6\ntier = "T3"\n'
    )
    (app / "simulated_app.py").write_text("from umbel.tests.simulated_runs import Points\n")
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))

    def interrupted(record: RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    def begin(name: str, observe: Any) -> umbel.Result:
        options = umbel.Options(run=name, secure=False, settings={"cohort": 5, "lr": 0.3})
        return umbel.simulate(app, options, observe)

    with pytest.raises(KeyboardInterrupt):
        begin("broken", interrupted)
    whole = begin("whole", lambda _record: None)
    source = app / "simulated_app.py"
    for name, changed in ((source.name, source.read_text() + "#\n"), ("more.py", "")):
        before = source.read_bytes()
        (app / name).write_text(changed)
        assert main(["runs", "resume", "broken"]) == 2
        assert re.search(
            r"^umbel: app /.*/app: expected the sources [0-9a-f]{16} that the run began with, got "
            r"[0-9a-f]{16}; restore the app, or start a new run of it$", capsys.readouterr().err
        )  # fmt: skip
        (app / "more.py").unlink(missing_ok=True)
        source.write_bytes(before)
    for name in (".venv", "env", "__pycache__"):  # what is none of the app's own
        (app / name).mkdir(exist_ok=True)
        (app / name / "pyvenv.cfg").touch()
        (app / name / "other.py").touch()
    (app / "data.csv").write_text("1,2\n")
    assert main(["runs", "resume", "broken"]) == 0
    assert "round 4/6" in capsys.readouterr().out
    with RunDirectory.open(tmp_path, "broken") as directory:
        assert directory.digest(6).hex() == whole.records[-1].model
    assert main(["runs", "resume", "broken"]) == 0
    assert "broken is over" in capsys.readouterr().out


def test_a_run_that_is_not_there_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="expected a run, got no such run"):
        run(tmp_path, {}, resume=True)


def test_json_can_hold_what_stands_beside_a_model(tmp_path: Path) -> None:
    run(tmp_path, {"rounds": 1})
    with RunDirectory.open(tmp_path, "r") as directory:
        extra = directory.stored_extra(1)
    assert json.loads(json.dumps(extra)) == {"clock": {}, "versions": []}
