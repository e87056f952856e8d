"""`umbel runs`: what it prints for people and for programs, and one line for each mistake."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from umbel.cli import main
from umbel.protocol.digest import model_digest
from umbel.protocol.manifest import Manifest
from umbel.server.ledger import RoundRecord
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_directory import RunDirectory

NODE = "ab" * 16


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with one run of three rounds, the second of them void."""
    home = tmp_path / "home"
    monkeypatch.setenv("UMBEL_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    with RunDirectory.create(home, "digits-1") as run:
        run.ledger.create_run("digits-1", "2026-01-02T03:04:05Z", {}, "on (development CA)")
        for n, outcome in ((0, ""), (1, "finished"), (2, "void"), (3, "finished")):
            arrays = {"w": np.full(2, n, np.float32)}
            manifest = Manifest.of(arrays)
            if outcome != "void":
                digest = model_digest(manifest.pack(arrays))
                run.write_round(n, arrays, manifest, digest, {})
            if outcome:
                _commit(run, n, outcome)
        run.ledger.event("lost", round=3, attempt=0, node=NODE, code="task failed")
    return home


def _commit(run: RunDirectory, n: int, outcome: str) -> None:
    record = RoundRecord(
        round=n,
        attempt=0,
        phase="train",
        outcome=outcome,
        cause="masks did not cancel" if outcome == "void" else "",
        roster=("a", "b", "c"),
        survivors=("a", "b"),
        model="" if outcome == "void" else run.digest(n).hex(),
        metrics={} if outcome == "void" else {"accuracy": 0.9123456},
        seconds={"training": 1.0, "closing": 0.25},
        bytes_up=100,
        bytes_down=200,
    )
    run.ledger.commit_round(record)


def _digest(n: int) -> str:
    arrays = {"w": np.full(2, n, np.float32)}
    return model_digest(Manifest.of(arrays).pack(arrays)).hex()


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["runs", *argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["runs", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.usefixtures("home")
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "list") == (
        "run       created               rounds  last\n"
        "digits-1  2026-01-02T03:04:05Z  2       finished\n"
    )
    assert json.loads(output(capsys, "list", "--format", "json")) == [
        {"run": "digits-1", "created": "2026-01-02T03:04:05Z", "rounds": 2, "last": "finished"}
    ]


def test_list_without_runs_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    assert output(capsys, "list") == f"no runs in {tmp_path}; `umbel simulate APP` makes one\n"
    assert output(capsys, "list", "--format", "json") == "[]\n"


def test_a_damaged_run_does_not_hide_the_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "runs" / "broken").mkdir()
    (home / "runs" / "broken" / "ledger.sqlite").write_text("no database " * 100)
    found = json.loads(output(capsys, "list", "--format", "json"))
    assert [item["run"] for item in found] == ["broken", "digits-1"]
    assert found[0]["last"].startswith("damaged: ")


def test_show(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "show", "digits-1").splitlines()
    assert lines[0] == "run digits-1, created 2026-01-02T03:04:05Z"
    assert lines[1] == "secure aggregation: on (development CA)"
    assert lines[2].startswith("ledger: 6 rows, chain intact, head ")
    assert lines[3] == f"model: {home}/runs/digits-1/rounds/000003"
    assert lines[4:] == [
        "round 1.0 train finished: 2 of 3 members, 1.25 s, 100 B up, 200 B down accuracy=0.9123",
        "round 2.0 train void: 2 of 3 members, 1.25 s, 100 B up, 200 B down masks did not cancel",
        "round 3.0 train finished: 2 of 3 members, 1.25 s, 100 B up, 200 B down accuracy=0.9123",
        f"event 0.0 initial {_digest(0)}",
        f"event 3.0 lost {NODE} task failed",
    ]


@pytest.mark.usefixtures("home")
def test_show_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads(output(capsys, "show", "digits-1", "--format", "json"))
    assert about["run"]["security"] == "on (development CA)"
    assert [item["outcome"] for item in about["rounds"]] == ["finished", "void", "finished"]
    assert about["rounds"][0]["metrics"] == {"accuracy": 0.9123456}
    assert about["events"][1]["node"] == NODE
    assert about["ledger"]["rows"] == 6


def test_a_test_is_shown_with_its_round_and_exported_with_its_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunDirectory.resume(home, "digits-1") as run:
        detail = {"test.accuracy": 0.875, "test.loss": float("nan")}
        run.ledger.event("tested", round=1, attempt=0, code=_digest(1), detail=detail)
    lines = output(capsys, "show", "digits-1").splitlines()
    assert lines[4].endswith("B down accuracy=0.9123 test.accuracy=0.875 test.loss=not finite")
    assert "test." not in lines[6]
    assert lines[-1] == f"event 1.0 tested {_digest(1)} test.accuracy=0.875 test.loss=nan"
    path = str(tmp_path / "m.st")
    said = output(capsys, "export", "digits-1", "--round", "1", "-o", path)
    assert said.endswith(f"digest {_digest(1)}, test.accuracy 0.8750\n")
    answer = output(capsys, "export", "digits-1", "--round", "1", "-o", path, "--format", "json")
    assert json.loads(answer)["test.accuracy"] == 0.875
    assert "test." not in output(capsys, "export", "digits-1", "-o", path)


def test_show_refuses_a_changed_record(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(home / "runs/digits-1/ledger.sqlite")) as db:
        db.executescript("UPDATE round SET survivors = roster")
    assert "expected row 3 as it was written" in complaint(capsys, "show", "digits-1")


@pytest.mark.usefixtures("home")
def test_export_takes_the_newest_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = output(capsys, "export", "digits-1")
    assert said.startswith("digits-1-3.safetensors: round 3 of digits-1, ")
    file = tmp_path / "digits-1-3.safetensors"
    assert safetensors.numpy.load_file(file)["w"].tolist() == [3.0, 3.0]
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == [file.name]


@pytest.mark.usefixtures("home")
def test_export_of_a_named_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("export", "digits-1", "--round", "1", "-o", str(tmp_path / "m.st"), "--format", "json")
    said = json.loads(output(capsys, *argv))
    assert said["round"] == 1
    assert said["bytes"] == (tmp_path / "m.st").stat().st_size
    with safetensors.safe_open(tmp_path / "m.st", "numpy") as file:
        assert file.metadata() == {"run": "digits-1", "round": "1", "digest": said["digest"]}
        assert file.get_tensor("w").tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("home")
def test_export_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such run; see `umbel runs list`" in complaint(capsys, "export", "other")
    assert "one of the rounds [0, 1, 3], got 2" in complaint(
        capsys, "export", "digits-1", "--round", "2"
    )
    assert "a file that can be written" in complaint(
        capsys, "export", "digits-1", "-o", str(tmp_path / "no" / "such" / "folder.st")
    )


def test_export_of_a_round_that_was_written_and_never_finished(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {"w": np.full(2, 4, np.float32)}
    manifest = Manifest.of(arrays)
    with RunDirectory.open(home, "digits-1") as run:
        run.write_round(4, arrays, manifest, model_digest(manifest.pack(arrays)), {})
        assert run.kept() == (0, 1, 3, 4)
    said = complaint(capsys, "export", "digits-1", "--round", "4")
    assert "one of the rounds [0, 1, 3], got 4" in said


def test_export_never_writes_a_damaged_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / "runs/digits-1/rounds/000003" / MODEL_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "resume from an earlier round" in complaint(capsys, "export", "digits-1")
    assert not list(tmp_path.glob("*.safetensors"))


def test_looking_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rounds() -> list[str]:
        return sorted(p.name for p in (home / "runs/digits-1/rounds").iterdir())

    (home / "runs/digits-1/rounds/.000004.1").mkdir()
    before = rounds()
    output(capsys, "list")
    output(capsys, "show", "digits-1")
    output(capsys, "export", "digits-1")
    assert rounds() == before


@pytest.mark.parametrize("command", ["list", "show", "verify", "export"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Example: umbel runs {command}" in output(capsys, command, "--help")
