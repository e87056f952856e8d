"""Graph parameters: both published tables, the claims for every n, and the client's check."""

from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError
from umbel.protocol.graph import (
    Parameters,
    check,
    neighbours,
    parameters,
    point,
    surviving_neighbours,
    tolerated,
    upstream,
)

EVERY_N = [parameters(n) for n in range(3, 1251)]
# Members to bear as a share of n, and the share that may be lost: where the rule has answers.
RATES = st.tuples(st.integers(0, 20), st.integers(0, 20))


@pytest.mark.parametrize(
    ("n", "d"),
    [
        (3, 0),
        (4, 0),
        (5, 1),
        (6, 1),
        (7, 2),
        (8, 2),
        (9, 3),
        (10, 3),
        (15, 6),
        (16, 6),
        (20, 8),
        (32, 13),
    ],
)
def test_the_table_of_the_complete_graph(n: int, d: int) -> None:
    p = parameters(n)
    assert (p.k, p.d) == (n - 1, d)
    assert p.a == {20: 2, 32: 3}.get(n, 1)


@pytest.mark.parametrize(
    ("n", "k", "t"),
    [
        (33, 10, 7), (40, 14, 10), (50, 16, 11), (64, 20, 14), (100, 32, 22), (200, 56, 39),
        (300, 76, 54), (500, 110, 81), (800, 162, 122), (1000, 202, 152), (1250, 252, 189),
    ],
)  # fmt: skip
def test_the_table_of_the_worst_case_rule(n: int, k: int, t: int) -> None:
    assert (parameters(n).k, parameters(n).t) == (k, t)


def test_one_roster_by_hand() -> None:
    # n = 5: A = 1, k = 4, t = 5 // 2 + 1 = 3, q = 6 // 2 + 1 = 4, D = min(4-3, 5-4, 5-1-2).
    assert parameters(5) == Parameters(n=5, k=4, t=3, a=1, d=1, q=4)


def _holds(p: Parameters) -> None:
    """Assert what the claim of scheme A rests on."""
    assert 2 * p.t > p.k + p.a  # A holders that answer twice give no second secret
    assert p.t <= p.k <= 254
    assert p.k > p.a + p.d  # a k-connected graph stays connected
    assert 2 * p.q - p.n > p.a  # two quorums share an honest member
    assert p.n - p.d >= p.q  # those who must be there can vote
    assert p.n - p.d >= p.a + 2  # two honest survivors at least
    assert p.q - p.a >= 2  # two honest voters in every sum
    assert p.k == p.n - 1 if p.n <= 32 else p.k % 2 == 0
    check(p, p.a, p.d)


def test_the_claims_hold_for_every_n() -> None:
    for p in EVERY_N:
        _holds(p)


@given(st.integers(3, 1250), RATES, st.integers(1, 5))
def test_the_claims_hold_for_other_rates_or_nothing_is_given(
    n: int, rates: tuple[int, int], a_min: int
) -> None:
    alpha, delta = rates[0] / 100, rates[1] / 100
    try:
        p = parameters(n, alpha=alpha, delta=delta, a_min=a_min)
    except SettingsError as error:
        assert "members: expected" in str(error)  # noqa: PT017 - either outcome is tested
        return
    _holds(p)
    assert p.a == max(a_min, rates[0] * n // 100)
    assert n <= 32 or p.d == rates[1] * n // 100


def test_a_rate_is_not_lost_to_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996 in floats.
    assert tolerated(100, 0.29, 1) == 29
    for percent in range(100):
        for n in range(1, 1251):
            assert tolerated(n, percent / 100, 0) == percent * n // 100


def test_a_min_is_a_floor() -> None:
    assert [tolerated(n, 0.1, 3) for n in (5, 39, 40)] == [3, 3, 4]
    assert parameters(10, a_min=3).a == 3


def _exact_t2(n: int, survivors: int, k: int) -> int:
    total, x = Fraction(0), -1
    while total <= Fraction(1, 2**20 * n):
        x += 1
        ways = math.comb(survivors, x) * math.comb(n - survivors, k - x)
        total += Fraction(ways, math.comb(n, k))
    return x


@pytest.mark.parametrize("n", [33, 50, 100, 300, 1000])
@pytest.mark.parametrize("delta", [0, 5, 10, 30])
def test_surviving_neighbours_in_exact_fractions(n: int, delta: int) -> None:
    survivors = n - delta * n // 100
    for k in (2, 10, 32):
        assert surviving_neighbours(n, survivors, k) == _exact_t2(n, survivors, k)


@pytest.mark.parametrize("n", [33, 100, 300])
def test_the_degree_is_the_smallest(n: int) -> None:
    p = parameters(n)
    for k in range(p.a + p.d + 1, p.k):
        if k % 2 == 0:
            assert (k + p.a) // 2 + 1 > _exact_t2(n, n - p.d, k)


@pytest.mark.parametrize(
    ("n", "rates", "message"),
    [
        (2, {}, "expected 3 to 1250 members, got 2"),
        (1251, {}, "expected 3 to 1250 members, got 1251"),
        (3, {"a_min": 2}, r"D = min\(k - t, n - q, n - A - 2\) >= 0, got 'n = 3 with A = 2"),
        (100, {"alpha": 0.4, "delta": 0.4}, r"n - D >= max.* A = 40, D = 40, q = 71"),
        (34, {"alpha": 0.4, "delta": 0.3}, r"even k <= 32 with .*n = 34, A = 13, D = 10"),
        (1250, {"alpha": 0.12}, r"even k <= 254 with k > A \+ D .* A = 150, D = 125"),
        (10, {"alpha": 1.0}, "alpha: expected 0 <= rate < 1, got 1.0"),
        (10, {"delta": -0.1}, "delta: expected 0 <= rate < 1"),
        (10, {"alpha": math.nan}, "alpha: expected 0 <= rate < 1"),
        (10, {"a_min": 0}, "a_min: expected at least 1, got 0"),
    ],
)
def test_refusals_show_the_arithmetic(n: int, rates: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parameters(n, **rates)  # type: ignore[arg-type]


UPSTREAM_TEST_TABLE = [
    (10, 0.33, 0.33, False, (8, 4)),
    (100, 0.45, 0.45, False, (92, 46)),
    (1000, 0.45, 0.45, False, (822, 417)),
    (10000, 0.33, 0.33, False, (422, 221)),
    (100, 0.05, 0.33, False, (28, 6)),
    (1000000, 0.05, 0.33, False, (102, 34)),
    (1000, 0.33, 0.05, False, (78, 60)),
    (1000, 0.05, 0.05, False, (30, 17)),
    (100, 0.3, 0.3, True, (92, 62)),
    (1000, 0.3, 0.3, True, (872, 584)),
    (10, 0.05, 0.33, True, (8, 5)),
    (1000, 0.05, 0.33, True, (398, 223)),
    (100, 0.33, 0.05, True, (42, 37)),
    (1000000, 0.33, 0.05, True, (212, 173)),
    (100, 0.33, 0, True, (26, 26)),
    (10000, 0, 0.33, True, (326, 164)),
    (100, 0, 0, True, (2, 2)),
    (1000, 0.5, 0.5, False, None),
    (1000, 0.5, 0.5, True, None),
    (1000, 0.33, 0.33, True, None),
]
UPSTREAM_RATES = [
    (0.1, 0.1),
    (0.2, 0.1),
    (0.33, 0.1),
    (0.1, 0.3),
]  # each semi-honest, semi-malicious
UPSTREAM_VALUES = {
    20: [(6, 3), (8, 6), (8, 5), (10, 8), (10, 7), (12, 10), (10, 3), (16, 10)],
    50: [(12, 6), (16, 11), (16, 11), (22, 17), (22, 17), (28, 23), (22, 6), (36, 21)],
    100: [(22, 11), (32, 22), (32, 21), (42, 32), (42, 32), (54, 44), (34, 11), (72, 42)],
    300: [(36, 21), (66, 46), (52, 34), (94, 70), (78, 55), (130, 103), (66, 26), (186, 109)],
    1000: [(48, 27), (96, 67), (68, 44), (140, 104), (102, 72), (218, 171), (88, 36), (414, 247)],
    10000: [
        (54, 31),
        (122, 85),
        (80, 51),
        (184, 136),
        (126, 88),
        (310, 242),
        (108, 44),
        (778, 465),
    ],
}


@pytest.mark.parametrize(("n", "alpha", "delta", "malicious", "expected"), UPSTREAM_TEST_TABLE)
def test_upstream_test_table(
    n: int, alpha: float, delta: float, malicious: bool, expected: tuple[int, int] | None
) -> None:
    assert upstream(n, alpha, delta, malicious) == expected


@pytest.mark.parametrize("n", UPSTREAM_VALUES)
def test_upstream_values(n: int) -> None:
    found = [
        upstream(n, *rates, malicious) for rates in UPSTREAM_RATES for malicious in (False, True)
    ]
    assert found == UPSTREAM_VALUES[n]


def test_upstream_equals_the_worst_case_rule_where_the_reference_says_so() -> None:
    for n in (50, 100, 200):
        assert upstream(n, 0.1, 0.1, True) == (parameters(n).k, parameters(n).t)
    for n in (500, 1000):
        k, _ = upstream(n, 0.1, 0.1, True) or (0, 0)
        assert k <= parameters(n).a + parameters(n).d  # a whole neighbourhood may be dead


SOUND = parameters(100)  # k = 32, t = 22, A = 10, D = 10, q = 56


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"k": 20}, "k > A"),
        ({"k": 33}, "even"),
        ({"k": 256, "n": 1000, "q": 506}, "k <= 254"),
        ({"k": 100, "t": 60}, "even"),
        ({"t": 21}, "2t > k"),
        ({"t": 33}, "t <= k"),
        ({"q": 55}, "q = floor"),
        ({"q": 57}, "q = floor"),
        ({"d": -1}, "D >= 0"),
        ({"n": 32, "a": 3, "q": 18, "k": 20, "d": 0}, "complete graph"),
        ({"n": 2, "k": 1, "t": 1, "a": 0, "d": 0, "q": 2}, "n >= 3"),
        ({"a": 0, "q": 51}, "A >= 1"),
        ({"d": 50, "k": 64, "t": 40}, "n - D"),
    ],
)
def test_a_client_refuses_unsound_parameters(change: dict[str, int], rule: str) -> None:
    with pytest.raises(Refused, match=f"breaks .*{rule}") as caught:
        check(dataclasses.replace(SOUND, **change), 1, None)
    assert caught.value.reason == pb.REASON_ROSTER


def test_a_client_accepts_stricter_and_refuses_laxer_than_its_policy() -> None:
    check(SOUND, 10, 10)
    check(SOUND, 9, 11)
    check(parameters(20), 2, None)
    with pytest.raises(Refused, match="A = 10 for n = 100, this device's own is 11") as caught:
        check(SOUND, 11, 10)
    assert (caught.value.reason, caught.value.key) == (pb.REASON_POLICY, "secure.corrupt")
    with pytest.raises(Refused, match="D = 10 for n = 100, this device's own is 9") as caught:
        check(SOUND, 10, 9)
    assert (caught.value.reason, caught.value.key) == (pb.REASON_POLICY, "secure.dropout")


def test_an_exact_repeat_has_no_losses() -> None:
    check(dataclasses.replace(parameters(7), d=0), 1, 0)


def test_neighbours_by_hand() -> None:
    assert neighbours(0, 40, 4) == (38, 39, 1, 2)
    assert neighbours(39, 40, 4) == (37, 38, 0, 1)
    assert neighbours(2, 5, 4) == (3, 4, 0, 1)  # complete: +1 .. +4
    assert neighbours(0, 4, 3) == (1, 2, 3)
    assert [point(0, holder, 40, 4) for holder in (38, 39, 1, 2)] == [1, 2, 3, 4]
    assert [point(2, holder, 5, 4) for holder in (3, 4, 0, 1)] == [1, 2, 3, 4]


@given(st.sampled_from(EVERY_N), st.data())
def test_neighbourhood_is_mutual_and_points_count_it(p: Parameters, data: st.DataObject) -> None:
    owner = data.draw(st.integers(0, p.n - 1))
    around = neighbours(owner, p.n, p.k)
    assert len(set(around)) == p.k
    assert owner not in around
    for place, holder in enumerate(around):
        assert point(owner, holder, p.n, p.k) == place + 1
        assert owner in neighbours(holder, p.n, p.k)
    for stranger in set(range(p.n)) - set(around):
        with pytest.raises(ValueError, match="no neighbour"):
            point(owner, stranger, p.n, p.k)


def _connected(p: Parameters, removed: set[int]) -> bool:
    left = set(range(p.n)) - removed
    reached, todo = set[int](), [min(left)]
    while todo:
        at = todo.pop()
        if at not in reached:
            reached.add(at)
            todo += set(neighbours(at, p.n, p.k)) & left
    return reached == left


@pytest.mark.parametrize("n", [5, 20, 33, 50, 100, 300])
def test_honest_survivors_stay_connected_whoever_is_removed(n: int) -> None:
    p = parameters(n)
    most = p.a + p.d
    rng = random.Random(n)  # noqa: S311 - a test wants to be repeated
    cases = [set(rng.sample(range(n), most)) for _ in range(20)]
    # The worst cut of a ring is two runs of k/2; A + D never make both.
    first = range(min(p.k // 2, most))
    for gap in range(1, 4):
        start = len(first) + gap
        cases.append({*first, *((start + i) % n for i in range(most - len(first)))})
    assert all(_connected(p, removed) for removed in cases)


def test_k_removed_members_can_cut_the_ring() -> None:
    # The bound of the test above is tight: two runs of k/2 around one member isolate it.
    p = parameters(100)
    assert not _connected(p, set(neighbours(50, p.n, p.k)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: neighbours(5, 5, 4), "position 5 lies outside a roster of 5"),
        (lambda: neighbours(-1, 5, 4), "position -1 lies outside"),
        (lambda: neighbours(0, 40, 5), "degree 5 of a ring of 40"),
        (lambda: neighbours(0, 5, 5), "degree 5 of a ring of 5"),
        (lambda: neighbours(0, 5, 0), "degree 0 of a ring of 5"),
        (lambda: point(0, 40, 40, 4), "position 40 lies outside"),
        (lambda: point(3, 3, 5, 4), "position 3 is no neighbour of 3"),
    ],
)
def test_places_that_do_not_exist(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
