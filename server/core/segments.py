"""Memory that processes of one user share: a mapped file, which its owner makes and alone unlinks.

    umbel-KIND-PID-START-SERIAL     in /dev/shm, mode 0600

PID and START (clock ticks since boot, field 22 of /proc/PID/stat) name the owner, which holds a
lock on the file as well. A file whose owner has died is a leftover, removed by the next process
that sweeps; the lock is asked too, because in another container's /dev/shm a pid says nothing.
multiprocessing.shared_memory is not used: there any process that attached unlinks the memory when
it ends. Pages are taken before anybody writes to them, all when the file is made or part by part,
so that a full disk is an error then and no SIGBUS later.

Who may write where is up to the owner and those it tells the path. Not here: what lies inside.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

import numpy as np

from .room import available
from ...protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

MEMORY = Path("/dev/shm")  # noqa: S108 - its files are 0600, exclusive, and never followed links
"""Where shared memory lies, if it has room."""
SPARE = 16 << 20
"""Bytes that are left free there for everybody else."""
_NAME = re.compile(r"umbel-[a-z]+-(\d{1,10})-(\d{1,20})-\d{1,10}\Z")
_SERIAL = itertools.count()
_START = 19
"""Place of the start in /proc/PID/stat, after the command's name."""


class Segment:
    """One mapped file. Made by `create` or `attach`."""

    def __init__(self, path: Path, handle: int, *, write: bool) -> None:
        """Map an open file. The mapping has a descriptor of its own, and the owner's lock on it."""
        self._map = mmap.mmap(handle, 0, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        self._taken: set[int] = set()
        self.path = path
        self.view = memoryview(self._map)
        """The bytes; read-only where the segment was attached so."""

    @classmethod
    def create(cls, directory: Path, nbytes: int, kind: str, *, bare: bool = False) -> Self:
        """Make a file of zeros that this process owns.

        Args:
            directory: Where.
            nbytes: 1 or more.
            kind: A word of small letters, for whoever lists the directory.
            bare: Take no memory yet: `take` does before anybody writes.

        Raises:
            SettingsError: No bytes, or no such word.
            StateError: The directory has no room for it, or takes no file.
        """
        if nbytes < 1 or not re.fullmatch("[a-z]+", kind):
            raise SettingsError("segment", "1 byte or more and a word", (nbytes, kind))
        pid = os.getpid()
        path = directory / f"umbel-{kind}-{pid}-{_started(pid)}-{next(_SERIAL)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(path, flags, 0o600)
        except OSError as error:
            raise StateError(str(directory), "room for shared memory", error.strerror) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, nbytes)
            if not bare:
                os.posix_fallocate(handle, 0, nbytes)
            return cls(path, handle, write=True)
        except OSError as error:
            path.unlink()
            raise _no_room(directory, nbytes, error) from error
        finally:
            os.close(handle)

    @classmethod
    def attach(cls, path: Path, nbytes: int, *, write: bool) -> Self:
        """Map the file of another process of this user.

        Raises:
            StateError: There is none, it is a link, another user's, open to others, or it has
                another size.
        """
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(path, flags)
        except OSError as error:
            raise StateError(str(path), "shared memory, no link", error.strerror) from error
        try:
            about = os.fstat(handle)
            if not _private(about) or about.st_size != nbytes:
                got = f"{about.st_size} bytes of user {about.st_uid}, {about.st_mode:o}"
                raise StateError(str(path), f"{nbytes} bytes of this user, 0600", got)
            return cls(path, handle, write=write)
        finally:
            os.close(handle)

    def take(self, start: int, nbytes: int) -> None:
        """Take the memory of a part of a bare segment, once.

        Raises:
            StateError: There is none left.
        """
        if start in self._taken:
            return
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.posix_fallocate(handle, start, nbytes)
            finally:
                os.close(handle)
        except OSError as error:
            raise _no_room(self.path.parent, nbytes, error) from error
        self._taken.add(start)

    def array(self, dtype: str, start: int = 0, stop: int | None = None) -> np.ndarray[Any, Any]:
        """Return bytes [start, stop) as a flat array of `dtype`, no copy."""
        return np.frombuffer(self.view[start:stop], dtype)

    def close(self) -> None:
        """Let go of the memory: at once, or with this object when the last array over it goes."""
        with suppress(BufferError):
            self.view.release()
            self._map.close()

    def unlink(self) -> None:
        """Remove the file; who has mapped it keeps its memory. For the owner only."""
        self.path.unlink(missing_ok=True)


class Shelf:
    """Where a process makes its segments: in memory, or on disk where there is no room."""

    def __init__(
        self, fallback: Path, say: Callable[[str, str], None], memory: Path = MEMORY
    ) -> None:
        """Remove what dead owners left in both directories.

        Args:
            fallback: A directory of this user on disk.
            say: Takes a kind and a line for the log.
            memory: The directory in memory.
        """
        self._memory, self._fallback, self._say = memory, fallback, say
        self._told = False
        self._made: WeakSet[Segment] = WeakSet()
        for directory in (memory, fallback):
            count = remove_leftovers(directory)
            if count:
                say("memory", f"{directory}: removed {count} files of processes that have died")

    def create(self, nbytes: int, kind: str, first: int = 0) -> Segment:
        """Make a segment where there is room; see `Segment.create`.

        Of a bare one the first `first` bytes are taken, and there must be room for these.
        """
        made = self._created(nbytes, kind, first)
        if first:
            made.take(0, first)
        self._made.add(made)
        # One that is forgotten while it is in use, by an error on the way, leaves no file.
        finalize(made, made.path.unlink, missing_ok=True).atexit = False
        return made

    def close(self) -> None:
        """Remove every file that was made here and is still used."""
        for segment in list(self._made):
            segment.unlink()

    def _created(self, nbytes: int, kind: str, first: int) -> Segment:
        needed = first or nbytes
        room = min(_room(self._memory), available())  # its files are in the machine's memory
        if room >= needed + SPARE:
            return Segment.create(self._memory, nbytes, kind, bare=bool(first))
        if not self._told:
            self._told = True
            free = f"{room >> 20} MiB free for {needed >> 20} MiB"
            self._say(
                "memory", f"{self._memory} has {free}: shared memory lies in {self._fallback}"
            )
        return Segment.create(self._fallback, nbytes, kind, bare=bool(first))


def remove(segments: Iterable[Segment]) -> None:
    """Give up segments that this process owns."""
    for segment in segments:
        segment.close()
        segment.unlink()


def remove_leftovers(directory: Path) -> int:
    """Unlink the segments in a directory whose owners have died; return how many."""
    removed = 0
    try:
        names = os.listdir(directory)
    except OSError:
        return 0
    for name in names:
        owner = _NAME.fullmatch(name)
        if owner and _started(int(owner[1])) != int(owner[2]) and _unlocked(directory / name):
            with suppress(OSError):  # another sweep was first
                os.unlink(directory / name)
                removed += 1
    return removed


def _no_room(directory: Path, nbytes: int, error: OSError) -> StateError:
    return StateError(str(directory), f"{nbytes >> 20} MiB for shared memory", error.strerror)


def _unlocked(path: Path) -> bool:
    """Say whether a file is this user's own and nobody holds its lock."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if not _private(os.fstat(handle)):
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)


def _private(about: os.stat_result) -> bool:
    mine = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()
    return mine and not about.st_mode & 0o077


def _room(directory: Path) -> int:
    """Return the bytes that a directory has room for; 0 where there is none."""
    try:
        about = os.statvfs(directory)
    except OSError:
        return 0
    return about.f_bavail * about.f_frsize


def _started(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; -1 if there is none."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return -1
    return int(about.rpartition(")")[2].split()[_START])
