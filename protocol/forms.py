"""Strict JSON of a peer: every field is there, none is unknown, each has its type and bounds.

A form is a table from the names of an object's fields to functions that read a value, and raise
ValueError with what they expect. An error names the field and never the value.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from .documents import read_json
from .errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def read_object(
    raw: bytes, form: Mapping[str, Callable[[object], Any]], most: int, peer: str
) -> dict[str, Any]:
    """Return the fields of a JSON object of at most `most` bytes.

    Raises:
        Malformed: With the field that is wrong.
    """
    if len(raw) > most:
        raise Malformed(peer, "size", f"at most {most} bytes", len(raw))
    try:
        found = read_json(raw)
    except ValueError as error:
        raise Malformed(peer, "is no JSON") from error
    return read_fields(found, form, peer)


def read_fields(
    found: object, form: Mapping[str, Callable[[object], Any]], peer: str
) -> dict[str, Any]:
    """Return the fields of an object that has been parsed, with the same errors."""
    if not isinstance(found, dict) or set(found) != set(form):
        raise Malformed(peer, f"is no object with exactly {', '.join(form)}")
    values = {}
    for name, read in form.items():
        try:
            values[name] = read(found[name])
        except ValueError as error:
            raise Malformed(peer, f"{name} is not {error}") from None
    return values


def matching(pattern: re.Pattern[str], expected: str) -> Callable[[object], str]:
    """Read a string that the pattern matches whole."""

    def read(value: object) -> str:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise ValueError(expected)
        return value

    return read


def words(most: int) -> Callable[[object], str]:
    """Read a string of 1 to `most` printable characters."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= most or not value.isprintable():
            raise ValueError(f"1 to {most} printable characters")
        return value

    return read


def hex_bytes(length: int) -> Callable[[object], bytes]:
    """Read bytes that are written in lower-case hex."""
    digits = re.compile(f"[0-9a-f]{{{2 * length}}}")
    text = matching(digits, f"{2 * length} lower-case hex digits")
    return lambda value: bytes.fromhex(text(value))


def base64_bytes(value: object) -> bytes:
    """Read bytes that are written in base64."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else _no_base64()
    except ValueError:  # binascii.Error is one
        return _no_base64()


def one_of(known: Collection[str]) -> Callable[[object], str]:
    """Read a string that is one of these."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return value

    return read


def integer(low: int, high: int) -> Callable[[object], int]:
    """Read an integer of this range."""

    def read(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"an integer, {low} to {high}")
        return value

    return read


def several(read: Callable[[object], Any], most: int) -> Callable[[object], tuple[Any, ...]]:
    """Read a list of at most `most` values."""

    def read_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"a list of at most {most}")
        return tuple(read(item) for item in value)

    return read_all


def _no_base64() -> bytes:
    raise ValueError("base64")
