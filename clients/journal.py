"""The journal on disk, and one in memory for the simulator.

`<state dir>/<federation>/<node>/journal`, directory 0700, file 0600, on a local disk. Opened
for append under an exclusive lock that the process holds for life. `write` is the only way
in: the record is admitted by the rules (protocol/journal.py), appended, fsynced, and only
then counted; whoever calls it sends the bytes that the record stands for after it returns.

After any failure to write nothing more is written: what is on disk is unknown then, and a
node that cannot remember must not act.
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING, Protocol

from ..host.whole_file import sync_directory
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, StateError
from ..protocol.journal import History, encode, parse

if TYPE_CHECKING:
    from pathlib import Path

    from ..protocol.journal import Record

_NOT_OURS = stat.S_IRWXG | stat.S_IRWXO


class Journal(Protocol):
    """What a session needs of a journal."""

    @property
    def history(self) -> History:
        """The records so far, and their rules."""

    def write(self, record: Record) -> None:
        """Return when the record is durable; only then may its bytes leave.

        Raises:
            Refused: The rules forbid it; nothing was written.
            StateError: The disk failed; this journal takes no further record.
        """

    def close(self) -> None:
        """Give up the lock."""


class MemoryJournal:
    """A journal that no restart survives: the simulator's, where no process outlives it."""

    def __init__(self) -> None:
        """Start empty."""
        self.history = History()

    def write(self, record: Record) -> None:
        """Admit and count a record."""
        self.history.admit(record)
        encode(record)
        self.history.add(record)

    def close(self) -> None:
        """Do nothing: there is no lock."""


class FileJournal:
    """A journal in a file, one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, lock it, read it, cut a torn last line.

        Raises:
            StateError: It cannot be opened, locked or read, is damaged, or is open to others.
        """
        self._path = path
        self._failed = False
        try:
            self._fd = _open(path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self.history = self._take_over()
        except OSError as error:
            self.close()
            raise _unusable(path, error) from error
        except StateError:
            self.close()
            raise

    def write(self, record: Record) -> None:
        """Admit, append, fsync, count: see `Journal.write`."""
        if self._failed or self._fd < 0:
            raise StateError(str(self._path), "a journal in order", "one that failed or is closed")
        self.history.admit(record)
        line = encode(record)
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except OSError as error:
            self._failed = True
            raise _unusable(self._path, error) from error
        self.history.add(record)

    def close(self) -> None:
        """Give up the lock; the journal takes no further record."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_over(self) -> History:
        _lock(self._fd, self._path)
        _check_owner(self._path.parent, self._path.parent.stat(), 0o700)
        status = os.fstat(self._fd)
        _check_owner(self._path, status, 0o600)
        records, good = parse(_read(self._fd, status.st_size))
        if good < status.st_size:
            os.ftruncate(self._fd, good)
            os.fsync(self._fd)
        return History(records)


def voted_for(journal: Journal, run: str, model: bytes) -> frozenset[bytes] | None:
    """Return the one survivor set already voted for on this model of this run, if any.

    Raises:
        Refused: There are several.
    """
    sets = {frozenset(ids) for ids in journal.history.votes(run, model)}
    if len(sets) > 1:
        raise Refused(pb.REASON_WOULD_DIFFERENCE, f"{len(sets)} sets were voted for on this model")
    return next(iter(sets), None)


def _open(path: Path) -> int:
    """Open for append; a file or directory made here is durable when this returns."""
    _make_directory(path.parent)
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags | os.O_CREAT, 0o600)
    # Always, not only for a new file: whoever made it may have died before its own fsync.
    sync_directory(path.parent)
    return fd


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path.parent)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(
            str(path), "no other process of this node", "one that holds the journal", "end it first"
        ) from error


def _check_owner(path: Path, status: os.stat_result, mode: int) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & _NOT_OURS:
        got = f"user {status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}"
        expected = f"user {os.geteuid()} and mode {mode:04o}"
        raise StateError(str(path), expected, got, "chown or chmod it")


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.pread(fd, size - len(data), len(data))
        if not part:
            break
        data += part
    return data


def _unusable(path: Path, error: OSError) -> StateError:
    return StateError(
        str(path),
        "a journal that can be read and written",
        error.strerror or error,
        "this node joins no secure round until it can",
    )
