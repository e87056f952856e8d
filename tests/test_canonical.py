"""canonical(): bytes by hand, injective, refusals; and the messages that carry tables."""

from __future__ import annotations

import math
import struct
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol import canonical as module
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.canonical import canonical, lp, settings_from_pb, settings_to_pb
from umbel.protocol.errors import Malformed, SettingsError

TEXT = st.text(st.sampled_from("ab.\u00e9\u0301\u6f22\U0001f600"), min_size=1, max_size=4)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text("ab1\u00e9\u0301\u6f22\U0001f600", max_size=3),
    st.binary(max_size=3),
)
# Few values, so that hypothesis meets equal and almost equal tables often.
CLOSE = st.sampled_from(
    [True, False, 0, 1, -1, 0.0, -0.0, 1.0, "", "1", "\u00e9", "e\u0301", b"", b"1", b"\xc3\xa9"]
)
CLOSE_TABLES = st.dictionaries(st.sampled_from(["a", "aa", "a.0", "1"]), CLOSE, max_size=2)
TABLES = st.dictionaries(
    st.sampled_from(["a", "b", "ab", "a.0", "a.1", "\u00e9"]), SCALARS, max_size=5
)


def _length(n: int) -> bytes:
    return n.to_bytes(8, "little")


def _decode(data: bytes) -> dict[str, tuple[str, bytes]]:
    """Read canonical bytes back: {key: (tag, value bytes)}."""
    parts = []
    while data:
        size = int.from_bytes(data[:8], "little")
        parts.append(data[8 : 8 + size])
        data = data[8 + size :]
    rows = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {key.decode(): (tag.decode(), value) for key, tag, value in rows}


def _typed(table: dict[str, Any]) -> dict[str, tuple[type, object]]:
    """Return what tells two tables apart: types, and the bits of floats."""
    return {
        key: (type(value), struct.pack("<d", value) if isinstance(value, float) else value)
        for key, value in table.items()
    }


def test_lp_by_hand() -> None:
    assert lp(b"", b"ab") == bytes(8) + b"\x02" + bytes(7) + b"ab"


def test_one_entry_of_each_type_by_hand() -> None:
    table = {"s": "h\u00e9", "i": -12, "y": b"\x00\x01", "f": 1.0, "b": True}
    rows = (
        ("b", "b", b"1"),
        ("f", "f", bytes.fromhex("000000000000f03f")),
        ("i", "i", b"-12"),
        ("s", "s", b"h\xc3\xa9"),
        ("y", "y", b"\x00\x01"),
    )
    expected = b"".join(
        _length(1) + key.encode() + _length(1) + tag.encode() + _length(len(value)) + value
        for key, tag, value in rows
    )
    assert canonical(table) == expected


def test_entries_are_sorted_by_the_bytes_of_their_key() -> None:
    table = {"a.2": 0, "a.10": 0, "a": 0, "Z": 0, "\u00e9": 0, "\U0001f600": 0, "\ufb01": 0}
    keys = list(_decode(canonical(table)))
    # By hand: 5a, 61, 61 2e 31.., 61 2e 32, c3.., ef.., f0..
    assert keys == ["Z", "a", "a.10", "a.2", "\u00e9", "\ufb01", "\U0001f600"]


def test_tables_and_lists_are_joined_by_dots() -> None:
    nested = {"opt": {"lr": 0.5, "betas": [0.9, 0.99]}, "layers": (1, {"bias": False})}
    flat = {
        "opt.lr": 0.5,
        "opt.betas.0": 0.9,
        "opt.betas.1": 0.99,
        "layers.0": 1,
        "layers.1.bias": False,
    }
    assert canonical(nested) == canonical(flat)
    assert canonical({"a": {}, "b": []}) == canonical({}) == b""


def test_equal_text_in_two_unicode_forms_is_one_text() -> None:
    assert canonical({"e\u0301": "\u212b"}) == canonical({"\u00e9": "\u00c5"})


def test_values_that_python_calls_equal_stay_apart() -> None:
    values: list[object] = [1, True, 1.0, "1", b"1"]
    assert len({canonical({"k": value}) for value in values}) == len(values)
    assert canonical({"k": 0.0}) != canonical({"k": -0.0})


@given(CLOSE_TABLES, CLOSE_TABLES)
def test_different_tables_have_different_bytes(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert (canonical(one) == canonical(two)) == (_normal(one) == _normal(two))


def _normal(table: dict[str, Any]) -> dict[str, tuple[type, object]]:
    return _typed(
        {
            key: unicodedata.normalize("NFC", value) if isinstance(value, str) else value
            for key, value in table.items()
        }
    )


@given(TABLES)
def test_the_bytes_can_be_read_back(table: dict[str, Any]) -> None:
    read = _decode(canonical(table))
    assert sorted(read) == sorted(table)
    for key, value in table.items():
        tag, data = read[key]
        if isinstance(value, bool):
            assert (tag, data) == ("b", b"%d" % value)
        elif isinstance(value, int):
            assert (tag, int(data)) == ("i", value)
        elif isinstance(value, float):
            assert (tag, data) == ("f", struct.pack("<d", value))


@given(st.lists(st.tuples(TEXT, SCALARS), max_size=5, unique_by=lambda pair: pair[0]))
def test_the_order_of_insertion_does_not_matter(pairs: list[tuple[str, Any]]) -> None:
    try:
        forward = canonical(dict(pairs))
    except SettingsError as error:
        assert "once" in str(error)  # noqa: PT017 - two keys with one NFC form
        return
    assert canonical(dict(reversed(pairs))) == forward


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"lr": math.nan}, "lr: expected a number"),
        ({"a": {"b": 1}, "a.b": 2}, "a.b: expected a key that occurs once"),
        ({"a": [1], "a.0": 1}, "a.0: expected a key that occurs once"),
        ({"e\u0301": 1, "\u00e9": 1}, "once"),
        ({"a": None}, "a: expected a bool, int, float, str or bytes"),
        ({"a": [1, {2}]}, "a.1: expected .* got 'set'"),
        ({"a": bytearray(b"x")}, "got 'bytearray'"),
        ({"": 1}, "non-empty strings"),
        ({1: 2}, "non-empty strings"),
        ({"a": {1: 2}}, "a: expected names that are non-empty strings"),
        ({"a": "\ud800"}, "text that UTF-8 can hold"),
        ({"\ud800": 1}, "text that UTF-8 can hold"),
    ],
)
def test_what_has_no_canonical_form_is_refused(table: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        canonical(table)


def test_a_table_inside_itself_is_refused() -> None:
    table: dict[str, object] = {}
    table["a"] = table
    with pytest.raises(SettingsError, match="at most 16 levels"):
        canonical(table)


@given(TABLES)
def test_a_table_survives_the_wire(table: dict[str, Any]) -> None:
    sent = [item.SerializeToString() for item in settings_to_pb(table)]
    received = settings_from_pb(pb.Setting.FromString(data) for data in sent)
    assert _typed(received) == _typed(table)
    assert canonical(received) == canonical(table)


def test_a_nested_table_arrives_flat_and_sorted() -> None:
    received = settings_from_pb(settings_to_pb({"b": [True, "x"], "a": {"c": 1.5}}))
    assert list(received.items()) == [("a.c", 1.5), ("b.0", True), ("b.1", "x")]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            [pb.Setting(key="a", flag=True), pb.Setting(key="a", flag=True)],
            "one value for a key, got 'two'",
        ),
        ([pb.Setting(key="\u00e9", flag=True), pb.Setting(key="e\u0301", flag=True)], "once"),
        ([pb.Setting(key="a")], "one value for a key, got 'none'"),
        ([pb.Setting(integer=1)], "non-empty"),
        ([pb.Setting(key="a", real=math.nan)], "a number"),
        ([pb.Setting(key=str(i), flag=True) for i in range(257)], "at most 256 entries"),
        ([pb.Setting(key="a", raw=bytes(65536))], "at most 65536 bytes"),
    ],
)
def test_a_malformed_table_names_the_peer(items: list[pb.Setting], message: str) -> None:
    with pytest.raises(Malformed, match=rf"^gateway: settings, .*{message}"):
        settings_from_pb(items, "gateway")


def test_the_limits_themselves_are_allowed() -> None:
    table = {str(i): i for i in range(module.MAX_SETTINGS)}
    assert settings_from_pb(settings_to_pb(table)) == table
    # A setting of n raw bytes has 3 bytes of key and 4 of tag and length around them.
    full = {"a": bytes(module.MAX_SETTINGS_BYTES - 7)}
    assert settings_to_pb(full)[0].ByteSize() == module.MAX_SETTINGS_BYTES
    assert settings_from_pb(settings_to_pb(full)) == full


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": 2**63}, "a: expected an integer of 64 bits"),
        ({"a": -(2**63) - 1}, "a: expected an integer of 64 bits"),
        ({str(i): i for i in range(257)}, "at most 256 entries"),
        ({"a": "x" * 65536}, "at most 65536 bytes"),
    ],
)
def test_what_the_wire_would_refuse_is_not_sent(table: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_to_pb(table)
