"""Messages between a client and its child: what goes through, and what is stopped unread."""

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from umbel.clients import pipe
from umbel.protocol.errors import Malformed, SettingsError

EMPTY = '{"arrays":[]}'


def _reader(data: bytes) -> Callable[[memoryview], None]:
    source = io.BytesIO(data)

    def fill(view: memoryview) -> None:
        if source.readinto(view) != len(view):
            raise EOFError

    return fill


def _raw(fields: object, arrays: bytes = b"", magic: bytes = b"UMBP") -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<4sIQ", magic, len(text), len(arrays)) + text + arrays


class Slow(io.BytesIO):
    """Takes seven bytes at a time, as a pipe that is nearly full may."""

    def write(self, data: Any, /) -> int:
        """Write the beginning."""
        return super().write(bytes(data[:7]))


def test_what_is_sent_is_received() -> None:
    arrays = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "n": np.array(7),
        "none": np.zeros((0, 3)),
    }
    fields = {"call": "train", "loss": 0.1 + 0.2, "text": "ä\n", "settings": {"lr": None}}
    sink = Slow()
    pipe.send(sink, fields, arrays)
    found, received = pipe.receive(_reader(sink.getvalue()), 1 << 20, "child")
    assert found == fields
    assert list(received) == list(arrays)
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert received[name].shape == array.shape
        assert received[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_raw({"manifest": EMPTY}, magic=b"HTTP"), "first bytes of a message"),
        (struct.pack("<4sIQ", b"UMBP", (1 << 24) + 1, 0), "at most 16777216"),
        (struct.pack("<4sIQ", b"UMBP", 2, 129), r"at most 16777216 \+ 128 bytes, got 2 \+ 129"),
        (_raw(b"\xff{"), "header: not UTF-8"),
        (_raw(b"[" * 100_000), "header: it nests too deep"),
        (_raw([1]), "expected a JSON object, got list"),
        (_raw({}), "expected a manifest, got NoneType"),
        (_raw({"manifest": "{}"}), "manifest JSON"),
        (_raw({"manifest": EMPTY}, bytes(64)), "array bytes: expected 0, got 64"),
        (
            _raw({"manifest": '{"arrays":[{"name":"w","shape":[1000000000],"dtype":"float32"}]}'}),
            "array bytes: expected 4000000000, got 0",
        ),
    ],
)
def test_foreign_bytes_are_named_and_not_stored(data: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says) as caught:
        pipe.receive(_reader(data), 128, "child 7")
    assert caught.value.peer == "child 7"


def test_an_object_that_would_need_pickle_cannot_be_sent() -> None:
    with pytest.raises(SettingsError):
        pipe.send(io.BytesIO(), {}, {"o": np.array([object()])})
    with pytest.raises(TypeError):
        pipe.send(io.BytesIO(), {"o": object()}, {})


def test_a_header_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "MAX_HEADER", 100)
    sink = io.BytesIO()
    with pytest.raises(Malformed, match="own message: header: expected at most 100 bytes"):
        pipe.send(sink, {"text": "x" * 100}, {})
    assert sink.getvalue() == b""
