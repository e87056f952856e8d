"""An open round on the disk: there whole, or not there."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import PeerError, StateError
from umbel.server.open_round import OpenRounds, read_sum, write_sum
from umbel.tests.rounds import Stage, settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return the `rounds` of a run whose server was lost when the first vote came."""
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        stage.begin()
        stage.until("vote")
        (folder,) = stage.directory.path.glob("rounds/*.open")
        assert folder.name == "000001.train.0.open"
        return folder.parent


def test_it_is_read_back_with_what_is_needed(kept: Path) -> None:
    found = OpenRounds(kept).kept()
    assert found is not None
    assert (found.round, found.phase, found.attempt) == (1, "train", 0)
    assert len(found.members) == len(found.survivors) == 4
    assert found.digest == hashlib.sha256(found.path.read_bytes()).digest()
    assert found.path == kept / "000001.train.0.open" / "sum"


def test_only_its_owner_reads_it(kept: Path) -> None:
    folder = kept / "000001.train.0.open"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.iterdir())] == [0o600] * 2


@pytest.mark.parametrize("change", ["renamed", "cut", "longer", "gone", "pipe", "link"])
def test_what_is_not_whole_is_not_there(change: str, kept: Path) -> None:
    folder = kept / "000001.train.0.open"
    path = folder / "transcript"
    data = path.read_bytes()
    if change == "renamed":
        folder.rename(kept / "000002.train.0.open")
    elif change == "gone":
        path.unlink()
    elif change == "pipe":  # whoever waits for its other end waits for ever
        path.unlink()
        os.mkfifo(path)
    elif change == "link":
        path.rename(kept / "elsewhere")
        path.symlink_to(kept / "elsewhere")
    else:
        path.write_bytes(data[:-1] if change == "cut" else data + b"\0")
    assert OpenRounds(kept).kept() is None


def test_no_byte_of_it_is_another(kept: Path) -> None:
    path = kept / "000001.train.0.open" / "transcript"
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert OpenRounds(kept).kept() is None, at
    path.write_bytes(data)
    assert OpenRounds(kept).kept() is not None


def test_the_newest_counts_and_all_are_dropped_when_it_is_time(kept: Path) -> None:
    (kept / "000001.train.9.open").mkdir()  # a crash before its transcript was written
    (kept / "000001").mkdir(exist_ok=True)
    later = []
    rounds = OpenRounds(kept, lambda work, *args: later.append((work, args)))
    found = rounds.kept()
    assert found is not None
    assert found.attempt == 0
    rounds.drop()
    assert len(list(kept.glob("*.open"))) == 2
    for work, args in later:
        work(*args)
    assert not list(kept.glob("*.open"))
    assert (kept / "000001").is_dir()


def test_a_sum_is_written_once_and_read_by_its_hash(tmp_path: Path) -> None:
    path, data = tmp_path / "sum", bytes(range(256)) * 9
    digest = write_sum(path, memoryview(data))
    assert digest == hashlib.sha256(data).digest()
    assert read_sum(path, len(data), digest) == data
    with pytest.raises(FileExistsError):
        write_sum(path, data)
    for size, wanted in ((len(data) - 1, digest), (len(data) + 1, digest), (len(data), bytes(32))):
        with pytest.raises(PeerError, match="sum: expected"):
            read_sum(path, size, wanted)
    with pytest.raises(PeerError, match="cannot be read: No such file"):
        read_sum(tmp_path / "other", 1, digest)


def test_a_disk_that_takes_no_more_ends_the_run_before_a_vote_is_asked_for(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        stage.begin()
        (stage.directory.path / "rounds" / "000001.train.0.open").write_text("in the way")
        with pytest.raises(StateError, match=r"000001\.train\.0\.open: expected an open round"):
            stage.to_the_end()
        assert stage.coordinator.attempt is not None
        assert not [line for line in stage.log if "voted" in line]
