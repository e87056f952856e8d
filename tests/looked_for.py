"""What of one client must not be found in what a secure run sends and keeps.

Numbers are looked for as text, as fields of protobuf messages and as 64-bit words; texts anywhere.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import HEADER
from umbel.tests.staged_app import PARAMETERS, PLACE, SCORE, SEEN, TEXT, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message

NUMBERS = (WEIGHTS[0], SEEN, SCORE, SCORE * WEIGHTS[0])
WORDS = (TEXT.split()[-1], PLACE.split("/")[2], "num-examples")
FORBIDDEN = re.compile(
    "|".join(
        [rf"(?<![0-9a-zA-Z.]){re.escape(str(number))}(?![0-9a-zA-Z])" for number in NUMBERS]
        + [re.escape(word) for word in WORDS]
    )
)
_FRACTION = 2**24
_PATTERNS = [struct.pack("<q", n) for n in (WEIGHTS[0], SEEN)] + [
    struct.pack("<d", n) for n in (SCORE, SCORE * WEIGHTS[0])
]


def check_message(up: pb.Up) -> None:
    """Look at every field of a session's message, and of what is packed in it."""
    for value in _values(up):
        _check(value)
    if up.message:
        for value in _values(pb.ToServer.FromString(up.message)):
            _check(value)


def _check(value: Any) -> None:
    if isinstance(value, str):
        assert not FORBIDDEN.search(value), value
    elif isinstance(value, bytes):
        check_bytes(value)
    else:
        assert value not in NUMBERS


def _values(message: Message) -> Iterator[Any]:
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        for item in items:
            if field.type == field.TYPE_MESSAGE:
                yield from _values(item)
            else:
                yield item


def check_bytes(data: bytes) -> None:
    """Look for texts, and for the numbers as 64-bit words."""
    for pattern in [word.encode() for word in WORDS] + _PATTERNS:
        assert pattern not in data, pattern


def check_masked(frames: list[bytes]) -> None:
    """Look at a vector: one word for all parameters before masking, any word after it."""
    vector = b"".join(frame[HEADER:] for frame in frames)
    words = np.frombuffer(vector, "<u4", PARAMETERS)
    # Of 2^32 words about n^2 / 2^33 pairs are equal by chance: 466 of two million.
    assert len(np.unique(words)) > 0.999 * PARAMETERS
    rest = np.frombuffer(vector[4 * PARAMETERS :], "<u8")
    plain = {WEIGHTS[0], SEEN, int(SCORE * WEIGHTS[0] * _FRACTION), 1}
    assert not plain & {int(word) for word in rest}


def rows(database: Path) -> Iterator[str]:
    """Return the values of every row of every table, as text."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as opened:
        tables = [
            name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for table in tables:
            for row in opened.execute(f'SELECT * FROM "{table}"'):  # noqa: S608
                for value in row:
                    if isinstance(value, bytes):
                        check_bytes(value)
                    yield value.decode("latin-1") if isinstance(value, bytes) else str(value)
