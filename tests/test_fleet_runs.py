"""Simulated runs over a fleet: who trains is what the clock says, and nobody else does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.protocol.errors import SettingsError, StateError
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.simulation.clock.buffered import Buffered, Flow
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.counter import uniform
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.profiles import ArrayFleet, Profiles
from umbel.simulation.fleet.sites import word_of
from umbel.simulation.fleet.toml import read
from umbel.simulation.run import plan
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests import large_async
from umbel.tests.simulated_runs import CLIENTS, Points, digest, killed, run

if TYPE_CHECKING:
    from umbel.simulation.federation import Result

FLEET = """
seed = 5
[cohorts.phones]
share = 0.7
site = "north"
samples = { loguniform = [10, 100] }
speed = { lognormal = { median = 0.5, sigma = 1 } }
bandwidth = { loguniform = [1e3, 1e5] }
spread = 0.2
dropout = 0.1
crash = 0.1
[cohorts.phones.online]
hours = { uniform = [4, 12] }
from = { uniform = [0, 24] }
[cohorts.boxes]
share = 0.3
samples = 200
speed = 0.01
bandwidth = 1e6
[sites.north]
outage = 0.2
correlation = 0.3
"""
ASYNC: dict[str, Any] = {"buffer": 4, "cohort": 7, "staleness": "polynomial 0.5", "lr": 0.1}
FLOORS: dict[str, Any] = {"min-members": 2, "min-survivors": 2}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET, "utf-8")
    return file


def load() -> Load:
    """Return what a client of `Points` gets and sends."""
    trainer = TaskTrainer(Points())
    manifest = Manifest.of(trainer.arrays(0))
    layout = MessageLayout(manifest, trainer.declared("train"), "train")
    return Load(down=manifest.total_bytes, up=layout.total_bytes, epochs=1)


def rosters(result: Result) -> list[list[int]]:
    return [[result.names[node] for node in record.roster] for record in result.records]


def test_who_trains_is_what_the_clock_says(tmp_path: Path, fleet: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()

    class Notes(Points):
        def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
            (seen / f"{site.round}-{site.index}").touch()
            return super().train_data(site)

    settings = {"clients": 40, "rounds": 8, "cohort": 6, "tier": "T3", "dropout": 0.3,
                "deadline": 90.0, "fleet": str(fleet), **FLOORS, "attempts": 3}  # fmt: skip
    options = umbel.Options(run="r", home=tmp_path, secure=False, settings=settings)
    result = umbel.simulate(Notes(), options)
    # P[Binomial(14, 0.7) >= 6] = 0.992, of 13 it is 0.982
    terms = Terms(cohort=6, invited=14, deadline=90, quorum=2, load=load())
    clock = Synchronous(read(fleet).fleet(40, 0), terms)
    for record, used in zip(result.records, rosters(result), strict=True):
        decision = clock.decide(record.round)
        assert used == decision.used.tolist()
        trained = {file.name for file in seen.glob(f"{record.round}-*")}
        # Round 1 is also what the tier is tried on.
        assert trained == {f"{record.round}-{client}" for client in used} or record.round == 1
        for name in ("late", "lost", "offline", "crashed"):
            assert record.metrics[f"clients.{name}"] == len(getattr(decision, name))
        assert record.metrics["clock.closed"] == decision.closed
    gone = ("late", "lost", "offline", "crashed")
    assert sum(r.metrics[f"clients.{name}"] for r in result.records for name in gone) > 10


def test_an_asynchronous_run_is_fedbuff(tmp_path: Path, fleet: Path) -> None:
    settings = {"rounds": 12, "fleet": str(fleet), **ASYNC, **FLOORS}
    result = run(tmp_path, settings)
    flow = Flow(concurrency=7, buffer=4, staleness="polynomial 0.5", deadline=600, load=load())
    clock, trainer = Buffered(read(fleet).fleet(CLIENTS, 0), flow), TaskTrainer(Points())
    models, old = {0: trainer.arrays(0)}, 0
    for record in result.records:
        decision = clock.decide(record.round)
        assert decision.launches is not None
        assert decision.models is not None
        mean, weight = {n: np.zeros(a.shape) for n, a in models[0].items()}, 0
        for client, launch, version in zip(
            decision.used.tolist(),
            decision.launches.tolist(),
            decision.models.tolist(),
            strict=True,
        ):
            site = umbel.Site(partition=client, partitions=CLIENTS)
            found = trainer.train(models[version], site, Settings(lr=0.1, epochs=1, round=launch))
            stale, weight = record.round - 1 - version, weight + client + 1
            old += stale
            for name, delta in found.deltas.items():
                mean[name] += (client + 1) * (1 + stale) ** -0.5 * delta.astype(np.float64)
        before = models[record.round - 1]
        models[record.round] = {
            name: array + (mean[name] / weight).astype(np.float32) for name, array in before.items()
        }
        assert record.metrics["clock.closed"] == decision.closed
    assert old > 10
    for name, array in models[12].items():
        assert np.abs(array - models[0][name]).max() > 1e-2
        np.testing.assert_allclose(result.model[name], array, rtol=0, atol=1e-5)


def test_a_killed_run_over_a_fleet_goes_on_with_the_same_bits(tmp_path: Path, fleet: Path) -> None:
    said = {"deadline": 60.0, "attempts": 5, "dropout": 0.4, **FLOORS, "fleet": str(fleet)}
    whole = digest(run(tmp_path / "whole", said))
    line = killed(tmp_path / "killed", said, 9, 0.0)
    assert line >= 9
    assert digest(run(tmp_path / "killed", said, resume=True)) == whole


@pytest.mark.parametrize(
    ("old", "new"), [("crash = 0.1", "crash = 0.2"), ("outage = 0.2", "outage = 0.3")]
)
def test_another_fleet_does_not_go_on(tmp_path: Path, fleet: Path, old: str, new: str) -> None:
    said = {**ASYNC, **FLOORS, "fleet": str(fleet), "rounds": 2}
    run(tmp_path / "home", said)
    fleet.write_text(FLEET.replace(old, new), "utf-8")
    with pytest.raises(StateError, match=r"expected the fleet of its start, got another"):
        run(tmp_path / "home", said, resume=True)


def test_rounds_of_a_site_that_is_cut_off_are_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    text = """
        seed = 3
        [cohorts.all]
        share = 1
        site = "north"
        samples = 1
        speed = 900
        bandwidth = 1e6
        [sites.north]
        outage = 0.5
    """
    file.write_text(text, "utf-8")
    said = {"rounds": 12, "cohort": 4, "deadline": 1200.0, "attempts": 30, "fleet": str(file)}
    result = run(tmp_path / "home", {**said, **FLOORS})
    clock = Synchronous(
        read(file).fleet(CLIENTS, 0),
        Terms(cohort=4, invited=4, deadline=1200, quorum=2, load=load()),
    )
    for record in result.records:
        decision = clock.decide(record.round, record.attempt - result.records[0].attempt)
        cut = uniform(3, 17, word_of("north"), int(decision.opened) // 3600) < 0.5
        assert (record.outcome == "aborted") == (decision.void is not None) == cut
        assert record.metrics["clock.closed"] == decision.closed
        assert record.metrics["clients.lost"] == (4 if cut else 0)
    outcomes = [record.outcome for record in result.records]
    assert outcomes.count("finished") == 12
    assert outcomes.count("aborted") > 5


def test_a_fleet_from_python(tmp_path: Path) -> None:
    devices = ArrayFleet(Profiles.of(20, samples=1, speed=np.arange(20.0)))
    options = umbel.Options(
        run="r", home=tmp_path, secure=False, fleet=devices,
        settings={"clients": 20, "rounds": 2, "tier": "T3", "deadline": 4.5},
    )  # fmt: skip
    result = umbel.simulate(Points(), options)
    assert [sorted(roster) for roster in rosters(result)] == [[0, 1, 2, 3, 4]] * 2
    assert result.records[1].metrics["clock.closed"] == 9


def test_as_many_clients_as_a_fleet_counts_unless_the_caller_says(tmp_path: Path) -> None:
    """The rule of a plan, with an app that says 5."""
    counted = tmp_path / "fleet.toml"
    counted.write_text(
        FLEET.replace("share = 0.7", "count = 4").replace("share = 0.3", "count = 5")
    )
    app = Path(__file__).resolve().parents[1] / "examples" / "digits"
    own = tmp_path / "digits"
    shutil.copytree(app, own)
    assert plan(own, umbel.Options(secure=False)).clients == 5
    made = plan(own, umbel.Options(secure=False, fleet=counted))
    assert made.clients == made.simulated.clients == 9
    assert made.simulated.started["settings"]["clients"] == 9  # a run that is taken up has as many
    assert plan(own, umbel.Options(secure=False, fleet=counted, clients=20)).clients == 20
    shares = tmp_path / "shares.toml"
    shares.write_text(FLEET)
    assert plan(own, umbel.Options(secure=False, fleet=shares)).clients == 5
    devices = ArrayFleet(Profiles.of(20, samples=1))
    assert plan(Points(), umbel.Options(secure=False, fleet=devices)).clients == 20
    # who names both may not contradict himself
    about = own / "pyproject.toml"
    about.write_text(
        about.read_text().replace("[tool.umbel]\n", f'[tool.umbel]\nfleet = "{counted}"\n')
    )
    found = plan(own, umbel.Options(secure=False))
    with pytest.raises(SettingsError, match="cohorts of 5 clients together, got 9"):
        found.simulated.devices(0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"buffer": 3}, r"buffer: expected 0 without a fleet, got 3"),
        ({"staleness": "some"}, r"staleness: expected constant, `polynomial A`"),
        ({"fleet": "there.toml"}, r"there\.toml: expected the description of a fleet"),
        (
            {"fleet": "COUNTED"},
            r"cohorts of 20 clients together, got 9; ask for 9",
        ),
        ({"fleet": "FLEET", "hand-over": "rows"}, r"fleet: expected a run without sessions, got"),
        ({"buffer": 3, "hand-over": "rows"}, r"buffer: expected a run without sessions, got"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, fleet: Path, settings: dict[str, Any], words: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    if settings.get("fleet") == "COUNTED":
        fleet.write_text(
            FLEET.replace("share = 0.7", "count = 4").replace("share = 0.3", "count = 5")
        )
    if settings.get("fleet", "there.toml") != "there.toml":
        settings = {**settings, "fleet": str(fleet)}
    with pytest.raises(SettingsError, match=words):
        run(home, settings)
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_ten_thousand_clients_asynchronously_within_4_gb(tmp_path: Path, fleet: Path) -> None:
    command = [sys.executable, "-m", "umbel.tests.large_async", str(tmp_path), str(fleet)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["finished"] == large_async.ROUNDS
    assert said["oldest"] > 10  # so many models were live
    assert said["peak"] < 1 << 30
