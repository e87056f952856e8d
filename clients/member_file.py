"""The newest member list that a device has seen, in its directory: `members.list`, mode 0600.

It is what keeps an older list from being shown after a restart. A session and an enrolment or
renewal may both bring one, so a list takes the place of an older one only, under a lock.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .policy_file import read_owned_bytes
from ..host.whole_file import write_whole
from ..protocol.errors import Malformed, StateError
from ..protocol.members import MAX_BYTES, epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "members.list"
_MOVE = "restore the file, or enrol this device anew: it says which lists are too old"


def read(directory: Path) -> bytes | None:
    """Return the list that was kept last, as it was signed; None before the first.

    Raises:
        SettingsError: The file cannot be read, or others could have written it.
        StateError: It holds no list.
    """
    file = directory / FILE
    if not file.exists():
        return None
    found = read_owned_bytes(file, MAX_BYTES)
    try:
        epoch_of(found)
    except Malformed as error:
        raise StateError(str(file), "a member list", error, _MOVE) from error
    return found


def keep(directory: Path, raw: bytes) -> None:
    """Keep a list that was verified, unless a newer one is there; durable when this returns.

    Raises:
        SettingsError: What is there cannot be read, or others could have written it.
        StateError: It cannot be written, or what is there is no list.
    """
    try:
        with _locked(directory):
            before = read(directory)
            if before is None or epoch_of(before) < epoch_of(raw):
                write_whole(directory / FILE, raw)
    except OSError as error:
        where, why = str(directory / FILE), error.strerror or error
        move = "this device joins no secure round until it can keep the list"
        raise StateError(where, "a file that can be written", why, move) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
