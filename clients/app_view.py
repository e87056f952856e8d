"""What an owner sees of a bundle: its files, who signed it, and how it differs from another.

Words of a bundle are somebody else's: each line is shown as one line that steers no terminal. What
Python takes for the end of a line is one here, a carriage return too, and it and a form feed, after
which Python forgets an indentation, are shown: else a comment could hide a statement.
"""

from __future__ import annotations

import difflib
import io
import re
import tokenize
from typing import TYPE_CHECKING, Any, NamedTuple

from ..protocol.errors import Malformed, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .bundle import Bundle

LARGEST = 256 << 10
"""Bytes of a file whose lines are compared: the comparison takes quadratic time."""
MOST_LINES = 4000


class Change(NamedTuple):
    """How one file differs."""

    name: str
    how: str
    """`added`, `removed` or `changed`."""
    lines: tuple[str, ...]
    """A unified diff; for what is no text, or too long, one line that says so."""


def described(bundle: Bundle, publishers: tuple[bytes, ...]) -> dict[str, Any]:
    """Return what is known of a bundle, for JSON."""
    try:
        signers = sorted(bundle.signers())
    except Malformed:
        signers = []
    return {
        "sha256": bundle.digest.hex(),
        "app": bundle.app,
        "release": bundle.version,
        "bytes": bundle.size,
        "files": {name: len(data) for name, data in sorted(bundle.files.items())},
        "signed": [{"key": key.hex(), "listed": key in publishers} for key in signers],
    }


def changes(old: Bundle | None, new: Bundle) -> list[Change]:
    """Return what differs, file by file; without an old one every file is added."""
    before = {} if old is None else old.files
    found = []
    for name in sorted(before.keys() | new.files.keys()):
        a, b = before.get(name), new.files.get(name)
        if a != b:
            how = "added" if a is None else "removed" if b is None else "changed"
            found.append(Change(name, how, tuple(_unified(name, a or b"", b or b""))))
    return found


def _unified(name: str, a: bytes, b: bytes) -> Iterator[str]:
    sides = [_lines(data) for data in (a, b)]
    old, new = sides
    if old is None or new is None:
        yield f"{name}: {len(a)} and {len(b)} bytes, not shown: no text of UTF-8, or too long"
        return
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm=""):
        yield one_line(_seen(line))


def _lines(data: bytes) -> list[str] | None:
    """Return the lines of a text; None where it is none, or too long to compare.

    Nor is one a text whose first lines tell Python of another encoding: that reads other words.
    """
    if len(data) > LARGEST:
        return None
    try:
        if tokenize.detect_encoding(io.BytesIO(data).readline)[0] not in {"utf-8", "utf-8-sig"}:
            return None
        lines = re.sub(r"\r\n?", "\\\\r\n", data.decode("utf-8")).split("\n")
    except (UnicodeDecodeError, SyntaxError):  # the latter: an encoding that nobody knows
        return None
    return lines if len(lines) <= MOST_LINES else None


def _seen(line: str) -> str:
    """Return a line with escapes for white space that looks like a blank and is none."""
    return "".join(c if c in " \t" or not c.isspace() else ascii(c)[1:-1] for c in line)
