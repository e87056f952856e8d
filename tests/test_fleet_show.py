"""`umbel fleet show`: what devices a description yields, by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel import cli
from umbel.simulation.fleet.shown import bar

if TYPE_CHECKING:
    from pathlib import Path

FLEET = """
seed = 3
[cohorts.phones]
share = 3
site = "north"
samples = { choice = [10, 20, 30], weights = [2, 6, 2] }
speed = 0.5
downlink = 1000
uplink = 500
dropout = 0.1
crash = 0.05
memory = { uniform = [1e9, 2e9] }
online = { hours = 8 }
[cohorts.boxes]
share = 1
samples = 40
speed = { uniform = [1, 2] }
bandwidth = 2e6
[sites.north]
outage = 0.2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET, "utf-8")
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["fleet", "show", *arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_numbers_are_the_description_s(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, str(file), "--clients", "20000", "--bytes", "2000")
    phones, boxes = found["cohorts"]
    assert (found["clients"], found["seed"]) == (20000, 3)
    assert phones["clients"] + boxes["clients"] == 20000
    assert phones["clients"] / 20000 == pytest.approx(0.75, abs=0.013)
    assert phones["samples"] == [10, 20, 30]
    assert (phones["downlink"], phones["uplink"]) == ([1000] * 3, [500] * 3)
    assert phones["memory"] == pytest.approx([1.1e9, 1.5e9, 1.9e9], rel=0.02)
    assert phones["seconds"] == [2 + 5 + 4, 2 + 10 + 4, 2 + 15 + 4]
    assert phones["lost"] == pytest.approx(0.1 + 0.9 * 0.2)
    assert phones["crashed"] == 0.05
    assert boxes["memory"] is None
    assert boxes["speed"] == pytest.approx([1.1, 1.5, 1.9], rel=0.02)
    assert boxes["online"] == [1.0] * 24
    # It comes from 0 to 4.8 o'clock, all alike, and stays for eight hours.
    middle = np.arange(24) + 0.5
    wanted = np.minimum(middle / 4.8, 1) - np.clip((middle - 8) / 4.8, 0, 1)
    assert phones["online"] == pytest.approx(wanted.tolist(), abs=0.02)
    assert found["sites"] == {"north": {"outage": 0.2, "correlation": 0}}


def test_a_person_reads_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fleet", "show", str(file), "--bytes", "2000"]) == 0
    text = capsys.readouterr().out
    load = "a round has 2.0 kB down, 2.0 kB up and 1 epoch"
    assert text.startswith(f"{file}: 10,000 clients, seed 3; {load}\n\nphones at north: ")
    rows = [line.split() for line in text.splitlines()]
    assert ["down,", "a", "second", *["1.0", "kB"] * 3] in rows
    assert ["seconds", "a", "round", "11", "16", "21"] in rows
    assert "  lost 28.00%, breaks off 5.00%\n" in text
    assert "site north: cut off in 20.00% of hours" in text
    (bars,) = (line for line in text.splitlines() if "hours 0 to 23: [▁" in line)
    assert bars.endswith("           ]")


def test_a_share_is_a_bar() -> None:
    assert bar([0.0, 0.001, 0.5, 0.51, 1.0]) == " ▁▄▅█"


def test_a_counted_fleet_has_its_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[cohorts.a]\ncount = 7\nsamples = 1\nspeed = 1\nbandwidth = 9\n", "utf-8")
    assert answer(capsys, str(path), "--seed", "5")["clients"] == 7
    assert cli.main(["fleet", "show", str(path), "--clients", "8"]) == 2
    assert "cohorts of 8 clients together, got 7; ask for 7" in capsys.readouterr().err
