"""One byte form for a table of settings, the same on every machine.

A hash or a signature needs bytes that two implementations agree on; protobuf and JSON give no
such promise. `canonical` sorts the entries by the bytes of their key and writes each as
lp(key) + lp(type tag) + lp(value); lp(z) is the length of z as 8 little-endian bytes, then z.

| Tag | Type    | Value                                              |
|-----|---------|----------------------------------------------------|
| `b` | bool    | `0` or `1`                                         |
| `i` | integer | decimal ASCII, no leading zero, `-` when negative  |
| `f` | float   | 8 IEEE-754 bytes, little-endian; NaN is refused    |
| `s` | string  | UTF-8 of the NFC form                              |
| `y` | bytes   | as they are                                        |

A nested table's names are joined by dots, a sequence is entered item by item as `key.0`,
`key.1`, ...; so an empty table or sequence leaves no entry, and `{"a": [7]}` is `{"a.0": 7}`.
"""

from __future__ import annotations

import math
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

from . import messages_pb2 as pb
from .errors import Malformed, SettingsError

Scalar = bool | int | float | str | bytes

MAX_SETTINGS = 256
MAX_SETTINGS_BYTES = 64 * 1024
MAX_DEPTH = 16
_INT64 = range(-(2**63), 2**63)


def lp(*parts: bytes) -> bytes:
    """Return every part after its length as 8 little-endian bytes, one after the other."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def canonical(entries: Mapping[str, object]) -> bytes:
    """Return the byte form of a table of scalars, nested tables and sequences of them.

    Raises:
        SettingsError: A key occurs twice after joining and NFC or is empty, a value has no
            type of the table above, a float is NaN, or tables nest deeper than `MAX_DEPTH`.
    """
    packed: dict[bytes, bytes] = {}
    for key, value in _flat(entries, "", 0):
        name = _text(key, key)
        if name in packed:
            raise SettingsError(key, "a key that occurs once", "a second value", "rename one")
        packed[name] = lp(name, *_tagged(key, value))
    return b"".join(packed[name] for name in sorted(packed))


def settings_to_pb(mapping: Mapping[str, object]) -> list[pb.Setting]:
    """Return the table as messages, flat and sorted by key, within the limits of the wire.

    Raises:
        SettingsError: As `canonical`; or an integer beyond 64 bits, more than `MAX_SETTINGS`
            entries or more than `MAX_SETTINGS_BYTES`.
    """
    canonical(mapping)
    items = [_to_pb(key, value) for key, value in _flat(mapping, "", 0)]
    _check_size(items, "settings")
    return sorted(items, key=lambda item: _text(item.key, item.key))


def settings_from_pb(items: Iterable[pb.Setting], peer: str = "server") -> dict[str, Scalar]:
    """Return messages as a flat table, whose `canonical` is that of the sender's table.

    Raises:
        Malformed: A key is empty or occurs twice, a value is unset or NaN, or the table is
            larger than `MAX_SETTINGS` entries or `MAX_SETTINGS_BYTES`; `peer` is named.
    """
    try:
        return _table(list(items))
    except SettingsError as error:
        raise Malformed(peer, f"settings, {error}") from error


def _flat(value: object, key: str, depth: int) -> Iterator[tuple[str, Scalar]]:
    """Yield the scalars below `value` with their joined keys, in the order of the table."""
    if isinstance(value, bool | int | float | str | bytes):
        if not key:
            raise SettingsError("settings", "a key with at least one character", key)
        yield key, value
        return
    if depth == MAX_DEPTH:
        raise SettingsError(key, f"at most {MAX_DEPTH} levels of tables", "a deeper one")
    for name, child in _children(key, value):
        if not isinstance(name, str) or not name:
            raise SettingsError(key or "settings", "names that are non-empty strings", name)
        yield from _flat(child, f"{key}.{name}" if key else name, depth + 1)


def _children(key: str, value: object) -> Iterable[tuple[object, object]]:
    """Return the names and values inside a table or a sequence."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, Sequence) and not isinstance(value, bytearray | memoryview):
        return ((str(i), child) for i, child in enumerate(value))
    expected = "a bool, int, float, str or bytes, or a table or list of them"
    raise SettingsError(key, expected, type(value).__name__)


def _tagged(key: str, value: Scalar) -> tuple[bytes, bytes]:
    """Return the type tag and the value bytes of one scalar."""
    if isinstance(value, bool):
        return b"b", b"1" if value else b"0"
    if isinstance(value, int):
        return b"i", b"%d" % value
    if isinstance(value, float):
        if math.isnan(value):
            raise SettingsError(key, "a number", value)
        return b"f", struct.pack("<d", value)
    if isinstance(value, str):
        return b"s", _text(key, value)
    return b"y", value


def _text(key: str, text: str) -> bytes:
    """Return the UTF-8 bytes of the NFC form."""
    try:
        return unicodedata.normalize("NFC", text).encode()
    except UnicodeEncodeError as error:
        raise SettingsError(ascii(key), "text that UTF-8 can hold", ascii(text)) from error


def _to_pb(key: str, value: Scalar) -> pb.Setting:
    """Return one entry as a message."""
    if isinstance(value, bool):
        return pb.Setting(key=key, flag=value)
    if isinstance(value, int):
        if value not in _INT64:
            raise SettingsError(key, "an integer of 64 bits", value)
        return pb.Setting(key=key, integer=value)
    if isinstance(value, float):
        return pb.Setting(key=key, real=value)
    if isinstance(value, str):
        return pb.Setting(key=key, text=value)
    return pb.Setting(key=key, raw=value)


def _table(items: list[pb.Setting]) -> dict[str, Scalar]:
    """Return the table that messages hold, in their order."""
    _check_size(items, "settings")
    table: dict[str, Scalar] = {}
    for item in items:
        name = item.WhichOneof("value")
        if name is None or item.key in table:
            raise SettingsError(item.key, "one value for a key", "none" if name is None else "two")
        table[item.key] = getattr(item, name)
    canonical(table)
    return table


def _check_size(items: Sequence[pb.Setting], where: str) -> None:
    """Refuse more entries or bytes than one message may carry."""
    if len(items) > MAX_SETTINGS:
        raise SettingsError(where, f"at most {MAX_SETTINGS} entries", len(items))
    size = sum(item.ByteSize() for item in items)
    if size > MAX_SETTINGS_BYTES:
        raise SettingsError(where, f"at most {MAX_SETTINGS_BYTES} bytes", size)
