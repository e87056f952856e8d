"""A strict TOML file: who could have written it, what its keys may hold, where a key stands.

Not a TOML reader: tomllib is. The functions `flag` to `command` make a `Key`, which turns a
TOML value into a field or refuses it; policy.py lists the keys.
"""

from __future__ import annotations

import math
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LIMIT = 1 << 20
_INT64 = 2**63 - 1
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_NAMES = re.compile(r"""[\w."' \t-]+""")


class Key(NamedTuple):
    """How one key is read: its values in words, and the way from TOML to field.

    `read` raises TypeError, ValueError or OverflowError for a value that may not stand there.
    """

    expected: str
    read: Callable[[object], object]


def flag() -> Key:
    """A truth value."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    return Key("true or false", read)


def integer(low: int) -> Key:
    """An integer from `low` up, within 64 bits."""

    def read(value: object) -> int:
        if type(value) is not int:
            raise TypeError
        if not low <= value <= _INT64:
            raise ValueError
        return value

    return Key(f"an integer, {low} or more", read)


def share() -> Key:
    """A share of something: [0, 1)."""

    def read(value: object) -> float:
        number = _real(value)
        if not 0.0 <= number < 1.0:
            raise ValueError
        return number

    return Key("a number, 0 or more and below 1", read)


def positive() -> Key:
    """A finite number above 0."""

    def read(value: object) -> float:
        number = _real(value)
        if not 0.0 < number < math.inf:
            raise ValueError
        return number

    return Key("a finite number above 0", read)


def text(pattern: str, expected: str) -> Key:
    """A string that the pattern matches whole, printable."""

    def read(value: object) -> str:
        return _matching(value, pattern)

    return Key(expected, read)


def texts(pattern: str, expected: str) -> Key:
    """A list of such strings."""

    def read(value: object) -> tuple[str, ...]:
        return tuple(_matching(item, pattern) for item in _items(value))

    return Key(f"a list of {expected}", read)


def digests(expected: str = "SHA-256 digests") -> Key:
    """A list of 32 bytes each, in hex."""

    def read(value: object) -> tuple[bytes, ...]:
        return tuple(bytes.fromhex(_matching(item, "[0-9a-f]{64}")) for item in _items(value))

    return Key(f"a list of {expected}, 64 lower-case hex digits each", read)


def windows() -> Key:
    """A list of windows of local time, each with an end that is not its beginning."""
    clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"

    def read(value: object) -> tuple[str, ...]:
        found = tuple(_matching(item, f"{clock}-(?:{clock}|24:00)") for item in _items(value))
        if any(begin == end for begin, _, end in (item.partition("-") for item in found)):
            raise ValueError
        return found

    return Key("a list of windows 'HH:MM-HH:MM' of local time", read)


def command() -> Key:
    """A program's absolute path and its arguments; no shell reads them."""

    def read(value: object) -> tuple[str, ...]:
        found = tuple(_matching(item, ".*") for item in _items(value))
        if not found or not found[0].startswith("/"):
            raise ValueError
        return found

    return Key("a list: the absolute path of a program, and its arguments", read)


def read_owned(path: Path) -> str:
    """Return the text of a file that the user or root owns and nobody else may write.

    Raises:
        SettingsError: As `read_owned_bytes`; also for more than 1 MiB, and for what is no UTF-8.
    """
    data = read_owned_bytes(path, _LIMIT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}", "UTF-8", "other bytes") from error


def read_owned_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of a file that the user or root owns and nobody else may write.

    A symbolic link is refused, because whoever may replace the link chooses the file; so is a
    file in a directory in which others may replace it.

    Raises:
        SettingsError: It cannot be read, is no regular file, is larger than `limit`, or others
            could have written it.
    """
    try:
        with open(path, "rb", opener=_open_itself) as file:
            _check_owner(path, os.fstat(file.fileno()))
            data = file.read(limit + 1)
    except OSError as error:
        if path.is_symlink():
            move = f"name the file itself: {path.resolve()}"
            raise SettingsError(str(path), "a file", "a symbolic link", move) from error
        raise SettingsError(str(path), "a readable file", error.strerror) from error
    if len(data) > limit:
        raise SettingsError(str(path), f"at most {limit} bytes", "more")
    return data


def line_of(text: str, key: str) -> int:
    """Return the line, from 1, on which a table or dotted key is set.

    Where only an enclosing table is found (an inline table), its line; 1 where nothing is.
    """
    found = 1
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        header = _HEADER.fullmatch(line)
        entry, equals, _ = line.partition("=")
        if header:
            table = _bare(header[1])
            name = table
        elif equals and _NAMES.fullmatch(entry):
            name = f"{table}.{_bare(entry)}".lstrip(".")
        else:
            continue
        if name == key:
            return number
        if found == 1 and (name.startswith(f"{key}.") or key.startswith(f"{name}.")):
            found = number
    return found


def _real(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _matching(value: object, pattern: str) -> str:
    if not isinstance(value, str):
        raise TypeError
    if re.fullmatch(pattern, value) is None or not value.isprintable():
        raise ValueError
    return value


def _bare(name: str) -> str:
    """Return a dotted key without quotes and blanks around its parts."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _open_itself(path: str, flags: int) -> int:
    """Open the file, not what a link leads to; never wait for the writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(str(path), "a regular file", stat.filemode(status.st_mode))
    if status.st_uid not in (0, os.geteuid()):
        raise SettingsError(str(path), "a file of this user or root", f"user {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise SettingsError(str(path), "no write permission but the owner's", mode, "chmod go-w")
    folder = os.stat(path.absolute().parent)
    if folder.st_uid not in (0, os.geteuid()):  # whoever owns it may put another file there
        owner = f"user {folder.st_uid}"
        raise SettingsError(str(path.parent), "a directory of this user or root", owner)
    sticky = folder.st_mode & stat.S_ISVTX
    if folder.st_mode & _OTHERS_WRITE and not sticky:
        mode = f"mode {stat.S_IMODE(folder.st_mode):04o}"
        raise SettingsError(str(path.parent), "a directory only its owner may change", mode)
