"""Shared memory: its owner alone unlinks it, strangers are refused, leftovers of the dead go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from umbel.protocol.errors import SettingsError, StateError
from umbel.server.core import segments
from umbel.server.core.segments import Segment, Shelf, remove_leftovers


def mute(_kind: str, _line: str) -> None: ...


def test_two_mappings_are_one_memory(tmp_path: Path) -> None:
    mine = Segment.create(tmp_path, 100, "slots")
    assert mine.path.stat().st_mode & 0o777 == 0o600
    assert bytes(mine.view) == bytes(100)
    theirs = Segment.attach(mine.path, 100, write=True)
    theirs.array("<u4", 4, 12)[:] = 7
    assert bytes(mine.view[:16]) == b"\0\0\0\0\7\0\0\0\7\0\0\0\0\0\0\0"
    reader = Segment.attach(mine.path, 100, write=False)
    with pytest.raises(TypeError):
        reader.view[0] = 1
    theirs.close()
    assert mine.path.exists()
    mine.unlink()
    mine.unlink()
    assert reader.view[4] == 7  # memory outlives its name
    mine.close()
    mine.close()


def test_descriptors_and_memory_go_with_the_last_array(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        mine = Segment.create(tmp_path, 4096, "a")
        other = Segment.attach(mine.path, 4096, write=False)
        array = mine.array("u1")
        for one in (mine, other):
            one.close()
        mine.unlink()
        assert array[4095] == 0
    del mine, other, array
    assert len(os.listdir("/proc/self/fd")) == before
    assert f"{tmp_path}/umbel" not in Path("/proc/self/maps").read_text("utf-8")


@pytest.mark.parametrize("fault", ["link", "size", "mode", "fifo", "gone"])
def test_what_is_not_the_segment_is_refused(tmp_path: Path, fault: str) -> None:
    mine = Segment.create(tmp_path, 64, "slots")
    path, nbytes = mine.path, 64
    if fault == "link":
        path = tmp_path / "link"
        path.symlink_to(mine.path)
    elif fault == "size":
        nbytes = 65
    elif fault == "mode":
        path.chmod(0o640)
    elif fault == "fifo":
        path = tmp_path / "fifo"
        os.mkfifo(path, 0o600)
    else:
        mine.unlink()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StateError, match=path.name):
        Segment.attach(path, nbytes, write=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_users_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Segment.create(tmp_path, 64, "slots")
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(StateError, match=f"user {own}"):
        Segment.attach(mine.path, 64, write=False)
    monkeypatch.undo()
    Segment.attach(mine.path, 64, write=False)


def test_sizes_and_words_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        Segment.create(tmp_path, 0, "slots")
    with pytest.raises(SettingsError):
        Segment.create(tmp_path, 1, "../slots")
    with pytest.raises(StateError, match="absent"):
        Segment.create(tmp_path / "absent", 1, "slots")
    with pytest.raises(StateError, match="MiB"):
        Segment.create(tmp_path, 1 << 60, "slots")
    assert not list(tmp_path.iterdir())


OWNER = """
import sys, pathlib
from umbel.server.core import segments
from umbel.server.core.segments import Segment
kept = Segment.create(pathlib.Path(sys.argv[1]), 8, "slots")
print(kept.path, flush=True)
sys.stdin.read()
"""


def test_the_leftover_of_a_dead_owner_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner:
        path = Path(owner.stdout.readline().strip())
        reader = Segment.attach(path, 8, write=False)
        mine = Segment.create(tmp_path, 8, "slots")
        (tmp_path / "umbel-notes").write_text("not a segment", "utf-8")
        assert remove_leftovers(tmp_path) == 0
        # A pid of another container: the name's owner is nobody here, but its lock is held.
        foreign = tmp_path / "umbel-slots-1-0-0"
        path.rename(foreign)
        assert remove_leftovers(tmp_path) == 0
        foreign.rename(path)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        # The pid is in use again: by a process that began at another time.
        again = path.with_name(f"umbel-slots-{os.getpid()}-1-0")
        path.rename(again)
        said: list[str] = []
        Shelf(tmp_path, lambda _kind, line: said.append(line), tmp_path / "none")
    assert not again.exists()
    assert mine.path.exists()
    assert (tmp_path / "umbel-notes").exists()
    assert said == [f"{tmp_path}: removed 1 files of processes that have died"]
    assert bytes(reader.view) == bytes(8)


def test_a_bare_segment_takes_memory_part_by_part(tmp_path: Path) -> None:
    mine = Shelf(tmp_path, mute, tmp_path).create(1 << 40, "slots", 1 << 20)
    assert mine.path.stat().st_blocks * 512 == 1 << 20
    mine.view[5] = 7
    for _ in range(2):
        mine.take(1 << 21, 1 << 20)
    assert mine.path.stat().st_blocks * 512 == 2 << 20
    assert mine.view[5] == 7
    with pytest.raises(StateError, match="1048575 MiB for shared memory"):
        mine.take(1 << 20, (1 << 40) - (1 << 20))
    mine.unlink()


def test_where_memory_is_short_the_disk_is_taken_and_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    shelf = Shelf(tmp_path, lambda _kind, line: said.append(line), tmp_path / "none")
    first, second = (shelf.create(1 << 20, "slots") for _ in range(2))
    assert first.path.parent == second.path.parent == tmp_path
    assert len(said) == 1
    assert "0 MiB free for 1 MiB" in said[0]
    roomy = tmp_path / "roomy"
    roomy.mkdir()
    assert Shelf(tmp_path, mute, roomy).create(1, "slots").path.parent == roomy


def test_memory_that_the_machine_does_not_have_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy, disk, said = tmp_path / "roomy", tmp_path / "disk", list[str]()
    roomy.mkdir()
    disk.mkdir()
    shelf = Shelf(disk, lambda _kind, line: said.append(line), roomy)
    monkeypatch.setattr(segments, "available", lambda: 40 << 20)
    assert shelf.create(20 << 20, "slots").path.parent == roomy
    assert shelf.create(30 << 20, "slots").path.parent == disk
    assert "40 MiB free for 30 MiB" in said[0]
