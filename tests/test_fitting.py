"""A fleet out of ledgers: known fleets are found again, and rounds come as its plan says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.cli import main
from umbel.protocol.errors import SettingsError, StateError
from umbel.server.ledger import Ledger
from umbel.server.run_directory import RunDirectory
from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.rounds import rounds as expected
from umbel.simulation.clock.synchronous import Terms
from umbel.simulation.fitting.fit import fit, update
from umbel.simulation.fitting.moved import Moved, as_text
from umbel.simulation.fitting.observed import observe
from umbel.simulation.fitting.written import text
from umbel.simulation.fleet.declared import Site
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.fitted_ledgers import DOWN, UP, Sessions, node, simulated

if TYPE_CHECKING:
    from pathlib import Path

MEDIANS = [0.3, 0.35, 0.4, 0.5, 0.3, 0.35, 0.4, 0.8]
SITES = ["St. Mary's"] * 4 + ["south"] * 4


def job(clients: int) -> Job:
    """Return 60 rounds of everybody."""
    return Job(
        clients=clients, cohort=clients, invited=clients, quorum=clients, rounds=60,
        deadline=600.0, load=Load(down=DOWN, up=UP, epochs=2), parameters=1000,
    )  # fmt: skip


def test_a_federations_devices_are_found_again(tmp_path: Path) -> None:
    """Errors of estimation: 0.3 / sqrt(40) of a median, as much by its drawing together."""
    Sessions(medians=MEDIANS, sites=SITES, dropout=0.05).write(tmp_path, "one", 40)
    learned = fit(observe(tmp_path, ["one"]))
    assert [c.site for c in learned.description.cohorts] == ["St--Mary-s"] * 4 + ["south"] * 4
    # 50 examples and two epochs, from the sums: their product is what the plan multiplies by.
    medians = [100 * c.speed.ends()[0] for c in learned.description.cohorts]
    for found, known in zip(medians, MEDIANS, strict=True):
        assert abs(math.log(found / known)) < 4 * 0.3 / math.sqrt(40)
    for cohort in learned.description.cohorts:
        assert cohort.behaviour.spread == pytest.approx(0.3, rel=0.35)
        assert cohort.behaviour.dropout == pytest.approx(0.05, abs=0.08)
        assert cohort.uplink is not None
        assert UP / cohort.uplink.ends()[0] == pytest.approx(0.01, rel=0.15)
    assert learned.description.server.overhead == pytest.approx(0.05, rel=0.35)
    assert learned.description.server.spread == pytest.approx(0.3, rel=0.5)
    moved = {item.what: item for item in learned.moved}
    assert moved["devices: median seconds to be ready"].before is None
    assert moved["devices: median seconds to be ready"].observations == 8 * 39
    assert moved["server: own seconds"].observations < 40  # rounds that lost somebody say nothing


def test_a_cold_start_is_no_habit(tmp_path: Path) -> None:
    """The first answers of a run take two seconds more; the next run's are left out, too."""
    Sessions(medians=MEDIANS, cold=2.0).write(tmp_path, "one", 20)
    Sessions(medians=MEDIANS).write(tmp_path, "two", 20)
    cold, warm = (fit(observe(tmp_path, [run])).description for run in ("one", "two"))
    for one, two in zip(cold.cohorts, warm.cohorts, strict=True):
        assert one.behaviour.spread == pytest.approx(two.behaviour.spread, rel=0.35)
        assert one.behaviour.spread < 0.45
    assert len(observe(tmp_path, ["one", "two"]).took[node(0)]) == 2 * 19
    Sessions(medians=MEDIANS).write(tmp_path, "few", 5)  # of few rounds none can be spared
    assert len(observe(tmp_path, ["few"]).took[node(0)]) == 5


def test_rounds_that_follow_come_as_the_plan_says(tmp_path: Path) -> None:
    """Over 6 federations: 60 rounds each after a fit on 20."""
    places = []
    for seed in range(6):
        rng = np.random.default_rng([9, seed])
        made = Sessions(medians=np.exp(rng.normal(-1, 0.2, 8)).tolist(), seed=seed)
        made.write(tmp_path, f"fit-{seed}", 20)
        later = made.write(tmp_path, f"then-{seed}", 60)
        found = fit(observe(tmp_path, [f"fit-{seed}"])).description
        seconds = expected(found, job(8), seed).seconds
        places += [seconds.share(value) for value in later]
    # 360 rounds whose federations' estimates err together: about 1.6 % binomial, 2.5 % of those.
    assert np.mean(np.array(places) <= 0.9) == pytest.approx(0.9, abs=0.06)
    parts = np.histogram(places, 5, (0, 1))[0] / len(places)
    assert parts.min() > 0.1
    assert parts.max() < 0.3


FLEET = """
seed = 4
[cohorts.phones]
count = 60
site = "mobile"
samples = 20
speed = { lognormal = { median = 1.0, sigma = 0.5 } }
downlink = 1e4
uplink = 2e3
spread = 0.3
dropout = 0.1
crash = 0.05
[cohorts.boxes]
count = 40
site = "north"
samples = 20
speed = 0.5
bandwidth = 1e5
spread = 0.1
[sites.north]
outage = 0.2
correlation = 0.0
[sites.mobile]
correlation = 0.2
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fleet whose run of 500 rounds among 100 devices lies beside its file."""
    home = tmp_path_factory.mktemp("virtual")
    file = home / "fleet.toml"
    file.write_text(FLEET)
    load = Load(down=DOWN, up=UP, epochs=2)
    terms = Terms(cohort=30, invited=50, deadline=600.0, quorum=1, load=load)
    simulated(home, "virtual", read(file).fleet(100, 0), 500, terms, epochs=2)
    return file


def test_a_simulated_fleet_is_found_again(fleet: Path) -> None:
    observed = observe(fleet.parent, ["virtual"])
    assert observed.work == (20, 2)
    found = fit(observed).description
    phones, boxes = found.cohorts[1], found.cohorts[0]
    assert (phones.name, boxes.name) == ("phones", "boxes")
    assert (phones.count, boxes.count) == (60, 40)
    times = read(fleet).fleet(100, 0).profiles.speed.astype(float) * 40 + DOWN / 1e4
    known = {node(n): float(times[n]) for n in range(60)}
    speeds = phones.speed.draw(0, 11, np.arange(60, dtype=np.uint64))  # type: ignore[arg-type]
    errors = [
        math.log(40 * speed / known[name])
        for name, speed in zip(sorted(known), speeds.tolist(), strict=True)
    ]
    # Slow devices are bounds mostly.
    assert np.median(np.abs(errors)) < 0.1
    assert abs(np.median(errors)) < 0.05
    assert np.abs(errors).max() < 0.5
    assert phones.behaviour.spread == pytest.approx(0.3, abs=0.04)
    assert boxes.behaviour.spread == pytest.approx(0.1, abs=0.02)
    assert phones.behaviour.dropout == pytest.approx(0.1, abs=0.02)
    assert phones.behaviour.crash == pytest.approx(0.05, abs=0.012)
    assert boxes.behaviour.dropout < 0.002
    assert found.sites["boxes"].outage == pytest.approx(0.2, abs=0.15)
    assert found.server.overhead == 0.0


def test_a_description_is_moved_by_what_was_seen(tmp_path: Path, fleet: Path) -> None:
    thought = tmp_path / "thought.toml"
    thought.write_text(
        FLEET.replace("median = 1.0", "median = 0.25").replace("dropout = 0.1", "dropout = 0.3")
    )
    learned = update(read(thought), observe(fleet.parent, ["virtual"]))
    phones = learned.description.cohorts[0]
    moved = {item.what: item for item in learned.moved}
    # 40 samples' seconds and the model's on its way, 0.6 s; before 40 * 0.25 and 0.6.
    assert moved["phones: median seconds to be ready"].before == pytest.approx(10.6, rel=0.1)
    assert moved["phones: median seconds to be ready"].after == pytest.approx(40.6, rel=0.25)
    assert moved["phones: dropout"].before == 0.3
    assert phones.behaviour.dropout == pytest.approx(0.1, abs=0.02)
    assert learned.description.clients == 100
    assert phones.downlink == read(thought).cohorts[0].downlink
    speeds = phones.speed.draw(0, 11, np.arange(60, dtype=np.uint64))  # type: ignore[arg-type]
    known = read(fleet).fleet(100, 0).profiles.speed[:60]
    assert np.median(np.abs(np.log(speeds / known))) < 0.1
    boxes = moved["boxes: median seconds to be ready"]
    assert boxes.factor == pytest.approx(1.0, abs=0.03)


def test_little_that_is_seen_moves_little(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[cohorts.all]\nshare = 1\nsite = "north"\nsamples = 50\nbandwidth = 1e9\n'
        "speed = { lognormal = { median = 0.05, sigma = 0.3 } }\ndropout = 0.2\nspread = 0.3\n"
    )
    Sessions(medians=[1.0, 1.1], spread=0.1).write(tmp_path, "short", 2)
    learned = update(read(file), observe(tmp_path, ["short"]))
    moved = {item.what: item for item in learned.moved}
    # Two devices at a fifth of the 5 s that were thought, which is worth one; theirs is worth less
    # than two for two rounds each.
    share = math.log(5.0 / moved["all: median seconds to be ready"].after) / math.log(5.0 / 1.05)
    assert 1 / 2 < share < 2 / 3
    assert moved["all: dropout"].after == pytest.approx(0.2 * 10 / 14, rel=0.01)


def test_a_site_gets_an_outage_only_where_one_was_said_or_seen(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    cohort = "samples = 50\nspeed = 0.05\nbandwidth = 1e9\ncount = 4\nsite = "
    file.write_text(
        f'[cohorts.a]\n{cohort}"north"\n[cohorts.b]\n{cohort}"south"\n[sites.south]\noutage = 0.2\n'
    )
    calm = Sessions(medians=[1.0] * 8, sites=["north"] * 4 + ["south"] * 4)
    calm.write(tmp_path, "calm", 5)
    learned = update(read(file), observe(tmp_path, ["calm"]))
    assert learned.description.sites["north"] == Site()
    # two hours: the first round was asked for just before the second one begins
    assert learned.description.sites["south"].outage == pytest.approx(0.2 * 10 / 12)
    assert "[sites.north]" not in text(learned.description)
    calm.dropout = 1.0
    calm.write(tmp_path, "silent", 5)
    learned = update(read(file), observe(tmp_path, ["silent"]))
    assert learned.description.sites["north"].outage == pytest.approx((0.001 + 2) / 3)


def test_what_is_written_reads_the_same(tmp_path: Path, fleet: Path) -> None:
    description = fit(observe(fleet.parent, ["virtual"])).description
    file = tmp_path / "again.toml"
    file.write_text(text(description, ["a comment"]))
    again = read(file)
    assert [c.name for c in again.cohorts] == [c.name for c in description.cohorts]
    one, two = description.fleet(100, 3), again.fleet(100, 3)
    load = Load(down=DOWN, up=UP, epochs=2)
    ids = np.arange(100)
    for left, right in zip(one.times(ids, 1, load), two.times(ids, 1, load), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    assert again.server == description.server
    assert {n: round(s.outage, 8) for n, s in again.sites.items()} == {
        n: round(s.outage, 8) for n, s in description.sites.items() if s.outage or s.correlation
    }
    rich = read(fleet)
    file.write_text(text(rich))
    assert replace(read(file), path=rich.path, digest="") == replace(rich, digest="")


def test_names_that_no_cohort_has(tmp_path: Path) -> None:
    Sessions(medians=[1.0, 1.0, 1.0], sites=["a", "b", "b"]).write(tmp_path, "one", 3)
    file = tmp_path / "fleet.toml"
    cohort = 'samples = 1\nspeed = 1\nbandwidth = 1e6\nshare = 1\nsite = "a"\n'
    file.write_text(f"[cohorts.x]\n{cohort}[cohorts.y]\n{cohort}")
    with pytest.raises(SettingsError, match="one cohort of the name or the site 'a'"):
        update(read(file), observe(tmp_path, ["one"]))
    file.write_text(f"[cohorts.x]\n{cohort}")
    update(read(file), observe(tmp_path, ["one"]))  # one cohort takes them all


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    Sessions(medians=MEDIANS).write(tmp_path, "one", 20)
    file = tmp_path / "fleet.toml"
    assert main(["fleet", "fit", "one", "-o", str(file)]) == 0
    out = capsys.readouterr().out
    assert "20 rounds among 8 devices" in out
    assert "devices: median seconds to be ready" in out
    assert read(file).clients == 8
    assert main(["fleet", "fit", "one", "--prior", str(file), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rounds"] == 20
    assert {"what", "before", "after", "factor"} <= set(answer["moved"][0])
    assert main(["fleet", "show", str(file)]) == 0


def test_a_plan_is_told_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file says 5 s a round, the runs about half of one."""
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[cohorts.all]\ncount = 8\nsite = "north"\nsamples = 50\nspeed = 0.05\n'
        "bandwidth = 1e6\nspread = 0.3\n"
    )
    Sessions(medians=MEDIANS).write(tmp_path, "one", 20)
    words = ["plan", str(file), "--parameters", "1000", "-c", "local-epochs=2", "--format", "json"]
    plans = []
    for more in ([], ["--runs", "one"]):
        assert main([*words, *more]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[0]["measured"] is None
    assert plans[0]["round"]["p50"] > 5
    assert plans[1]["round"]["p50"] < 1.5
    assert (plans[1]["measured"]["runs"], plans[1]["measured"]["rounds"]) == (["one"], 20)
    first = plans[1]["measured"]["moved"][0]
    assert first["what"] == "all: median seconds to be ready"
    assert first["factor"] == pytest.approx(first["after"] / first["before"])
    assert plans[0]["fleet"]["digest"] == plans[1]["fleet"]["digest"]


def test_runs_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="none"):
        observe(tmp_path, ["none"])
    with RunDirectory.create(tmp_path, "old") as directory:
        directory.ledger.create_run("old", "2026-01-01T00:00:00Z", {}, "on")
    with pytest.raises(StateError, match="say when their clients answered"):
        observe(tmp_path, ["old"])
    Sessions(medians=[1.0] * 3).write(tmp_path, "two", 1)
    with Ledger(tmp_path / "runs" / "two" / "ledger.sqlite") as ledger:
        record = replace(ledger.rounds()[0], round=2)
        event = replace(ledger.events()[-1], round=2, detail={"names": "{}"})
        ledger.commit_round(record, event)
    with pytest.raises(StateError, match="rows as they were written"):
        observe(tmp_path, ["two"])


def test_one_hour_is_no_hours() -> None:
    rows = (Moved("a", 0.5, 1.0, 4, 1, "hours"), Moved("b", None, 1.0, 4, 10, "hours"))
    assert [row.split()[-2:] for row in as_text(rows).splitlines()[1:]] == [
        ["1", "hour"], ["10", "hours"],
    ]  # fmt: skip
