"""The journal on disk: one process, durable before it returns, silent after a failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from umbel.clients.journal import FileJournal, Journal, MemoryJournal
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, StateError
from umbel.protocol.journal import Closed, Keyed, Masked, Record, Released, Voted, encode, parse

CTX0, CTX = b"\xa0" * 32, b"\xa1" * 32
ATTEMPT: list[Record] = [
    Keyed(CTX0),
    Masked(CTX, "run-7", bytes(32), bytes(32)),
    Voted(CTX, bytes(32), (b"\x01" * 16,)),
    Released(CTX),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "north-clinics" / "0123" / "journal"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def python(program: str, *args: object) -> subprocess.Popen[str]:
    """Another process, which imports the installed package."""
    words = [sys.executable, "-c", textwrap.dedent(program), *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


HOLD = """
    import sys
    from pathlib import Path
    from umbel.clients.journal import FileJournal
    journal = FileJournal(Path(sys.argv[1]))
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_both_journals_keep_the_rules(kind: str, path: Path) -> None:
    journal: Journal = FileJournal(path) if kind == "file" else MemoryJournal()
    for record in ATTEMPT:
        journal.write(record)
    for record in ATTEMPT:
        with pytest.raises(Refused) as caught:
            journal.write(record)
        assert caught.value.reason == pb.REASON_JOURNAL
    journal.write(Closed(CTX))
    with pytest.raises(ValueError, match="32 bytes"):
        journal.write(Keyed(b"short"))
    assert journal.history.votes("run-7", bytes(32)) == [(b"\x01" * 16,)]
    assert journal.history.open_attempts() == (CTX0,)
    journal.close()


def test_file_and_directories_are_the_users_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        journal = FileJournal(path)
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)
    journal.close()


def test_a_reopened_file_keeps_the_rules(path: Path) -> None:
    journal = FileJournal(path)
    for record in ATTEMPT:
        journal.write(record)
    journal.close()
    assert path.read_bytes() == b"".join(map(encode, ATTEMPT))
    journal = FileJournal(path)
    for record in ATTEMPT:
        with pytest.raises(Refused) as caught:
            journal.write(record)
        assert caught.value.reason == pb.REASON_NEW_PROCESS
    assert journal.history.votes("run-7", bytes(32)) == [(b"\x01" * 16,)]
    journal.write(Keyed(b"\xb0" * 32))
    journal.close()
    assert path.read_bytes() == b"".join(map(encode, [*ATTEMPT, Keyed(b"\xb0" * 32)]))


def test_a_refused_record_leaves_no_byte(path: Path) -> None:
    journal = FileJournal(path)
    with pytest.raises(Refused):
        journal.write(Released(CTX))
    assert path.read_bytes() == b""
    journal.close()


def test_a_second_process_of_the_node_is_refused_in_one_line(path: Path) -> None:
    first = python(HOLD, path)
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    with pytest.raises(StateError) as caught:
        FileJournal(path)
    assert str(caught.value) == (
        f"{path}: expected no other process of this node, "
        "got one that holds the journal; end it first"
    )
    first.communicate()  # ends it, and the lock with it
    FileJournal(path).close()


def test_a_lock_ends_with_a_killed_process(path: Path) -> None:
    first = python(HOLD, path)
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    first.kill()
    first.communicate()
    FileJournal(path).close()


def test_the_same_process_cannot_open_it_twice(path: Path) -> None:
    journal = FileJournal(path)
    with pytest.raises(StateError, match="one that holds the journal"):
        FileJournal(path)
    journal.close()


def test_what_write_returned_from_survives_a_kill(path: Path) -> None:
    child = python(
        """
        import os, signal, sys
        from pathlib import Path
        from umbel.clients.journal import FileJournal
        from umbel.protocol.journal import Keyed
        journal = FileJournal(Path(sys.argv[1]))
        for number in range(3):
            journal.write(Keyed(bytes([number]) * 32))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        path,
    )
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors
    expected = [Keyed(bytes([number]) * 32) for number in range(3)]
    assert parse(path.read_bytes())[0] == expected


def test_the_disk_has_it_before_write_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A kill does not empty the page cache, so the order of the calls themselves is looked at.
    synced: list[tuple[str, bytes]] = []
    sync = os.fsync

    def watched(fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        synced.append((name, b"" if os.path.isdir(name) else Path(name).read_bytes()))
        sync(fd)

    monkeypatch.setattr("umbel.clients.journal.os.fsync", watched)
    journal = FileJournal(path)
    made = [str(folder) for folder in (path.parent.parent.parent, path.parent.parent, path.parent)]
    assert [name for name, _ in synced] == made  # each entry of a new directory, and the file's
    synced.clear()
    journal.write(ATTEMPT[0])
    assert synced == [(str(path), encode(ATTEMPT[0]))]
    journal.close()


def test_a_torn_last_line_is_cut_off(path: Path) -> None:
    journal = FileJournal(path)
    journal.write(ATTEMPT[0])
    journal.close()
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(encode(ATTEMPT[1])[:20])
    journal = FileJournal(path)
    assert path.read_bytes() == whole
    journal.write(ATTEMPT[1])  # its bytes never left, so it may still happen
    journal.close()
    assert parse(path.read_bytes())[0] == ATTEMPT[:2]


def test_damage_elsewhere_is_refused_and_left_alone(path: Path) -> None:
    journal = FileJournal(path)
    for record in ATTEMPT:
        journal.write(record)
    journal.close()
    broken = bytearray(path.read_bytes())
    broken[10] ^= 1
    path.write_bytes(broken)
    for _ in range(2):  # the lock was given up, the bytes were not touched
        with pytest.raises(StateError, match="journal line 1: expected a record"):
            FileJournal(path)
        assert path.read_bytes() == broken


def test_a_full_disk_ends_the_journal(path: Path) -> None:
    # RLIMIT_FSIZE is a disk of 300 bytes; with SIGXFSZ ignored, write fails as on a full one.
    child = python(
        """
        import resource, signal, sys
        from pathlib import Path
        from umbel.clients.journal import FileJournal
        from umbel.protocol.errors import StateError
        from umbel.protocol.journal import Keyed
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        journal = FileJournal(Path(sys.argv[1]))
        for number in range(9):
            try:
                journal.write(Keyed(bytes([number]) * 32))
                print("written")
            except StateError as error:
                print(error)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        """,
        path,
    )
    output, errors = child.communicate()
    lines = output.splitlines()
    assert errors == ""
    # A line of `keyed` has 5 + 1 + 64 + 1 + 16 + 1 = 88 bytes: three fit, the fourth does not,
    # and nothing follows it although there is room again.
    assert lines[:3] == ["written"] * 3
    assert lines[3].endswith(
        "expected a journal that can be read and written, got File too large; "
        "this node joins no secure round until it can"
    )
    assert all("got one that failed or is closed" in line for line in lines[4:])
    assert len(lines) == 9
    assert path.stat().st_size == 300
    assert parse(path.read_bytes()) == ([Keyed(bytes([n]) * 32) for n in range(3)], 264)


def test_a_failed_fsync_ends_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(path)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("umbel.clients.journal.os.fsync", fail)
        with pytest.raises(StateError, match="got Input/output error"):
            journal.write(ATTEMPT[0])
    assert journal.history.open_attempts() == ()  # it did not happen, as far as this knows
    with pytest.raises(StateError, match="got one that failed or is closed"):
        journal.write(ATTEMPT[0])
    journal.close()


def test_a_short_write_is_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(path)
    write = os.write
    monkeypatch.setattr("umbel.clients.journal.os.write", lambda fd, data: write(fd, data[:7]))
    journal.write(ATTEMPT[0])
    monkeypatch.undo()
    assert path.read_bytes() == encode(ATTEMPT[0])
    journal.close()


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = FileJournal(path)
    journal.close()
    journal.close()
    with pytest.raises(StateError, match="got one that failed or is closed"):
        journal.write(ATTEMPT[0])


@pytest.mark.parametrize("place", ["journal", "directory"])
@pytest.mark.parametrize("bits", [0o020, 0o002, 0o004])
def test_a_place_that_others_reach_is_refused(path: Path, place: str, bits: int) -> None:
    FileJournal(path).close()
    target = path if place == "journal" else path.parent
    target.chmod(mode(target) | bits)
    with pytest.raises(StateError, match=r"and mode 0[67]00, got user"):
        FileJournal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_journal_of_another_user_is_refused(path: Path) -> None:
    FileJournal(path).close()
    os.chown(path, 12345, -1)
    with pytest.raises(StateError, match="expected user 0 and mode 0600, got user 12345"):
        FileJournal(path)


def test_a_link_or_a_directory_is_no_journal(path: Path) -> None:
    FileJournal(path).close()
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(StateError, match="a journal that can be read and written"):
        FileJournal(link)
    with pytest.raises(StateError, match="a journal that can be read and written"):
        FileJournal(path.parent)
    path.with_name("file").touch()
    with pytest.raises(StateError, match="a journal that can be read and written"):
        FileJournal(path.with_name("file") / "below" / "journal")


def test_a_spawned_child_does_not_inherit_the_lock(path: Path) -> None:
    journal = FileJournal(path)
    child = python("import sys; print(flush=True); sys.stdin.read()")
    assert child.stdout is not None
    child.stdout.readline()
    journal.close()
    FileJournal(path).close()
    child.communicate()
