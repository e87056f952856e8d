"""What `umbel plan` says of fleets whose devices are lost together, against exact fractions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from umbel.cli import main
from umbel.simulation.capacity.losses import Group, Losses
from umbel.simulation.fleet.declared import Site
from umbel.tests.two_level import F, Place, claims, exact, fleet

ALONE = [Place(40, F(1, 50), outage=F(7, 100))]
MORE = [Place(10, F(1, 20), outage=F(1, 10)), Place(14, F(1, 20))]
TIED = [Place(14, F(1, 10), tie=F(1, 4)), Place(10, F(1, 10), tie=F(1, 4))]
FLEETS = [
    (ALONE, 30, 23, "outages of site s0"),
    (MORE, 14, 9, "outages of site s0"),
    (TIED, 22, 16, "losses that go together"),
]


@pytest.mark.parametrize(("places", "asked", "needed", "why"), FLEETS)
def test_a_plan_says_where_independence_would_claim_99_percent_and_it_is_below_95(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    places: list[Place],
    asked: int,
    needed: int,
    why: str,
) -> None:
    claimed, truth = claims(places, asked, needed)
    assert claimed > F(99, 100) > F(95, 100) > truth
    path = tmp_path / "fleet.toml"
    path.write_text(fleet(places), "utf-8")
    settings = {"cohort": asked, "min-survivors": needed, "deadline": 5000, "attempts": 5}
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    command = ["plan", str(path), "--parameters", "1000", "--rounds", "5", "--secure", "off"]
    assert main([*command, *options, "--format", "json"]) == 0
    quorum = json.loads(capsys.readouterr().out)["quorum"]
    assert quorum["needed"] == needed
    assert quorum["independent"] == pytest.approx(float(1 - claimed), rel=1e-9)
    assert quorum["miss"] == pytest.approx(float(1 - truth), rel=1e-9)
    said = (
        rf"independence would claim (\S+) % for {needed} of {asked} asked; "
        rf"with {why} it is (\S+) %: "
    )
    found = re.match(said, quorum["line"])
    assert found is not None, quorum["line"]
    assert float(found[1]) == pytest.approx(100 * float(claimed), abs=0.01)
    assert float(found[2]) == pytest.approx(100 * float(truth), abs=0.1)
    whole = sum(place.size for place in places)
    certain = [n for n in range(needed, whole + 1) if sum(exact(places, n)[needed:]) >= F(99, 100)]
    advice = f"ask {certain[0]} in place of" if certain else "no number of clients reaches 99 %"
    assert advice in quorum["line"]


def planned(
    path: Path, capsys: pytest.CaptureFixture[str], *options: str, **settings: float
) -> dict[str, Any]:
    given = [w for k, v in settings.items() for w in ("-c", f"{k.replace('_', '-')}={v}")]
    command = ["plan", str(path), "--parameters", "1000", "--rounds", "5", *options, *given]
    assert main([*command, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("line", ['site = "n"', "crash = 1.0"])
def test_masks_of_devices_that_never_deliver_are_void(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "fleet.toml"
    some = "seed = 1\n[cohorts.a]\ncount = 8\nsamples = 10\nspeed = 0.1\nbandwidth = 1e6\n"
    path.write_text(
        some + line + ("\n[sites.n]\noutage = 1.0\n" if "site" in line else ""), "utf-8"
    )
    found = planned(path, capsys)
    assert found["secure"]["void"] == pytest.approx(1.0)
    assert found["quorum"]["miss"] == pytest.approx(1.0)


def test_a_lower_quorum_that_is_advised_is_reached_by_those_who_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All devices would reach 11 with 99 %, the 14 that are asked do not."""
    path = tmp_path / "fleet.toml"
    path.write_text(fleet(MORE), "utf-8")
    shape = {"cohort": 14, "deadline": 5000}
    before = planned(path, capsys, "--secure", "off", min_survivors=13, **shape)
    lower = re.match(r"lower min-survivors to (\d+):", before["first"])
    assert lower is not None, before["first"]
    after = planned(path, capsys, "--secure", "off", min_survivors=int(lower[1]), **shape)
    assert after["quorum"]["miss"] <= 0.01 < before["quorum"]["miss"]
    assert sum(exact(MORE, 14)[: int(lower[1]) + 1]) > F(1, 100)


def test_losses_that_come_together_are_no_lack_of_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet([Place(20, F(1, 10), tie=F(1))]), "utf-8")
    found = planned(path, capsys, "--secure", "off", deadline=5000, min_survivors=12)
    assert found["first"].startswith("spread each site's devices over ")


def test_a_lower_deadline_that_is_advised_loses_no_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some are always lost, and the quorum is there long before the rest has come."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        "seed = 1\n[cohorts.a]\ncount = 50\nsamples = { uniform = [10, 500] }\nspeed = 0.1\n"
        "bandwidth = 1e6\ndropout = 0.2\n",
        "utf-8",
    )
    before = planned(path, capsys, "--secure", "off", deadline=600)
    assert before["first"].startswith("lower the deadline to ")
    lower = before["deadline"]["suggested"]
    after = planned(path, capsys, "--secure", "off", deadline=lower)
    shares = [found["clients"][0]["used"] for found in (before, after)]
    assert shares == [pytest.approx(0.8, abs=0.01)] * 2


def test_sites_that_are_alike_are_counted_like_those_that_are_not() -> None:
    """Two of three sites are alike but for their names."""
    kinds = [(5, 0.1), (4, 0.3)], [(5, 0.1), (4, 0.3)], [(4, 0.1), (5, 0.3)]
    groups = [
        Group(size=n, dropout=p, site=f"s{i}") for i, kind in enumerate(kinds) for n, p in kind
    ]
    sites = {f"s{i}": Site(outage=0.1, correlation=0.2) for i in range(3)}
    one = Losses(groups, sites).arrivals(27).shares
    found = np.ones(1)
    for i in range(3):
        here = [group for group in groups if group.site == f"s{i}"]
        found = np.convolve(found, Losses(here, sites).arrivals(9).shares)
    assert one == pytest.approx(found, abs=1e-14)


def test_a_run_that_void_sums_may_end_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet([Place(60, F(7, 50))]), "utf-8")
    found = planned(path, capsys, deadline=5000, attempts=2)
    void, said = found["secure"]["void"], found["lines"][0]
    lost = 1 - (1 - void**2) ** 5
    assert void > 0.5
    assert found["quorum"]["miss"] == pytest.approx(void, rel=1e-6)
    assert found["quorum"]["run_lost"] == pytest.approx(
        lost, abs=4 * (lost * (1 - lost) / 500) ** 0.5
    )
    assert found["total"]["p50"] is None
    share = re.search(r"(\d+\.\d+|\d+) % of such runs end without a result", said)
    assert share is not None, said
    assert float(share[1]) == pytest.approx(100 * found["quorum"]["run_lost"], abs=0.5)
    assert planned(path, capsys, "--secure", "off", deadline=5000, attempts=2)["lines"] == []


@pytest.mark.parametrize(("speed", "move"), [(1e-6, "-c deadline=1"), (1e3, "at most 21600 s")])
def test_a_deadline_that_is_proposed_is_one_that_a_run_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], speed: float, move: str
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f"[cohorts.a]\ncount = 4\nsamples = 100\nspeed = {speed}\nbandwidth = 1e6\n", "utf-8"
    )
    assert main(["plan", str(path), "--parameters", "1000", "-c", "deadline=1e-3"]) == 2
    assert capsys.readouterr().err.endswith(f"{move}\n")


@pytest.mark.parametrize("flag", ["-o", "--picture"])
def test_a_plan_is_not_written_over_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet([Place(4, F(0))]), "utf-8")
    command = ["plan", str(path), "--parameters", "1000", "-c", "deadline=5000"]
    assert main([*command, flag, "."]) == 2
    assert capsys.readouterr().err.endswith(
        "expected a file that can be written, got Is a directory\n"
    )


def test_a_plan_sees_the_devices_of_its_runs_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, app = tmp_path / "fleet.toml", tmp_path / "digits"
    path.write_text(
        "[cohorts.a]\ncount = 5\nsamples = { uniform = [10, 900] }\nspeed = 0.1\nbandwidth = 1e6\n",
        "utf-8",
    )
    shutil.copytree(Path(__file__).resolve().parents[1] / "examples" / "digits", app)
    about = app / "pyproject.toml"
    about.write_text(about.read_text("utf-8").replace("\nseed = 0\n", "\nseed = 7\n"), "utf-8")
    given = [planned(path, capsys), planned(path, capsys, "--seed", "7")]
    assert given[0]["round"]["p50"] != given[1]["round"]["p50"]
    assert planned(path, capsys, seed=7) == given[1]
    command = ["plan", str(path), "--app", str(app), "--rounds", "5", "--format", "json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seed"] == 7
    speed = found["settings"]["epochs"] / given[1]["settings"]["epochs"]
    ratio = found["round"]["p50"] / given[1]["round"]["p50"]
    assert ratio == pytest.approx(speed, rel=1e-3)


def test_a_run_that_waits_for_devices_is_told_when_they_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve hours from six o'clock on, or up to 4.8 later; ten rounds of two seconds."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        "seed = 1\n[cohorts.a]\ncount = 20\nsamples = 20\nspeed = 0.1\nbandwidth = 1e6\n"
        "online = { hours = 12, from = 6 }\n",
        "utf-8",
    )
    found = planned(path, capsys, "--secure", "off", cohort=5)
    told = re.match(
        r"begin when devices are there, as in hour (\d+), or .* (\S+) % of the run", found["first"]
    )
    assert told is not None, found["first"]
    assert 10 <= int(told[1]) <= 18
    assert float(told[2]) > 99
