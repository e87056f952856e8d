"""Contexts, rosters and bitmaps: every field counts, every shape has one form."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.context import (
    RosterEntry,
    Terms,
    bitmap,
    context,
    positions,
    roster_root,
)
from umbel.protocol.errors import Malformed, SettingsError

TERMS = Terms(
    scheme="A",
    ca=b"c" * 32,
    app=bytes(32),
    run="run-7",
    round=1,
    phase="train",
    attempt=1,
    model=b"m" * 32,
    config={"lr": 0.1},
    params={"alpha": 0.1},
    layout=b"l" * 32,
)
ENTRY = RosterEntry(b"i" * 16, b"f" * 32, b"m" * 32, b"s" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 2},
        {"scheme": "plain"},
        {"ca": b"d" * 32},
        {"app": b"a" * 32},
        {"run": "run-8"},
        {"round": 2},
        {"phase": "evaluate"},
        {"attempt": 2},
        {"model": b"n" * 32},
        {"config": {"lr": 0.2}},
        {"params": {"alpha": 0.2}},
        {"layout": b"k" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_ctx0(change: dict[str, Any]) -> None:
    assert dataclasses.replace(TERMS, **change).ctx0() != TERMS.ctx0()


def test_every_field_of_terms_is_tried_above() -> None:
    assert len(dataclasses.fields(Terms)) == 12


def test_neighbouring_fields_do_not_run_together() -> None:
    one = dataclasses.replace(TERMS, run="run-1", round=11)
    two = dataclasses.replace(TERMS, run="run-11", round=1)
    three = dataclasses.replace(TERMS, config=TERMS.params, params=TERMS.config)
    assert len({one.ctx0(), two.ctx0(), three.ctx0(), TERMS.ctx0()}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ca": b"c" * 31}, "ca: expected 32 bytes, got 31"),
        ({"app": b""}, "app: expected 32"),
        ({"model": b"m" * 33}, "model: expected 32"),
        ({"layout": b"l"}, "layout: expected 32"),
        ({"phase": "test"}, "expected train or evaluate, got 'test'"),
        ({"round": -1}, "never negative"),
        ({"attempt": -1}, "never negative"),
    ],
)
def test_terms_refuse_what_is_no_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TERMS, **change)


def test_a_config_without_canonical_form_has_no_ctx0() -> None:
    with pytest.raises(SettingsError, match="lr"):
        dataclasses.replace(TERMS, config={"lr": float("nan")}).ctx0()


def test_a_roster_entry_by_hand() -> None:
    packed = b"i" * 16 + b"f" * 32 + b"m" * 32 + b"s" * 32
    other = RosterEntry(b"j" * 16, b"g" * 32, b"n" * 32, b"t" * 32)
    assert ENTRY.pack() == packed
    assert RosterEntry.unpack_all(packed + other.pack()) == [ENTRY, other]
    assert RosterEntry.unpack_all(b"") == []
    assert roster_root([ENTRY, other]) == hashlib.sha256(packed + other.pack()).digest()
    assert roster_root([other, ENTRY]) != roster_root([ENTRY, other])


@pytest.mark.parametrize("length", [1, 111, 113, 223])
def test_a_torn_roster_names_the_peer(length: int) -> None:
    with pytest.raises(Malformed, match=f"^gateway: roster.*112 bytes, got {length}$"):
        RosterEntry.unpack_all(bytes(length), "gateway")


@pytest.mark.parametrize("field", RosterEntry._fields)
def test_an_entry_with_a_field_of_another_length_is_not_packed(field: str) -> None:
    short = getattr(ENTRY, field)[:-1]
    with pytest.raises(ValueError, match=f"{field}: expected .* bytes, got {len(short)}"):
        roster_root([ENTRY._replace(**{field: short})])


def test_ctx_depends_on_all_of_its_parts() -> None:
    a, b, c = b"a" * 32, b"b" * 32, b"c" * 32
    assert context(a, b) == context(a, b, bytes(32))
    assert len({context(a, b), context(b, a), context(a, c), context(a, b, c)}) == 4
    with pytest.raises(ValueError, match="ctx0: expected 32 bytes, got 31"):
        context(a[:31], b)
    with pytest.raises(ValueError, match="roster_root: expected 32"):
        context(a, b + b"b")
    with pytest.raises(ValueError, match="committee: expected 32"):
        context(a, b, b"")


def test_bitmaps_by_hand() -> None:
    # Position 0 is the lowest bit of byte 0; 3 adds 8; 9 is bit 1 of byte 1.
    assert bitmap([9, 0, 3], 10) == b"\x09\x02"
    assert positions(b"\x09\x02", 10) == (0, 3, 9)
    assert bitmap([], 8) == b"\x00"
    assert bitmap([3, 3], 4) == b"\x08"


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_a_bitmap_gives_its_set_back(case: tuple[int, set[int]]) -> None:
    n, members = case
    packed = bitmap(members, n)
    assert len(packed) == -(-n // 8)
    assert positions(packed, n) == tuple(sorted(members))


@pytest.mark.parametrize("position", [-1, 10, 15])
def test_a_position_outside_the_roster_has_no_bit(position: int) -> None:
    with pytest.raises(ValueError, match=f"position {position} lies outside a roster of 10"):
        bitmap([0, position], 10)


@pytest.mark.parametrize("unused", range(10, 16))
def test_a_set_has_one_bitmap_only(unused: int) -> None:
    twin = bytearray(bitmap([1], 10))
    twin[1] |= 1 << unused - 8
    with pytest.raises(ValueError, match=f"bit {unused} is set"):
        positions(bytes(twin), 10)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_bitmap_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"has 2 bytes, got {length}"):
        positions(bytes(length), 10)
