"""docs/flower-apps.md holds: the plain app runs unchanged, and ten lines make it secure.

One federation for the secure app: `umbel up --keep`, `flwr run` from a plain shell, `umbel down`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host.programs import command_path

ROOT = Path(__file__).resolve().parents[1]
PLAIN = ROOT / "examples" / "flower-digits"
UMBEL = (sys.executable, "-m", "umbel")


def change() -> str:
    """Return the diff that the page shows."""
    page = (ROOT / "docs" / "flower-apps.md").read_text("utf-8")
    (found,) = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    return str(found)


def applied(diff: str, folder: Path) -> None:
    """Apply a unified diff: every line of context and every removed one must be there."""
    for part in re.split(r"^--- .*\n", diff, flags=re.MULTILINE)[1:]:
        named, body = part.split("\n", 1)
        file = folder / named.removeprefix("+++ ")
        old, new, taken = file.read_text("utf-8").splitlines(), [], 0
        for begin, hunk in re.findall(r"^@@ -(\d+).*@@\n((?:[ +-].*\n?)*)", body, re.MULTILINE):
            new += old[taken : int(begin) - 1]
            taken = int(begin) - 1
            for line in hunk.splitlines():
                if line[0] != "+":
                    assert old[taken] == line[1:]
                    taken += 1
                if line[0] != "-":
                    new.append(line[1:])
        file.write_text("\n".join([*new, *old[taken:]]) + "\n", "utf-8")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the app with the page's change applied."""
    app = tmp_path_factory.mktemp("a") / "flower-digits"
    shutil.copytree(PLAIN, app, ignore=shutil.ignore_patterns("__pycache__"))
    applied(change(), app)
    return app


def _env(home: Path) -> dict[str, str]:
    return os.environ | {"UMBEL_HOME": str(home)}


def _umbel(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*UMBEL, *arguments], env=_env(home), cwd=home, capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def _left(home: Path) -> list[str]:
    """Return the command lines of processes that belong to this home, dead ones included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("UMBEL_HOME") == str(home):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def _rounds(home: Path, run: str) -> list[dict[str, Any]]:
    shown = json.loads(_umbel(home, "runs", "show", run, "--format", "json").stdout)
    assert shown["run"]["security"] == "on (development CA)"
    return list(shown["rounds"])


def test_the_change_is_ten_lines(secured: Path) -> None:
    lines = [line for line in change().splitlines() if re.match(r"[+-](?!\+\+ |-- )", line)]
    assert len(lines) <= 10
    for file in sorted(secured.rglob("*.py")):
        compile(file.read_text("utf-8"), str(file), "exec")
        before = (PLAIN / file.relative_to(secured)).read_text("utf-8")
        assert "umbel" not in before


@pytest.mark.slow
def test_plain_and_secure_learn_the_same(
    secured: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("h")
    plain = _umbel(
        home, "up", str(PLAIN), "--secure", "off", "--edge", "3", "--rounds", "1",
        "--format", "json",
    )  # fmt: skip
    answer = json.loads(plain.stdout)
    assert answer["outcome"] == "completed"
    assert answer["security"].startswith("off")
    (evaluated,) = re.findall(r"'loss': ([\d.]+), 'accuracy': ([\d.]+)}", plain.stderr)[:1]
    assert "norm of the final weights" in plain.stderr
    assert _left(home) == []

    up = _umbel(
        home, "up", str(secured), "--edge", "3", "--rounds", "2", "--keep", "--format", "json"
    )
    try:
        first = json.loads(up.stdout)
        _evaluated_in_the_session(first["rounds"], evaluated, 2)
        (flwr_home,) = re.findall(r"FLWR_HOME=(\S+) flwr run \. umbel", up.stderr)
        _from_a_plain_shell(secured, flwr_home)
        (again,) = set(os.listdir(home / "runs")) - {first["run"]}
        _evaluated_in_the_session(_rounds(home, again), evaluated, 3)
    finally:
        down = _umbel(home, "down")
    assert "superlink" in down.stdout
    assert _left(home) == []


SAVED = "print('weights', weights.ravel().tolist())\n"


@pytest.mark.slow
def test_umbels_fedavg_in_a_plain_app_makes_flowers_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same app over the same SuperLink, with one import changed: two rounds of each."""
    home, models = tmp_path_factory.mktemp("h"), []
    for module in ("flwr.serverapp.strategy", "umbel"):
        app = tmp_path_factory.mktemp("a") / "flower-digits"
        shutil.copytree(PLAIN, app, ignore=shutil.ignore_patterns("__pycache__"))
        file = app / "flower_digits" / "server_app.py"
        code = file.read_text("utf-8").replace("from flwr.serverapp.strategy", f"from {module}")
        file.write_text(f"{code}    {SAVED}", "utf-8")
        done = _umbel(
            home, "up", str(app), "--secure", "off", "--edge", "2", "--rounds", "2",
            "--format", "json",
        )  # fmt: skip
        assert json.loads(done.stdout)["outcome"] == "completed"
        assert "pulled whole" not in done.stderr
        (found,) = re.findall(r"weights (\[.*?\])", done.stderr)
        models.append(json.loads(found))
    theirs, ours = models
    assert len(ours) == 640
    assert ours == pytest.approx(theirs, rel=0, abs=2.4e-7 * max(map(abs, theirs)))
    assert _left(home) == []


def _evaluated_in_the_session(
    rounds: list[dict[str, Any]], evaluated: tuple[str, str], count: int
) -> None:
    """The model after round 1 was measured in round 2, with Flower's own numbers."""
    assert [r["phase"] for r in rounds] == ["train"] * count + ["evaluate"]
    assert all(len(r["survivors"]) == 3 for r in rounds)
    found = rounds[1]["metrics"]
    assert found["eval.loss"] == pytest.approx(float(evaluated[0]), abs=1e-5)
    assert found["eval.accuracy"] == pytest.approx(float(evaluated[1]), abs=1e-6)
    assert rounds[-1]["metrics"]["eval.accuracy"] > found["eval.accuracy"]


def _from_a_plain_shell(app: Path, flwr_home: str) -> None:
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [command_path("flwr"), "run", ".", "umbel", "--stream"],
        cwd=app, env=plain | {"FLWR_HOME": flwr_home}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "norm of the final weights" in done.stdout
