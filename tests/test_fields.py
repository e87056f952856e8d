"""Labelled fields: one reading of every byte string, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import Malformed
from umbel.protocol.fields import number, pack, unpack

FIELDS = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def test_the_bytes_by_hand() -> None:
    assert pack(b"umbel/x/1", b"ab", b"") == b"umbel/x/1" + b"\2" + bytes(7) + b"ab" + bytes(8)


@given(fields=FIELDS)
def test_fields_read_back(fields: list[bytes]) -> None:
    assert unpack(b"label", pack(b"label", *fields), len(fields), "peer") == fields


@given(fields=FIELDS, data=st.data())
def test_a_cut_is_refused_everywhere(fields: list[bytes], data: st.DataObject) -> None:
    raw = pack(b"label", *fields)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(Malformed, match=r"^peer: "):
        unpack(b"label", raw[:cut], len(fields), "peer")


@given(fields=FIELDS, tail=st.binary(min_size=1, max_size=20))
def test_nothing_may_follow(fields: list[bytes], tail: bytes) -> None:
    with pytest.raises(Malformed, match="left over"):
        unpack(b"label", pack(b"label", *fields) + tail, len(fields), "peer")


@given(raw=st.binary(max_size=80), count=st.integers(0, 4))
def test_whatever_is_accepted_is_what_pack_writes(raw: bytes, count: int) -> None:
    try:
        fields = unpack(b"", raw, count, "peer")
    except Malformed:
        return
    assert pack(b"", *fields) == raw


def test_a_length_beyond_the_end_is_refused() -> None:
    with pytest.raises(Malformed, match="cut short: expected 1 fields, got 0"):
        unpack(b"label", b"label" + b"\xff" * 8, 1, "peer")


def test_another_label_is_refused() -> None:
    with pytest.raises(Malformed, match="does not begin with umbel/members/1"):
        unpack(b"umbel/members/1", pack(b"umbel/ticket/1", b"a"), 1, "peer")


@given(value=st.integers(0, 2**63 - 1))
def test_a_number_reads_back(value: int) -> None:
    assert number(str(value).encode(), "peer") == value


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"-1",
        b"+1",
        b"01",
        b"1 ",
        b" 1",
        b"1_0",
        b"0x1",
        b"1.0",
        b"\xd9\xa1",
        b"9" * 20,
        b"9223372036854775808",
    ],
)
def test_a_number_has_one_form(field: bytes) -> None:
    with pytest.raises(Malformed, match="decimal ASCII"):
        number(field, "peer")
