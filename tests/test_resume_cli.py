"""`umbel runs resume`: which runs go on, and what is said of those that do not."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.host.answer_form import Format
from umbel.server.flower_control import build_bundle
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.simulation import up_cli
from umbel.simulation.flower_programs import started
from umbel.simulation.flower_up import Wanted
from umbel.tests.flower_hello import hello

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.simulation.up_plan import UpPlan

# flwr's own, when it bundles an app.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
DONE = (("train", "finished"), ("evaluate", "finished"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory."""
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UMBEL_ROUNDS", "99")  # of now, and no affair of a run of before
    return tmp_path / "home"


def _made(home: Path, app: Path, *rounds: tuple[str, str], **other: object) -> None:
    """Write the run r-1 of `umbel up` with these rounds; `other` stands over its record."""
    bundle = sha256(build_bundle(app)).hexdigest()
    wanted = Wanted(
        app=app, edge=3, gpu=1, home=home, name="lab", settings={"clients": 4}, rounds=9
    )
    about = started(wanted) | {"config": {"lr": 0.5}, "bundle": bundle}
    described = {"rounds": 8, "flower-run": "77", "started": about} | other
    with RunDirectory.create(home, "r-1") as directory:
        directory.ledger.create_run("r-1", "2030-01-01T00:00:00+00:00", described, "on")
        for number, (phase, outcome) in enumerate(rounds):
            record = RoundRecord(round=8, attempt=number, phase=phase, outcome=outcome)
            directory.ledger.commit_round(record)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be brought up."""
    seen: list[Any] = []

    def run_up(plan: UpPlan, name: str, **how: object) -> None:
        seen.append((plan, name, how))

    monkeypatch.setattr(up_cli, "run_up", run_up)
    return seen


def _said(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert cli.main(["runs", "resume", *arguments]) == status
    found = capsys.readouterr()
    return found.out if status == 0 else found.err


def test_a_run_goes_on_as_it_was_started(
    home: Path, tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    app = hello(tmp_path)
    _made(home, app, ("train", "aborted"))
    assert _said(capsys, 0, "r-1", "--keep", "--format", "json") == ""
    ((plan, name, how),) = begun
    assert (plan.app, plan.edge, plan.gpu, plan.secure, plan.drop) == (app, 3, 1, True, 0)
    assert (plan.config, plan.settings, plan.rounds) == ({"lr": 0.5}, {"clients": 4}, 9)
    assert name == "lab"
    assert how == {"keep": True, "form": Format.JSON, "resume": "r-1"}


@pytest.mark.parametrize("rounds", [(), (("train", "aborted"),), (("evaluate", "void"),)])
def test_a_run_that_failed_or_never_began_may_go_on(
    home: Path, tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str], rounds: Any
) -> None:
    _made(home, hello(tmp_path), *rounds)
    _said(capsys, 0, "r-1")
    assert len(begun) == 1


def test_a_run_that_is_over_is_no_error(
    home: Path, tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _made(home, hello(tmp_path), *DONE)
    assert _said(capsys, 0, "r-1") == "r-1 is over: it has done its 8 rounds\n"
    answer = json.loads(_said(capsys, 0, "r-1", "--format", "json"))
    assert answer == {"run": "r-1", "over": True}
    assert begun == []


def test_an_unknown_run_is_one_line(
    home: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"umbel: {home}/runs/r-1: expected a run, got no such run; see `umbel runs list`\n"
    assert _said(capsys, 2, "r-1") == line
    assert begun == []


def test_a_run_that_somebody_writes_is_left_alone(
    home: Path, tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _made(home, hello(tmp_path))
    with RunDirectory.resume(home, "r-1"):
        line = _said(capsys, 2, "r-1")
    assert "expected a run that nobody writes, got another process holds it" in line
    assert begun == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"flower-run": None}, "got one whose simulated devices ended with it; begin it anew"),
        ({"started": {}}, "got one that something else started"),
        ({"started": {"app": "/x", "edge": "3"}}, "expected bundle, config, edge,"),
    ],
)
def test_a_run_of_another_kind_is_one_line(
    home: Path,
    tmp_path: Path,
    begun: list[Any],
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    said: str,
) -> None:
    if change == {"flower-run": None}:
        with RunDirectory.create(home, "r-1") as directory:
            directory.ledger.create_run("r-1", "2030-01-01T00:00:00+00:00", {"rounds": 8}, "on")
    else:
        _made(home, hello(tmp_path), **change)
    line = _said(capsys, 2, "r-1")
    assert said in line
    assert line.count("\n") == 1
    assert begun == []


def test_a_changed_app_is_refused(
    home: Path, tmp_path: Path, begun: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    app = hello(tmp_path)
    _made(home, app)
    (app / "added.py").write_text("x = 1\n")
    line = _said(capsys, 2, "r-1")
    assert f"app {app}: expected the bundle " in line
    assert "restore the app" in line
    assert begun == []
