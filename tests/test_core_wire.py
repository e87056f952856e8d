"""Messages of core.sock: in pieces, too large, foreign."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import Malformed
from umbel.server import core_wire as wire

NODE = "ab" * 16


def read(data: bytes, sizes: list[int] | None = None) -> list[wire.Message]:
    """Read a stream that arrives in pieces of these sizes, then all at once."""
    reader, found, sizes = wire.Reader(wire.COMMANDS, "app"), [], list(sizes or [])
    while data:
        room = reader.room()
        assert len(room) > 0
        count = min(len(room), len(data), max(1, sizes.pop(0)) if sizes else len(data))
        room[:count] = data[:count]
        data = data[count:]
        message = reader.filled(count)
        if message is not None:
            found.append(message)
    assert reader.between
    return found


def message(op: str, payload: bytes = b"", **fields: Any) -> wire.Message:
    return wire.Message(op, fields, bytearray(payload))


def test_the_bytes_are_those_of_the_page() -> None:
    made = wire.head("post", 3, node=NODE) + b"abc"
    header = b'{"op":"post","node":"' + NODE.encode() + b'"}'
    assert made == struct.pack("<IQ", len(header), 3) + header + b"abc"


texts = st.text(max_size=20)
fields = st.dictionaries(
    texts.filter(lambda name: name not in {"op", "payload"}),
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | texts
    | st.lists(texts, max_size=3),
    max_size=4,
)
messages = st.tuples(st.sampled_from(["post", "put"]), fields, st.binary(max_size=50))


@given(st.lists(messages, max_size=4), st.lists(st.integers(1, 40), max_size=60))
def test_what_is_written_is_read_however_it_arrives(
    sent: list[tuple[str, dict[str, Any], bytes]], sizes: list[int]
) -> None:
    stream = b"".join(wire.head(op, len(body), **kw) + body for op, kw, body in sent)
    got = [(m.op, dict(m.fields), bytes(m.payload)) for m in read(stream, sizes)]
    assert got == sent


def test_a_stream_may_end_between_messages_only() -> None:
    reader = wire.Reader(wire.COMMANDS, "app")
    assert reader.between
    reader.room()[:1] = b"\x01"
    reader.filled(1)
    assert not reader.between


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ((1 << 20) + 1, "header"),
        ((1 << 32) - 1, "header"),
    ],
)
def test_a_header_that_is_too_long_is_refused_before_memory_is_taken(sizes: int, what: str) -> None:
    with pytest.raises(Malformed, match=f"app: {what}: expected at most 1048576 bytes"):
        read(struct.pack("<IQ", sizes, 0))


@pytest.mark.parametrize("size", [(1 << 36) + 1, (1 << 64) - 1])
def test_a_payload_that_is_too_long_is_refused_by_its_size_alone(size: int) -> None:
    with pytest.raises(Malformed, match="app: payload: expected at most 68719476736 bytes"):
        read(struct.pack("<IQ", 2, size))


@pytest.mark.parametrize(
    ("op", "limit"), [("open", 0), ("fold", 0), ("post", 2 << 20), ("unmask", 32 << 20)]
)
def test_each_command_has_a_limit_of_its_own(op: str, limit: int) -> None:
    header = json.dumps({"op": op}).encode()
    reader = wire.Reader(wire.COMMANDS, "app")
    reader.room()[:] = struct.pack("<IQ", len(header), limit + 1)
    reader.filled(12)
    reader.room()[:] = header
    with pytest.raises(Malformed, match=f"app: payload: expected at most {limit} bytes"):
        reader.filled(len(header))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"open"',
        b"{}",
        b'{"op": 3}',
        b'{"op": "joined"}',  # an event, no command
        b'{"op": "drop table"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_header_that_says_no_known_thing_is_refused(header: bytes) -> None:
    with pytest.raises(Malformed, match=r"app: (op|header)"):
        read(struct.pack("<IQ", len(header), 0) + header)


def test_every_event_can_be_read() -> None:
    reader = wire.Reader(wire.EVENTS, "core")
    data = wire.head("joined", 3, node=NODE, resumed=True) + b"der"
    found = None
    while found is None:
        room = reader.room()
        room[:], data = data[: len(room)], data[len(room) :]
        found = reader.filled(len(room))
    assert (found.op, found.fields["resumed"], bytes(found.payload)) == ("joined", True, b"der")


def test_a_header_that_would_be_refused_is_not_written() -> None:
    with pytest.raises(Malformed, match="own message: header"):
        wire.head("error", why="x" * (1 << 20))
    with pytest.raises(Malformed, match="own message: payload"):
        wire.head("put", (1 << 36) + 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        wire.head("error", why=float("nan"))


# ---- fields --------------------------------------------------------------------------------


def test_fields_are_read() -> None:
    made = message("sum", ctx="0f" * 32, total=640, stall=2.5, node=NODE)
    assert wire.octets(made, "ctx", 32) == b"\x0f" * 32
    assert (wire.count(made, "total"), wire.seconds(made, "stall")) == (640, 2.5)
    assert wire.node(made) == NODE
    assert wire.node(message("fold", node=NODE.upper())) == NODE
    assert wire.text(message("open", run="r-1"), "run") == "r-1"


@pytest.mark.parametrize("value", [None, 3, "", "0f" * 31, "0f" * 33, "zz" * 32, ["0f" * 32]])
def test_a_hash_of_another_form_is_refused_without_being_repeated(value: object) -> None:
    with pytest.raises(Malformed, match=r"ServerApp: sum\.ctx: expected 32 bytes in hex") as caught:
        wire.octets(message("sum", ctx=value), "ctx", 32)
    assert "0f0f" not in str(caught.value)


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "7", (1 << 36) + 1, [1]])
def test_a_count_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(Malformed, match=r"ServerApp: sum\.total: expected 0\.\."):
        wire.count(message("sum", total=value), "total")


@pytest.mark.parametrize("value", [None, -0.1, float("nan"), float("inf"), 4e7, "7"])
def test_seconds_of_another_form_are_refused(value: object) -> None:
    with pytest.raises(Malformed, match=r"ServerApp: tickets\.seconds"):
        wire.seconds(message("tickets", seconds=value), "seconds")


@pytest.mark.parametrize("value", [None, "", "x" * 65, 3])
def test_text_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(Malformed, match=r"ServerApp: open\.run: expected 1\.\.64 characters"):
        wire.text(message("open", run=value), "run", 64)


def test_bearers_are_pairs() -> None:
    nodes = [{"id": NODE, "tls_fingerprint": "cd" * 32}]
    found = wire.bearers(message("tickets", nodes=nodes))
    assert found == [(b"\xab" * 16, b"\xcd" * 32)]
    half = [{"id": NODE}]
    wrongs: list[object] = [None, {}, ["x"], half, [{"id": "x", "tls_fingerprint": "cd" * 32}]]
    for wrong in wrongs:
        with pytest.raises(Malformed, match=r"ServerApp: tickets\.nodes"):
            wire.bearers(message("tickets", nodes=wrong))


def test_signs_go_with_keys() -> None:
    assert wire.signs(message("unmask", bytes(64), signs=[1, -1])) == [1, -1]
    for wrong in (None, [0], [True], [1.0], [2], "1"):
        with pytest.raises(Malformed, match=r"ServerApp: unmask\.signs"):
            wire.signs(message("unmask", bytes(32), signs=wrong))
    with pytest.raises(Malformed, match="ServerApp: unmask: expected 2 keys, got 63 B"):
        wire.signs(message("unmask", bytes(63), signs=[1, -1]))


def test_a_small_payload_goes_with_its_head_unless_it_may_hold_keys() -> None:
    keys, big = bytearray(64), bytes(1 << 17)
    assert wire.parts(b"head", b"body") == (b"headbody",)
    assert wire.parts(b"head", b"") == (b"head",)
    assert wire.parts(b"head", bytearray()) == (b"head",)
    for payload in (keys, memoryview(keys), big):
        first, second = wire.parts(b"head", payload)
        assert first == b"head"
        assert second is payload


def test_an_announced_payload_takes_no_memory_before_it_comes() -> None:
    header = b'{"op":"put"}'
    reader = wire.Reader(wire.COMMANDS, "app")
    tracemalloc.start()
    for part in (struct.pack("<IQ", len(header), 1 << 36), header):
        reader.room()[:] = part
        reader.filled(len(part))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 27


def test_a_payload_larger_than_the_first_memory_comes_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "_FIRST", 16)
    payload = bytes(range(256)) * 5
    stream = wire.head("put", len(payload), digest="00") + payload
    for sizes in ([], [1] * 40, [7, 100, 3], [10**6], [46, 16, 16]):
        (message,) = read(stream, sizes)
        assert bytes(message.payload) == payload
