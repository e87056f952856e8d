"""Ways to spoil bytes: blindly, and along the structure that they have.

Each mutator takes a `random.Random` (hypothesis's own in the suite, a seeded one in the soak) and
the bytes of something valid, and returns other bytes. `MUTATORS` names them by form; `MONSTERS`
are inputs of each form that are always tried, once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    Mutator = Callable[[Random, bytes], bytes]

DEEP = 100_000
NUMBERS = (0, 1, 2, 31, 127, 128, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
TERMINAL = "\x1b]0;owned\x07\x1b[2J\r\n\u202e\x00\x9b31m"
WORDS = (
    "", " ", "a" * 300, "../../etc/passwd", "/", "C:\\", TERMINAL, "\ufeff", "e\u0301", "\u0661",
    "NaN", "1e999", "train", "0" * 64, "f" * 32, "__proto__", "%n%s", "x" * 5000,
)  # fmt: skip


# ---- any bytes -----------------------------------------------------------------------------


def flip(rng: Random, data: bytes) -> bytes:
    """Change one bit."""
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def poke(rng: Random, data: bytes) -> bytes:
    """Write a number of 1 to 8 bytes somewhere: many of them are lengths."""
    width = rng.choice((1, 2, 4, 8))
    number = rng.choice(NUMBERS) % (1 << 8 * width)
    at = rng.randrange(len(data) + 1)
    return data[:at] + number.to_bytes(width, rng.choice(("little", "big"))) + data[at + width :]


def cut(rng: Random, data: bytes) -> bytes:
    """Leave the end away."""
    return data[: rng.randrange(len(data) + 1)]


def drop(rng: Random, data: bytes) -> bytes:
    """Leave a part away."""
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:at] + data[end:]


def double(rng: Random, data: bytes) -> bytes:
    """Say a part twice."""
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:end] + data[at:]


def insert(rng: Random, data: bytes) -> bytes:
    """Put random bytes, or a word, in between."""
    at = rng.randrange(len(data) + 1)
    if rng.randrange(2):
        extra = rng.choice(WORDS).encode("utf-8", "surrogatepass")
    else:
        extra = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    return data[:at] + extra + data[at:]


BLIND: tuple[Mutator, ...] = (flip, poke, cut, drop, double, insert)


# ---- protobuf ------------------------------------------------------------------------------

Field = tuple[int, int, bytes]
"""Number, wire type, and the value as it stands, without the length of a length-delimited one."""


def varint(number: int, spare: int = 0) -> bytes:
    """Return a number as a varint, longer than needed by `spare` bytes."""
    out = bytearray()
    while number > 0x7F or spare:
        out.append(number & 0x7F | 0x80)
        spare -= number <= 0x7F
        number >>= 7
    return bytes([*out, number])


def fields(data: bytes) -> list[Field] | None:
    """Return the fields of a message; None where it is none."""
    found: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == 0:
            _, end = _number(data, at)
        elif kind == 2:
            length, at = _number(data, at)
            end = at + length
        else:
            end = at + {1: 8, 5: 4}.get(kind, len(data) + 1)
        if tag < 8 or end > len(data):
            return None
        found.append((tag >> 3, kind, data[at:end]))
        at = end
    return found


def joined(parts: Sequence[Field]) -> bytes:
    """Return the message of these fields."""
    return b"".join(
        varint(number << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value
        for number, kind, value in parts
    )


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    return 0, len(data) + 1


def message(rng: Random, data: bytes) -> bytes:
    """Change a protobuf message along its fields, at any depth."""
    parts = fields(data)
    if not parts:
        return insert(rng, data)
    at = rng.randrange(len(parts))
    number, kind, value = parts[at]
    if kind == 2 and value and rng.randrange(3):
        inner = message(rng, value) if fields(value) and rng.randrange(4) else _blob(rng, value)
        return joined([*parts[:at], (number, kind, inner), *parts[at + 1 :]])
    return _rearranged(rng, parts, at)


def _blob(rng: Random, value: bytes) -> bytes:
    """Return another value of a length-delimited field, often of the same length."""
    if rng.randrange(2):
        return flip(rng, value)
    return rng.choice((value[:-1], value + b"\x00", b"", bytes(len(value)), value * 2, _word(rng)))


def _word(rng: Random) -> bytes:
    return rng.choice(WORDS).encode("utf-8", "surrogatepass")


def _rearranged(rng: Random, parts: list[Field], at: int) -> bytes:
    """Reorder, repeat, drop, renumber or retype a field, or add an unknown one."""
    number, kind, _ = parts[at]
    what = rng.randrange(7)
    rest = [*parts[:at], *parts[at + 1 :]]
    if what == 0:
        rng.shuffle(parts)
    elif what == 1:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    elif what == 2:
        parts = rest
    elif what == 3:
        parts[at] = (number, 0, varint(rng.choice(NUMBERS), rng.randrange(3)))
    elif what == 4:
        parts[at] = (rng.choice((number + 1, 1, 15, 2**29 - 1)), kind, parts[at][2])
    elif what == 5:
        parts.append((rng.choice((77, 536870911)), 2, bytes(rng.randrange(4000))))
    else:
        return joined(rest) + varint(number << 3 | rng.randrange(8)) + varint(2**63)
    return joined(parts)


def placed(rng: Random, data: bytes) -> bytes:
    """Change a message behind the byte that says when it is sent; rarely that."""
    if not rng.randrange(20):
        return bytes([rng.randrange(256)]) + data[1:]
    ways = (message, message, message, *BLIND)
    return data[:1] + rng.choice(ways)(rng, data[1:])


# ---- JSON ----------------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308,
    float("inf"), float("-inf"), float("nan"), "", [], {}, [[]], [None], {"a": 1}, [{}], "0",
    *WORDS,
)  # fmt: skip


def document(rng: Random, data: bytes) -> bytes:
    """Change a JSON text along its tree; what JSON cannot say is said in Python's dialect."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return insert(rng, data)
    text = json.dumps(tree_change(rng, tree), ensure_ascii=bool(rng.randrange(4)))
    how = rng.randrange(12)
    if how == 0:
        return rng.choice((b"\xef\xbb\xbf", b" ", b"\x00", b"//\n")) + _encoded(text)
    if how == 1:
        return _encoded(text) + rng.choice((b"\x00", b"}", b"{}", b" \n", b"1"))
    if how == 2:
        return text.encode(rng.choice(("utf-16", "utf-32-le", "latin-1")), "replace")
    if how == 3:  # every key twice
        return _encoded(text.replace('{"', '{"a":0,"a":1,"', 1))
    return _encoded(text)


def cells(rng: Random, data: bytes) -> bytes:
    """Change one value of a JSON object; what comes out is JSON, and has the same keys."""
    tree = json.loads(data)
    key = rng.choice(sorted(tree))
    changed = tree_change(rng, tree[key]) if rng.randrange(2) else rng.choice(ODD)
    return _encoded(json.dumps(tree | {key: changed}))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def tree_change(rng: Random, tree: Any) -> Any:
    """Return a tree with one place changed."""
    if isinstance(tree, dict) and tree and rng.randrange(5):
        key = rng.choice(sorted(tree))
        rest = {k: v for k, v in tree.items() if k != key}
        odd, word = rng.choice(ODD), rng.choice(WORDS)
        others = (rest, rest | {word: tree[key]}, tree | {word: odd})
        what = rng.randrange(8)
        return others[what] if what < 3 else tree | {key: tree_change(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.randrange(5):
        at = rng.randrange(len(tree))
        lists = (tree[:at] + tree[at + 1 :], tree * 2)
        what = rng.randrange(6)
        changed = [*tree[:at], tree_change(rng, tree[at]), *tree[at + 1 :]]
        return lists[what] if what < 2 else changed
    return rng.choice(ODD)


# ---- lines and TOML ------------------------------------------------------------------------

TOML_VALUES = (
    "1", "-1", "0", "0x" + "f" * 40, "0b1", "1e999", "-inf", "nan", "+nan", "true", '""', "''",
    '"\\u0000"', '"\\u001b[2J"', "[]", "[[]]", "{}", "{a=1}", "[1, 'a']", "1979-05-27T07:32:00Z",
    "07:32:00", "1_000", "9" * 30, '"""\n"""', "'" + "x" * 4000 + "'", "[" * 30 + "]" * 30, "é",
)  # fmt: skip


def lines(rng: Random, data: bytes) -> bytes:
    """Drop, repeat, swap or spoil a line."""
    found = data.split(b"\n")
    at, other = rng.randrange(len(found)), rng.randrange(len(found))
    what = rng.randrange(5)
    if what == 0:
        del found[at]
    elif what == 1:
        found.insert(other, found[at])
    elif what == 2:
        found[at], found[other] = found[other], found[at]
    elif what == 3:
        found[at] = rng.choice(BLIND)(rng, found[at])
    else:
        words = found[at].split(b" ")
        words[rng.randrange(len(words))] = rng.choice((b"", b"0", _word(rng), words[-1]))
        found[at] = b" ".join(words)
    return b"\n".join(found)


def toml(rng: Random, data: bytes) -> bytes:
    """Change a value, a key or a table of a TOML text."""
    if not rng.randrange(4):
        return lines(rng, data)
    found = data.decode("utf-8", "replace").split("\n")
    at = rng.randrange(len(found))
    key, equals, value = found[at].partition("=")
    what = rng.randrange(4)
    if what == 0 or not equals:
        found.insert(at, rng.choice(("[secure]", "[[trust]]", "a.b.c = 1", "[a.b]", '"" = 1')))
    elif what == 1:
        found[at] = f"{rng.choice(('x', 'é', 'a.b', key + key.strip()))} ={value}"
    else:
        found[at] = f"{key}= {rng.choice(TOML_VALUES)}"
    return "\n".join(found).encode()


# ---- DER -----------------------------------------------------------------------------------


def der(rng: Random, data: bytes) -> bytes:
    """Change one value of a DER structure, at any depth, with the lengths around it mended."""
    at = 0
    parts: list[bytes] = []
    while at + 2 <= len(data):
        size, start = data[at + 1], at + 2
        if size & 0x80:
            width = size & 0x7F
            size, start = int.from_bytes(data[start : start + width]), start + width
        if start + size > len(data):
            return rng.choice(BLIND)(rng, data)
        parts.append(data[at : start + size])
        at = start + size
    if at != len(data) or not parts:
        return rng.choice(BLIND)(rng, data)
    where = rng.randrange(len(parts))
    what = rng.randrange(8)
    if what == 0:
        del parts[where]
    elif what == 1:
        parts.insert(where, parts[where])
    else:
        parts[where] = _der_value(rng, parts[where])
    return b"".join(parts)


def _der_value(rng: Random, part: bytes) -> bytes:
    """Change what is inside of one value, or its tag."""
    tag, size = part[0], part[1]
    start = 2 + (size & 0x7F if size & 0x80 else 0)
    body = part[start:]
    if tag & 0x20 or tag in (3, 4):
        body = body[:1] + der(rng, body[1:]) if tag == 3 else der(rng, body)
    elif rng.randrange(4):
        body = rng.choice(BLIND)(rng, body)
    else:
        tag = rng.choice((1, 2, 3, 4, 5, 6, 12, 19, 22, 23, 24, 48, 49, 0xA0))
    length = len(body)
    if length < 0x80:
        return bytes([tag, length]) + body
    wide = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(wide)]) + wide + body


MUTATORS: dict[str, tuple[Mutator, ...]] = {
    "bytes": BLIND,
    "protobuf": (message, message, message, *BLIND),
    "placed": (placed,),
    "json": (document, document, document, document, *BLIND),
    "cells": (cells,),
    "toml": (toml, toml, toml, toml, *BLIND),
    "lines": (lines, lines, lines, *BLIND),
    "der": (der, der, der, *BLIND),
}
_NESTED = b'{"a":' * DEEP
_DIGITS = b"0x" + b"f" * 6000
MONSTERS: dict[str, tuple[bytes, ...]] = {
    "bytes": (b"", bytes(65535), b"\xff" * 65535, b"\n" * 65535),
    "protobuf": (
        b"\x0a" * 65534, b"\x0b" * 65534, b"\x12\xff\xff\xff\xff\x07",
        varint(2**64 - 1) * 6000, b"\x1a\x02\x08\x01" * 16000, b"\x22\x00" * 32000,
    ),
    "json": (
        b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, _NESTED, _NESTED + b"1" + b"}" * DEEP,
        b"9" * 60000, b'{"a":' + b"9" * 60000 + b"}", b"[" + b"[]," * 20000 + b"1]",
        b'"' + b"\\ud800" * 9000 + b'"', b"[" * 900 + b"]" * 900, b"NaN", b"1e999",
        b'{"op":' * 900 + b"1" + b"}" * 900, b"\xff\xfe[\x00",
    ),
    "toml": (
        b"a = " + b"[" * DEEP, b"a = " + b"{b=" * 20000, b"a." * 30000 + b"a = 1",
        b"[" + b"a." * 30000 + b"a]", b"a = " + b"9" * 60000, b"a = " + _DIGITS,
        b"ddp = " + _DIGITS, b"[secure]\ncorrupt_min = " + _DIGITS, b"\xef\xbb\xbf",
        b"[secure]\ndropout = " + _DIGITS, b"[tool.umbel]\nrounds = " + _DIGITS,
        b"[tool.umbel]\ndeadline = 0x" + b"f" * 400, b"[tool.umbel]\nlr = 0x" + b"f" * 400,
        b"[secure]\n" + b" " * 60000 + b"\nrequired = true\n", b"=" * 60000, b'"' * 60000,
        b"[secure]\nrequired = " + b"[" * 400, b"# " + b"\x1b" * 100,
        b"[secure]\nrequired = " + b"[" * 900 + b"]" * 900, b"a = " + b"1" * 5000,
        b"".join(b"k%d = 1\n" % i for i in range(5000)),
        b"".join(b"[t%d]\n" % i for i in range(6000)),
    ),
    "lines": (
        b"UMBEL_DEADLINE=" + b"9" * 400, b"UMBEL_LR=" + b"9" * 400, b"UMBEL_SEED=" + b"9" * 5000,
        b"\n" * 60000, b" " * 60000, b"closed " * 8000, b"closed \n" * 8000,
    ),
    "der": (b"\x30\x80" * 30000, b"\x30\x84\xff\xff\xff\xff", b"\x30\x82\x0f\xff" + bytes(4095)),
}  # fmt: skip
"""Tried as they are: nothing of this kind grows out of small mutations."""
