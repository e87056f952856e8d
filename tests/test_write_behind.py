"""Writes in a thread: in order, one round on its way at a time, an error said and nothing after."""

from __future__ import annotations

import shutil
import threading
from collections import namedtuple
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol.digest import model_digest
from umbel.protocol.errors import StateError
from umbel.protocol.manifest import Manifest
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = {"w": np.arange(4, dtype=np.float32)}
MANIFEST = Manifest.of(MODEL)
DIGEST = model_digest(MANIFEST.pack(MODEL))
_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path, "r") as made:
        made.ledger.create_run("r", "2026-01-01T00:00:00Z", {}, "off")
        yield made


def _write(disk: WriteBehind, n: int) -> None:
    disk.write_round(n, MODEL, MANIFEST, DIGEST, {})


def _commit(disk: WriteBehind, n: int) -> None:
    record = RoundRecord(round=n, attempt=0, phase="train", outcome="finished", model=DIGEST.hex())
    disk.ledger.commit_round(record)


def test_what_is_written_is_what_the_directory_writes(run: RunDirectory) -> None:
    with WriteBehind(run) as disk:
        _write(disk, 0)
        for n in range(1, 7):
            _write(disk, n)
            disk.ledger.event("warning", round=n, attempt=0, node="", code=f"{n}", at="")
            _commit(disk, n)
            disk.prune(2)
        assert disk.latest() == 6
        assert run.kept() == (2, 4, 5, 6)
    assert run.read_round(6)["w"].tolist() == [0, 1, 2, 3]
    codes = [event.code for event in run.ledger.events() if event.kind == "warning"]
    assert codes == ["1", "2", "3", "4", "5", "6"]
    assert run.ledger.verify() == 14


def test_nobody_waits_for_the_disk_but_the_next_round(run: RunDirectory) -> None:
    gate, wrote = threading.Event(), threading.Event()
    with WriteBehind(run) as disk:
        disk.later(gate.wait, 30)
        _commit(disk, 1)  # returns, though it cannot have been done
        assert run.committed() == {0}

        def next_round() -> None:
            _write(disk, 2)
            wrote.set()

        thread = threading.Thread(target=next_round)
        thread.start()
        assert not wrote.wait(0.1)
        gate.set()
        assert wrote.wait(30)
        thread.join()
        assert run.committed() == {0, 1}


def test_an_error_is_raised_by_what_comes_next_and_nothing_is_written_after_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def full(_: object) -> _Usage:
        gate.wait(30)
        return _Usage(10**9, 10**9 - 4096, 4096)

    monkeypatch.setattr(shutil, "disk_usage", full)
    disk = WriteBehind(run)
    _write(disk, 1)
    _commit(disk, 1)  # waits behind it
    disk.check()
    gate.set()
    for what in (disk.flush, disk.check, disk.latest, lambda: _commit(disk, 2)):
        with pytest.raises(StateError, match="bytes free for this round, got 4096 bytes"):
            what()
    with pytest.raises(StateError, match="bytes free"):
        disk.__exit__(None)
    assert run.committed() == {0}
    assert run.kept() == ()


def test_another_error_on_its_way_is_not_hidden(run: RunDirectory) -> None:
    disk = WriteBehind(run)
    disk.later(run.ledger.create_run, "again", "", {}, "off")
    disk.__exit__(KeyError)
    with pytest.raises(StateError, match="one that holds a run"):
        disk.check()
