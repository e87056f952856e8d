"""Length-prefixed fields behind a label: the byte form of member lists and tickets.

`label` as it is, then lp(field) for each field (canonical.py). The label says what the bytes
are, so that nothing signed as one thing can be shown as another.
"""

from __future__ import annotations

from .canonical import lp
from .errors import Malformed

_LENGTH = 8


def pack(label: bytes, *fields: bytes) -> bytes:
    """Return the label and every field after its length as 8 little-endian bytes."""
    return label + lp(*fields)


def unpack(label: bytes, raw: bytes, count: int, peer: str) -> list[bytes]:
    """Return the `count` fields behind `label`; nothing may follow them.

    Raises:
        Malformed: Another label, or fields that end too early or too late.
    """
    if not raw.startswith(label):
        raise Malformed(peer, f"does not begin with {label.decode()}")
    at, fields = len(label), []
    for _ in range(count):
        begin = at + _LENGTH
        at = begin + int.from_bytes(raw[at:begin], "little")
        if at > len(raw) or begin > len(raw):
            raise Malformed(peer, f"{label.decode()} is cut short", f"{count} fields", len(fields))
        fields.append(raw[begin:at])
    if at != len(raw):
        raise Malformed(peer, f"{label.decode()} has bytes left over", 0, len(raw) - at)
    return fields


def number(field: bytes, peer: str) -> int:
    """Return a field in decimal ASCII, 0 .. 2^63 - 1, written the one way that there is.

    Raises:
        Malformed: It is written in another way.
    """
    digits = field.decode("ascii", "replace")
    value = int(digits) if len(field) <= 19 and digits.isdecimal() and digits.isascii() else -1
    if str(value).encode("ascii") != field or value >= 2**63:
        raise Malformed(peer, "a number", "decimal ASCII below 2^63", f"{len(field)} other bytes")
    return value
