"""A real federation whose times are made: rounds come as the plan says that was fitted to others.

SuperLink, SuperNodes, core service and TLS are real; the task of each of eight devices waits for
a log-normal time, another one in each round, which its seed says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
UMBEL = (sys.executable, "-m", "umbel")
CLIENTS, FITTED, PREDICTED = 8, 20, 60
WAITS = '''

class Waits(Digits):
    """Digits of devices that take their time."""

    epochs = 1

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Wait, and return the digits of one partition."""
        import time

        if site.round is not None:
            device = np.random.default_rng([41, site.index]).normal(-0.2, 0.2)
            own = np.random.default_rng([42, site.seed, site.index, site.round]).normal(0, 0.3)
            time.sleep(float(np.exp(device + own)))
        return super().train_data(site)
'''


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which nothing runs at the end."""
    folder = tmp_path_factory.mktemp("h")
    yield folder
    _umbel(folder, "down")


def _umbel(home: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [*UMBEL, *arguments], env=os.environ | {"UMBEL_HOME": str(home)}, cwd=home, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout) if "json" in arguments else done.stdout


def _app(home: Path) -> Path:
    """Return an app whose devices wait."""
    app = home / "digits"
    shutil.copytree(DIGITS, app)
    task = app / "digits" / "task.py"
    task.write_text(task.read_text("utf-8") + WAITS, "utf-8")
    for name in ("client_app", "server_app"):
        file = app / "digits" / f"{name}.py"
        file.write_text(file.read_text("utf-8").replace("Digits", "Waits"), "utf-8")
    project = app / "pyproject.toml"
    project.write_text(project.read_text("utf-8").replace("task:Digits", "task:Waits"), "utf-8")
    return app


def _run(home: Path, app: Path, rounds: int, seed: int) -> tuple[str, list[float]]:
    """Run the federation; return its run and the seconds of each round."""
    answer = _umbel(
        home, "up", str(app), "--edge", str(CLIENTS), "--gpu", "0", "--rounds", str(rounds),
        "-c", f"seed={seed}", "--format", "json",
    )  # fmt: skip
    run = str(answer["run"])
    with RunDirectory.open(home, run) as directory:
        records = [r for r in directory.ledger.rounds() if r.phase == "train"]
    assert [r.outcome for r in records] == ["finished"] * rounds
    assert {len(r.survivors) for r in records} == {CLIENTS}
    return run, [sum(r.seconds.values()) for r in records]


def test_sixty_rounds_come_as_twenty_have_said(home: Path) -> None:
    app = _app(home)
    run, seen = _run(home, app, FITTED, seed=9)
    fleet = home / "fleet.toml"
    print("\n" + _umbel(home, "fleet", "fit", run, "-o", str(fleet)))
    plan = _umbel(
        home, "plan", str(fleet), "--app", str(app), "--rounds", str(PREDICTED), "--format", "json"
    )
    later = _run(home, app, PREDICTED, seed=10)[1]
    within = float(np.mean(np.array(later) <= plan["round"]["p90"]))
    shares, values = np.array(plan["round"]["quantiles"]).T
    places = np.interp(later, values, shares, left=0.0, right=1.0)
    parts = np.histogram(places, 5, (0, 1))[0]
    print(f"p50 {plan['round']['p50']:.3f} s, p90 {plan['round']['p90']:.3f} s")
    print(f"seen {np.median(seen):.3f} s, then {np.median(later):.3f} s; within p90 {within:.1%}")
    print("places in fifths", parts.tolist(), "largest", sorted(later)[-5:])
    assert 0.80 <= within <= 0.97
    # Sixty rounds in five parts of twelve: as uneven by chance, and by the fit, once in thousands.
    assert parts.min() >= 2
    assert parts.max() <= 26
