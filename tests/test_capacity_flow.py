"""What a plan expects of an asynchronous run: by hand, and beside the virtual clock."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.cli import main
from umbel.simulation.capacity.flow import WORK, flow
from umbel.simulation.capacity.job import Job
from umbel.simulation.clock.buffered import Buffered, Flow
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.random_fleets import case

if TYPE_CHECKING:
    from umbel.simulation.fleet.description import Description

CLOSE = 0.05
LONG = {10: 16_000}
"""Versions of a fleet of 20 who are there for seven hours a day: 4,000 would be a single day."""


def job(clients: int, at_work: int, buffer: int, rounds: int, **more: Any) -> Job:
    given: dict[str, Any] = {"deadline": 1000.0, "load": Load()}
    return Job(
        clients=clients, cohort=at_work, invited=at_work, quorum=1, rounds=rounds,
        parameters=1000, buffer=buffer, staleness="polynomial 0.5", **(given | more),
    )  # fmt: skip


def described(folder: Path, text: str) -> Description:
    path = folder / "fleet.toml"
    path.write_text(text, "utf-8")
    return read(path)


def one(name: str, count: int, speed: float, more: str = "") -> str:
    about = f"count = {count}\nsamples = 10\nspeed = {speed}\nbandwidth = 1e6\n"
    return f"[cohorts.{name}]\n{about}{more}"


def test_devices_that_are_alike_come_in_step(tmp_path: Path) -> None:
    """4 at work come together every 5 s: 2 fill a buffer, the others the next one at once."""
    found = flow(described(tmp_path, one("a", 30, 0.5)), job(30, 4, 2, 20), seed=4)
    assert found.expected.total.at(0.5) == pytest.approx(10 * 5)
    assert sorted(set(found.expected.seconds.values.tolist())) == pytest.approx([0.0, 5.0])
    # Of the 4 that are asked at one moment two start when the first buffer is full, one when its
    # second one has half, one when that is full. So of two updates one saw two versions made, one
    # saw one; in the first two rounds all began with the first model, or the second.
    assert found.ages.tolist() == pytest.approx([2 / 40, 20 / 40, 18 / 40])
    (took,) = found.expected.clients
    assert [took.used, took.asked] == pytest.approx([2, 2])
    assert took.work == pytest.approx(10)


def test_who_is_twice_as_fast_brings_twice_as_many(tmp_path: Path) -> None:
    """All are always at work: in 12 s each fast one sends 4, each slow one 2."""
    fleet = described(tmp_path, one("fast", 5, 0.3) + one("slow", 5, 0.6))
    found = flow(fleet, job(10, 10, 1, 300), seed=4)
    assert found.used.tolist() == pytest.approx([2 / 3, 1 / 3], abs=0.01)
    assert found.expected.total.at(0.5) == pytest.approx(300 * 12 / 30, rel=0.02)
    mean = float(found.ages @ np.arange(len(found.ages)))
    assert mean == pytest.approx(9, abs=0.3)  # Little's law: 10 at work, one version an update


def test_what_never_arrives_ends_a_run(tmp_path: Path) -> None:
    fleet = described(tmp_path, one("a", 6, 0.1, 'site = "n"\n') + "[sites.n]\noutage = 1.0\n")
    found = flow(fleet, job(6, 3, 2, 2, attempts=2), seed=4, work=1)
    assert (found.expected.miss, found.expected.run_lost, found.expected.tries) == (1, 1, 4)
    assert found.expected.total.at(0.01) == math.inf
    # 200 launches for each of 3 at work and 2 of a buffer, 3 at a time, 1 s each
    assert found.expected.seconds.at(0.5) == pytest.approx(200 * 5 / 3, abs=1)
    assert found.expected.clients[0].lost == pytest.approx(1000)


def test_who_works_for_longer_than_the_deadline_is_given_up(tmp_path: Path) -> None:
    fleet = described(tmp_path, one("fast", 5, 0.1) + one("slow", 5, 9.0))
    found = flow(fleet, job(10, 10, 1, 100, deadline=20.0), seed=4)
    fast, slow = found.expected.clients
    assert (slow.used, fast.late) == (0, 0)
    assert slow.work == pytest.approx(20 * slow.late)
    assert found.used.tolist() == [1, 0]
    assert found.slowest == 0


def beside(fleet: Description, wanted: Job, count: int, work: float = WORK) -> None:
    """Compare with rounds of the clock."""
    found = flow(fleet, wanted, seed=0, work=work)
    terms = Flow(
        concurrency=wanted.cohort, buffer=wanted.buffer, deadline=wanted.deadline,
        load=wanted.load, seed=1,
    )  # fmt: skip
    clock = Buffered(fleet.fleet(wanted.clients, 0), terms)
    shown = [clock.decide(number) for number in range(1, count + 1)]
    gaps = np.array([made.closed - made.opened for made in shown])
    for share in (0.5, 0.9):
        value = np.sort(gaps)[math.ceil(share * count) - 1]
        assert found.expected.seconds.at(share) == pytest.approx(value, rel=CLOSE), share
    total = found.expected.total  # the clock's is that of one run, whose days have their luck
    assert (1 - CLOSE) * total.at(0.05) <= clock.now <= (1 + CLOSE) * total.at(0.95)
    ages = np.concatenate([made.staleness for made in shown])
    mean = float(found.ages @ np.arange(len(found.ages)))
    assert mean == pytest.approx(ages.mean(), rel=CLOSE, abs=0.02)
    ends = np.mean([np.bincount(made.outcomes, minlength=5) for made in shown], axis=0)
    for name, counted in zip(("used", "late", "lost", "offline", "crashed"), ends, strict=True):
        told = sum(getattr(took, name) for took in found.expected.clients)
        assert told == pytest.approx(counted, abs=0.01 + 0.03 * ends.sum()), name
    for name, values in (("work", "seconds"), ("received", "received"), ("sent", "sent")):
        told = sum(getattr(took, name) for took in found.expected.clients)
        counted = np.mean([getattr(made, values).sum() for made in shown])
        assert told == pytest.approx(counted, rel=CLOSE), name


def wanted(seed: int, rounds: int, folder: Path) -> tuple[Description, Job]:
    """Return a random fleet whose sites lose nothing together, and an asynchronous run over it.

    In a few hours an outage or a bad hour is there or not, and no number is near both.
    """
    made = case(seed)
    fleet = described(folder, re.sub(r"(outage|correlation) = \S+", r"\1 = 0", made.text))
    buffer = max(2, made.cohort // 4)
    at_work = min(made.cohort, made.clients - buffer)
    load = Load(down=made.down, up=made.up)
    shape = job(made.clients, at_work, buffer, rounds, deadline=made.deadline, load=load)
    return fleet, shape


@pytest.mark.parametrize("seed", [3])
def test_a_random_fleet_is_predicted_as_the_clock_shows_it(seed: int, tmp_path: Path) -> None:
    beside(*wanted(seed, 200, tmp_path), 200, work=60_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_random_fleets_are_predicted_as_the_clock_shows_them(
    seed: int, tmp_path: Path
) -> None:
    count = LONG.get(seed, 4000)
    beside(*wanted(seed, count, tmp_path), count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("online", "at_work", "count"),
    [
        ("hours = 7\nfrom = { uniform = [0, 24] }", 40, 9000),
        ("hours = 7\nfrom = { uniform = [0, 24] }", 10, 9000),
        ('trace = "online.json"', 20, 1500),
    ],
)
def test_a_fleet_that_is_often_away_is_predicted_as_the_clock_shows_it(
    online: str, at_work: int, count: int, tmp_path: Path
) -> None:
    """Few of 40 are online, or nobody who is free; recorded windows come and go by the minute."""
    rows = {
        "0": {"active": [21_600, 108_000], "inactive": [64_800, 151_200], "finish_time": 172_800},
        "1": {"active": [0, 64_800], "inactive": [21_600, 108_000], "finish_time": 172_800},
        "2": {"active": [0, 400], "inactive": [100, 460], "finish_time": 600},
    }
    (tmp_path / "online.json").write_text(json.dumps(rows), "utf-8")
    speed = "{ lognormal = { median = 10, sigma = 0.6 } }"
    about = f"dropout = 0.05\ncrash = 0.03\nspread = 0.2\n[cohorts.a.online]\n{online}\n"
    fleet = described(
        tmp_path, "seed = 3\n" + one("a", 40, 1, about).replace("= 1\n", f"= {speed}\n")
    )
    beside(fleet, job(40, at_work, 5, count), count)


def test_a_run_that_is_too_long_is_followed_on_a_scale(tmp_path: Path) -> None:
    """1,000 of 20,000 at work, 5 s each on average: a buffer of 2,000 fills in 10 s.

    A fifth of both is followed.
    """
    fleet = described(tmp_path, one("a", 20_000, 0.5, "spread = 0.5\n"))
    found = flow(fleet, job(20_000, 1000, 2000, 40), seed=1, work=30_000)
    mean = 5 * math.exp(0.5**2 / 2)
    assert found.expected.total.at(0.5) == pytest.approx(80 * mean, rel=0.01)
    (took,) = found.expected.clients
    assert took.used == pytest.approx(2000)
    assert took.work == pytest.approx(2000 * mean, rel=0.02)


def test_an_asynchronous_run_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(one("fast", 20, 0.3, "jitter = 0.3\n") + one("slow", 20, 0.9), "utf-8")
    command = ["plan", str(path), "--parameters", "1000", "--rounds", "50", "--secure", "off"]
    command += ["-c", "buffer=4", "-c", "cohort=8", "--picture", str(tmp_path / "plan.html")]
    assert main([*command, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    told = plan["asynchronous"]
    assert (told["at_work"], told["buffer"], told["staleness"]["rule"]) == (8, 4, "polynomial 0.5")
    assert sum(share for _, share in told["staleness"]["shares"]) == pytest.approx(1)
    # who is asked is drawn from all, and those who are free are more often fast
    assert told["updates"]["fast"] == pytest.approx(0.5, abs=0.08)
    assert plan["total"]["p50"] == pytest.approx(50 * 4 * 6 / 8, rel=0.1)
    assert plan["quorum"]["invite"] is plan["deadline"]["suggested"] is plan["secure"] is None
    assert plan["quorum"]["line"].startswith("none: ")
    assert {row["name"] for row in plan["sensitivity"]} >= {"training time", "clients at work"}
    assert main(command) == 0
    out = capsys.readouterr().out
    for word in ("version ", "run ", "quorum ", "staleness ", "updates ", "what matters"):
        assert f"\n{word}" in out
    assert "\nask " not in out
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert "How old updates are" in page
    assert "asked for each" not in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "buffer: expected a run without masks, "),
        (("--secure", "off", "-c", "staleness=x"), "staleness: expected constant, "),
        (("--secure", "off", "-c", "buffer=2"), "buffer: expected at least 3, the run's floor"),
        (("--secure", "off", "-c", "buffer=41"), "buffer: expected 1 to 40, the number of clients"),
    ],
)
def test_what_the_run_would_refuse_the_plan_does(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(one("a", 40, 0.3), "utf-8")
    command = ["plan", str(path), "--parameters", "1000", "-c", "buffer=4", *options]
    assert main(command) == 2
    assert said in capsys.readouterr().err


def test_a_plan_is_for_runs_of_its_own_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    path, kept = tmp_path / "fleet.toml", str(tmp_path / "plan.json")
    path.write_text("seed = 1\n" + one("a", 10, 0.3), "utf-8")
    app = str(Path(__file__).resolve().parents[1] / "examples" / "digits")
    shape = ["--secure", "off", "-c", "cohort=6", "--rounds", "3"]
    plan = ["plan", str(path), "--app", app, *shape, "-c", "buffer=4", "-o", kept]
    assert main(plan) == 0
    run = ["simulate", app, *shape, "--clients", "10", "--fleet", str(path), "--plan", kept]
    assert main(run) == 2
    assert "plan: buffer: expected that of the run, 0, got 4" in capsys.readouterr().err
    assert main([*run, "-c", "buffer=4", "--in-process"]) == 0
