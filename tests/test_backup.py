"""A server backed up while it works, lost, and restored: it goes on, and nothing goes back."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from umbel import cli
from umbel.protocol.errors import StateError
from umbel.server import backup_form as form
from umbel.server import registry
from umbel.server.archive import MAGIC, PLAIN
from umbel.server.backup import backup
from umbel.server.restore import restore
from umbel.server.run_directory import RunDirectory
from umbel.tests.care_stage import made_server, names, restored, run_of
from umbel.tests.issuing import Keys, Stage
from umbel.tests.test_run_directory import commit, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stage(home: Path) -> Stage:
    return made_server(home)


def test_what_is_in_it_and_what_is_not(stage: Stage, home: Path, tmp_path: Path) -> None:
    run_of(home)
    run_of(home, "other", "another-federation")
    (home / "runs" / "r-1" / "rounds" / "000003.train.0.open").mkdir()
    (home / "runs" / "r-1" / "rounds" / "000003.train.0.open" / "sum").write_bytes(b"x")
    file = tmp_path / "wards.umbel"
    found = names(backup(stage.folder, home, file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    fixed = {
        *("ca.pem", "root/ca.key", "issuing.pem", "issuing.key", "server.toml"),
        *("gateway.pem", "gateway.key", "front.pem", "front.key"),
        *("superlink.pem", "superlink.key", "issuer.sqlite", "superlink.sqlite"),
        "tickets/r-1.key",
    }
    model = {"manifest.json", "00000-of-00001.safetensors"}
    assert found == {f"federation/{name}" for name in fixed} | {"runs/r-1/ledger.sqlite"} | {
        f"runs/r-1/rounds/00000{number}/{name}" for number in range(3) for name in model
    }
    assert sorted(path.name for path in home.iterdir()) == ["federations", "runs"]
    small = names(backup(stage.folder, home, tmp_path / "small.umbel", models=False))
    assert found - small == {name for name in found if "/rounds/" in name}


@pytest.mark.parametrize("secret", [None, b"a passphrase of some length"])
def test_a_lost_server_goes_on(
    stage: Stage, home: Path, tmp_path: Path, secret: bytes | None
) -> None:
    run_of(home)
    before = {node.name: node for node in registry.read(stage.folder).values()}
    keys = {path.name: path.read_bytes() for path in stage.folder.rglob("*.key")}
    file = tmp_path / "wards.umbel"
    backup(stage.folder, home, file, passphrase=secret)
    made = restored(home, file, stage, secret=secret)
    assert (made.name, made.runs, made.nodes, made.notes) == (
        "wards", ("r-1",), ("press-1", "press-2"), (),
    )  # fmt: skip
    assert {node.name: node for node in registry.read(stage.folder).values()} == before
    assert {path.name: path.read_bytes() for path in stage.folder.rglob("*.key")} == keys
    for path in (stage.folder, *stage.folder.rglob("*")):
        public = path.suffix in {".pem", ".list"}
        wanted = 0o700 if path.is_dir() else 0o644 if public else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    with closing(sqlite3.connect(stage.folder / form.SUPERLINK)) as db:
        assert db.execute("SELECT id FROM node").fetchall() == [(7,)]
    with RunDirectory.resume(home, "r-1") as run:
        assert (run.latest(), run.kept()) == (2, (0, 1, 2))
        run.read_round(2)
    assert sorted(path.name for path in home.iterdir()) == ["federations", "runs"]
    assert [path.name for path in stage.folder.parent.iterdir()] == ["wards"]


def test_it_is_made_while_the_issuer_works_and_a_run_is_written(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    """Every one of them can be restored: its record's newest model is there, and whole."""
    begun, over = threading.Event(), threading.Event()

    def working() -> None:
        with RunDirectory.create(home, "r-1") as run:
            config = {"flower-run": "77", "federation": "wards"}
            run.ledger.create_run("r-1", "2027-03-01T12:00:00Z", config, "on")
            write(run, 0)
            for number in range(1, 2000):
                write(run, number)
                commit(run, number)
                run.prune(None)
                begun.set()
                if over.wait(0.05):  # in memory a thousand rounds would go by in a second
                    return

    worker = threading.Thread(target=working)
    worker.start()
    try:
        files = [tmp_path / f"{number}.umbel" for number in range(5)]
        for number, file in enumerate(files):
            stage.token(f"more-{number}")
            if file == files[-1]:
                assert begun.wait(60)
            backup(stage.folder, home, file)
    finally:
        over.set()
        worker.join()
    for number, file in enumerate(files):
        made = restored(home, file, stage)
        assert f"more-{number}" in made.revoked
        if made.runs:  # the first may have come before the run
            with RunDirectory.resume(home, "r-1") as run:
                models = run.ledger.models()
                # The record is begun before the first model is there.
                assert run.latest() in ({max(models)} if models else {None, 0})
    assert made.runs == ("r-1",)


def test_without_models_the_record_is_there(stage: Stage, home: Path, tmp_path: Path) -> None:
    run_of(home)
    backup(stage.folder, home, tmp_path / "b", models=False)
    restored(home, tmp_path / "b", stage)
    with RunDirectory.open(home, "r-1") as run:
        assert [record.round for record in run.ledger.rounds()] == [1, 2]
        assert run.kept() == ()


def test_without_the_roots_key_it_goes_on(stage: Stage, home: Path, tmp_path: Path) -> None:
    shutil.rmtree(stage.folder / "root")
    found = backup(stage.folder, home, tmp_path / "b")
    assert not found.about["root_key"]
    restored(home, tmp_path / "b", stage)
    assert stage.again().enrol(Keys().enrol(stage.token("press-9"))).name == "press-9"


# ---- what is refused, and leaves nothing --------------------------------------------------------


def test_a_damaged_record_is_left_out_by_name(stage: Stage, home: Path, tmp_path: Path) -> None:
    run_of(home)
    run_of(home, "r-2")
    with closing(sqlite3.connect(home / "runs" / "r-2" / form.LEDGER)) as db:
        db.execute("UPDATE round SET cause = 'x' WHERE round = 1")
        db.commit()
    found = backup(stage.folder, home, tmp_path / "b")
    assert found.about["runs"] == 1
    (line,) = found.about["left_out"]
    assert line.startswith("runs/r-2: ")
    assert restored(home, tmp_path / "b", stage).runs == ("r-1",)


def test_a_damaged_database_makes_no_backup(stage: Stage, home: Path, tmp_path: Path) -> None:
    path = stage.folder / form.ISSUER
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 3] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(StateError, match=r"issuer\.sqlite"):
        backup(stage.folder, home, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert [path.name for path in home.iterdir()] == ["federations"]


def test_a_backup_takes_nobodys_place(stage: Stage, home: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(StateError, match="expected a file that is not there yet"):
        backup(stage.folder, home, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("there", ["federations/wards", "runs/r-1"])
def test_a_restore_takes_nobodys_place(
    there: str, stage: Stage, home: Path, tmp_path: Path
) -> None:
    run_of(home)
    backup(stage.folder, home, tmp_path / "b")
    shutil.rmtree(home)
    (home / there).mkdir(parents=True)
    with pytest.raises(StateError, match="expected nothing there, got something"):
        restore(tmp_path / "b", home, clock=stage.clock)
    assert sorted(path.name for path in home.rglob("*")) == sorted(there.split("/"))


def test_what_is_damaged_is_named_and_nothing_is_written(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    run_of(home)
    file = tmp_path / "b"
    backup(stage.folder, home, file)
    data = bytearray(file.read_bytes())
    data[data.index(b"BEGIN PRIVATE KEY")] ^= 1
    file.write_bytes(data)
    shutil.rmtree(home)
    with pytest.raises(StateError, match=r"expected federation/[a-z./]+\.key as it was written"):
        restore(file, home, clock=stage.clock)
    assert not home.exists()


def test_a_failure_on_the_way_leaves_nothing(
    stage: Stage, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last move fails: the runs that were in place already go again."""
    run_of(home)
    backup(stage.folder, home, tmp_path / "b")
    shutil.rmtree(home)
    home.mkdir()
    seen: list[str] = []
    rename = type(home).rename

    def failing(self: Path, target: Path) -> Path:
        seen.append(target.name)
        if target.name == "wards":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(type(home), "rename", failing)
    with pytest.raises(StateError, match="No space left on device"):
        restore(tmp_path / "b", home, clock=stage.clock)
    assert seen[:2] == ["r-1", "wards"]
    assert not list((home / "runs").iterdir())
    assert not list((home / "federations").iterdir())


# ---- as commands --------------------------------------------------------------------------------


def test_the_two_commands(
    stage: Stage, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("UMBEL_HOME", str(home))
    run_of(home)
    secret, file = tmp_path / "pass", tmp_path / "b"
    secret.write_text("correct horse battery\n")
    sealed = ["--passphrase-file", str(secret), "--format", "json"]
    assert cli.main(["server", "backup", str(file), *sealed]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["federation"], about["runs"], about["sealed"]) == ("wards", 1, True)
    assert about["bytes"] == file.stat().st_size
    shutil.rmtree(home)
    assert cli.main(["server", "restore", str(file)]) == 2
    assert "expected its passphrase, got none" in capsys.readouterr().err
    assert cli.main(["server", "restore", str(file), *sealed[:2]]) == 0
    said = capsys.readouterr().out
    assert "nodes: press-1, press-2" in said
    assert "tokens revoked: press-4" in said
    assert cli.main(["server", "backup", str(tmp_path / "plain")]) == 0
    assert "NOT sealed" in capsys.readouterr().out
    assert (tmp_path / "plain").read_bytes()[len(MAGIC) :][:1] == PLAIN
    secret.write_text("short")
    assert cli.main(["server", "backup", str(tmp_path / "c"), *sealed]) == 2
    said = capsys.readouterr().err
    assert "one line of 12 to 1024 bytes" in said
    assert "short" not in said
