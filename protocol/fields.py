"""Length-prefixed fields behind a label: the byte form of member lists and tickets.

`label` as it is, then lp(field) for each field (canonical.py). The label says what the bytes
are, so that nothing signed as one thing can be shown as another.
"""

from __future__ import annotations

import re

from .canonical import lp
from .errors import Malformed

_LENGTH = 8
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,18}")


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
    fields: list[bytes] = []
    at = len(label)
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
    if _NUMBER.fullmatch(field) is None or int(field) >= 2**63:
        raise Malformed(peer, "a number", "decimal ASCII below 2^63", f"{len(field)} other bytes")
    return int(field)
