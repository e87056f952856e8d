"""The parameters of a run: one table, every key checked, and the numbers that follow from n."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from umbel.protocol.errors import SettingsError
from umbel.protocol.graph import Parameters
from umbel.protocol.plan import KINDS, Params, numbers, read

TABLE: dict[str, object] = {
    "alpha": 0.2,
    "delta": 0.05,
    "a-min": 2,
    "ring-bits": 32,
    "value-range": 0.5,
    "weight-cap": 40,
    "min-members": 7,
    "min-survivors": 6,
    "quorum": "majority",
}
PARAMS = Params(
    alpha=0.2, delta=0.05, a_min=2, value_range=0.5, weight_cap=40, min_members=7, min_survivors=6
)


def test_the_table_and_back() -> None:
    assert PARAMS.table() == TABLE
    assert read(TABLE) == PARAMS
    assert read(Params().table()) == Params()
    assert {key: type(value) for key, value in TABLE.items()} == KINDS


def test_the_defaults_of_an_absent_policy() -> None:
    default = Params()
    assert (default.alpha, default.delta, default.a_min) == (0.1, 0.1, 1)
    assert (default.min_members, default.min_survivors) == (5, 4)


def test_numbers_given_as_integers_enter_ctx0_as_floats() -> None:
    table = Params(alpha=0, delta=0, value_range=1).table()  # 0 and 0.0 are other bytes
    assert [type(table[key]) for key in ("alpha", "delta", "value-range")] == [float] * 3


@pytest.mark.parametrize("key", TABLE)
def test_a_missing_key_is_named(key: str) -> None:
    rest = {k: v for k, v in TABLE.items() if k != key}
    with pytest.raises(SettingsError, match=f"params.{key}: expected the keys"):
        read(rest)


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(SettingsError, match=r"params\.clip: expected the keys"):
        read({**TABLE, "clip": 1.0})


@pytest.mark.parametrize("key", TABLE)
@pytest.mark.parametrize("value", [None, True, "1", b"1", 1, 1.0])
def test_another_type_is_named(key: str, value: object) -> None:
    if type(value) is not KINDS[key]:
        with pytest.raises(SettingsError, match=f"params.{key}: expected {KINDS[key].__name__}"):
            read({**TABLE, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", -0.1), ("alpha", 1.0), ("alpha", math.nan), ("delta", -1e-9), ("delta", 1.0),
        ("delta", math.inf), ("value-range", 0.0), ("value-range", -1.0),
        ("value-range", math.inf), ("value-range", math.nan), ("a-min", 0), ("a-min", -1),
        ("weight-cap", 0), ("min-members", 0), ("min-survivors", 0), ("min-survivors", -3),
        ("ring-bits", 64), ("ring-bits", 31), ("quorum", "all"), ("quorum", ""),
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_named(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"params.{key}: expected"):
        read({**TABLE, key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("alpha", 0.0), ("alpha", 0.999), ("delta", 0.0), ("value-range", 5e-324), ("a-min", 1)],
)
def test_a_value_at_the_edge_is_read(key: str, value: float) -> None:
    assert getattr(read({**TABLE, key: value}), key.replace("-", "_")) == value


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # n, k, t, A, D, q: on the complete graph by hand, the ring from the published table.
        (5, Parameters(5, 4, 3, 1, 1, 4)),
        (9, Parameters(9, 8, 5, 1, 3, 6)),
        (20, Parameters(20, 19, 11, 2, 8, 12)),
        (100, Parameters(100, 32, 22, 10, 10, 56)),
        (1000, Parameters(1000, 202, 152, 100, 100, 551)),
    ],
)
def test_the_numbers_follow_from_n(n: int, expected: Parameters) -> None:
    assert numbers(Params().table(), n) == expected


def test_a_roster_below_the_floor_has_no_numbers() -> None:
    with pytest.raises(SettingsError, match="roster: expected at least 5 members, got 4"):
        numbers(Params().table(), 4)
    assert numbers(replace(Params(), min_members=4).table(), 4).d == 0


@pytest.mark.parametrize(("n", "a_min"), [(2, 1), (5, 4), (1251, 1), (0, 1)])
def test_a_roster_that_cannot_be_served_has_no_numbers(n: int, a_min: int) -> None:
    with pytest.raises(SettingsError):
        numbers(replace(Params(), min_members=1, a_min=a_min).table(), n)


def test_a_table_of_a_peer_is_checked_before_its_numbers() -> None:
    with pytest.raises(SettingsError, match=r"params\.alpha"):
        numbers({**TABLE, "alpha": 7.0}, 20)
