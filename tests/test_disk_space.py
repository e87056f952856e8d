"""What a run will take of its disk: refused before it starts, warned of, and never more."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.host.disk_room import Room
from umbel.host.processes import Supervisor
from umbel.host.programs import Program
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import StateError
from umbel.protocol.manifest import Manifest
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.tests.small_disk import fill, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
MODEL = {"w": np.zeros(MIB // 4, np.float32)}
MANIFEST = Manifest.of(MODEL)
DIGEST = model_digest(MANIFEST.pack(MODEL))
NODES = tuple(f"{i:032x}" for i in range(20))


def run_of(home: Path, rounds: int) -> RunDirectory:
    run = RunDirectory.create(home, "r")
    run.ledger.create_run("r", "t", {"rounds": rounds}, "off")
    return run


def play(run: RunDirectory, n: int) -> None:
    """Write, commit and prune a round of a model of 1 MiB."""
    run.write_round(n, MODEL, MANIFEST, DIGEST, {})
    if n:
        run.ledger.commit_round(
            RoundRecord(
                round=n,
                attempt=0,
                phase="train",
                outcome="finished",
                model=DIGEST.hex(),
                roster=NODES,
                survivors=NODES,
            )
        )
        run.prune(None)


def warnings(run: RunDirectory) -> list[tuple[int, str]]:
    return [(e.round, e.code) for e in run.ledger.events() if e.kind == "warning"]


def used(path: Path) -> int:
    return sum(p.lstat().st_blocks * 512 for p in path.rglob("*"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 32 MiB."""
    with mounted(tmp_path / "disk", "size=32m") as place:
        yield place


def test_a_run_that_will_not_fit_does_not_start(disk: Path) -> None:
    """Five rounds of 1 MiB and 64 KiB, a sum of 2 MiB, 4 MiB of room: 11.3 MiB."""
    fill(disk / "ballast", 11 * MIB)
    with run_of(disk, 1) as run:
        with pytest.raises(StateError) as caught:
            play(run, 0)
        assert run.kept() == ()
    wanted = 5 * (MIB + 65536) + 2 * MIB + 4 * MIB
    assert re.search(
        rf"runs/r: expected {wanted} bytes free for a run of this model, got \d+ bytes; free the "
        "disk, or point UMBEL_HOME at another one",
        str(caught.value),
    )
    (disk / "ballast").unlink()
    with RunDirectory.resume(disk, "r") as run:
        play(run, 0)


def test_a_run_whose_ledger_will_not_fit_is_warned_of(disk: Path) -> None:
    """20,000 rounds of 2 KiB are more than 32 MiB; 1,000 are not."""
    told = list[str]()
    with run_of(disk, 20_000) as run:
        run.warn = told.append
        play(run, 0)
        ((number, line),) = warnings(run)
        play(run, 1)
        assert len(warnings(run)) == 1  # said once
    assert told == [line]
    wanted = 5 * (MIB + 65536) + 2 * MIB + 20_000 * 2048 + 4 * MIB
    assert number == 0
    expected = rf"runs/r: \d+ bytes are free, and this run may take {wanted} more until its end; "
    assert re.search(expected + "free the disk", line)
    shutil.rmtree(disk / "runs")
    with run_of(disk, 1_000) as run:
        play(run, 0)
        assert warnings(run) == []


def test_a_disk_that_others_fill_is_warned_of_again_and_then_ends_the_run(disk: Path) -> None:
    with run_of(disk, 100) as run:
        for n in range(6):
            play(run, n)
        assert warnings(run) == []
        fill(disk / "ballast", 8 * MIB)  # three rounds are kept: 2.1 and 2 and 4 MiB to come
        play(run, 6)
        play(run, 7)
        assert [n for n, _ in warnings(run)] == [6]
        fill(disk / "ballast", 3 * MIB)
        with pytest.raises(StateError, match="bytes free for this round, got"):
            play(run, 8)
        assert run.latest() == 7
    (disk / "ballast").unlink()
    with RunDirectory.resume(disk, "r") as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert run.resumed.newest.number == 7
        play(run, 8)


def test_a_run_takes_no_more_than_was_said(tmp_path: Path) -> None:
    """After any number of rounds: those that are kept, and the ledger."""
    with run_of(tmp_path, 200) as run:
        most = 0
        for n in range(201):
            play(run, n)
            most = max(most, used(run.path))
        rows = (run.path / "ledger.sqlite").stat().st_size
        said = 5 * (MIB + 65536) + 200 * 2048 + 4 * MIB
    assert most < said + MIB
    assert rows < 200 * 2600  # 20 nodes: 1.4 KB of ids a round, and what SQLite needs around it


def test_a_disk_without_room_for_databases_is_no_matter_of_a_moment(disk: Path) -> None:
    room = Room(disk)
    room.check(0.0)
    fill(disk / "ballast", MIB // 2)
    room.check(1.0)
    room.check(5.9)
    (disk / "ballast").unlink()
    room.check(6.5)
    fill(disk / "ballast", MIB // 2)
    room.check(7.0)
    with pytest.raises(StateError) as caught:
        room.check(12.0)
    assert re.search(
        r"disk: expected 1048576 bytes free for databases and logs, got \d+ bytes; free the disk, "
        "then resume$",
        str(caught.value),
    )


def test_a_supervisor_that_can_write_nothing_down_says_so(disk: Path) -> None:
    with Supervisor(disk / "up") as supervisor:
        fill(disk / "ballast")
        program = Program(name="sleeper", command=("sleep", "600"))
        with pytest.raises(StateError, match="bytes free for databases and logs, got 0 bytes"):
            supervisor.start(program)
        supervisor.close()
        assert not (disk / "up" / "up.json").exists()
