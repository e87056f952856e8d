"""Selection depends on the set alone; invitations follow the exact binomial."""

from fractions import Fraction
from math import comb, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.server.cohort import Standing, Voters, invitations, select
from umbel.server.ledger import Event

NODES = tuple(f"{i:032x}" for i in range(40))


@given(st.permutations(NODES), st.integers(0, 45), st.integers(0, 2**63), st.integers(0, 99))
def test_the_order_of_the_input_does_not_matter(
    nodes: list[str], count: int, seed: int, round_number: int
) -> None:
    expected = select(NODES, count, seed=seed, round=round_number, attempt=0)
    assert select(nodes * 2, count, seed=seed, round=round_number, attempt=0) == expected
    assert len(set(expected)) == len(expected) == min(count, len(NODES))


def test_a_larger_cohort_appends_and_the_excluded_stay_out() -> None:
    ten = select(NODES, 10, seed=7, round=3, attempt=1)
    assert select(NODES, 25, seed=7, round=3, attempt=1)[:10] == ten
    without = select(NODES, 25, seed=7, round=3, attempt=1, excluded=ten[:2])
    assert without[:8] == ten[2:]
    assert not set(without) & set(ten[:2])


def test_seed_round_and_attempt_each_draw_anew() -> None:
    first = select(NODES, 20, seed=1, round=1, attempt=1)
    for seed, number, attempt in ((2, 1, 1), (1, 2, 1), (1, 1, 2)):
        assert select(NODES, 20, seed=seed, round=number, attempt=attempt) != first
    # Fields are length-prefixed: (1, 12) and (11, 2) are different draws.
    assert select(NODES, 20, seed=1, round=12, attempt=0) != select(
        NODES, 20, seed=11, round=2, attempt=0
    )


def test_every_node_is_drawn_equally_often() -> None:
    rounds, wanted = 2000, 10
    counts = dict.fromkeys(NODES, 0)
    for number in range(rounds):
        for node in select(NODES, wanted, seed=5, round=number, attempt=0):
            counts[node] += 1
    share = wanted / len(NODES)
    deviation = sqrt(rounds * share * (1 - share))
    # 40 counts, 4.5 standard deviations: chance alone trips this once in 3,700 seeds.
    assert all(abs(count - rounds * share) < 4.5 * deviation for count in counts.values())


@pytest.mark.parametrize(
    ("needed", "expected"),
    # The published table: clients to invite so that K finish with 99 % probability.
    [
        (10, (13, 14, 18, 21)),
        (100, (111, 120, 139, 162)),
        (500, (539, 575, 655, 756)),
    ],
)
def test_the_published_table(needed: int, expected: tuple[int, ...]) -> None:
    assert tuple(invitations(needed, p) for p in (0.05, 0.1, 0.2, 0.3)) == expected


@given(
    st.integers(1, 25),
    st.fractions(Fraction(1, 50), Fraction(4, 5), max_denominator=50),
    st.sampled_from([Fraction(1, 2), Fraction(9, 10), Fraction(99, 100)]),
)
def test_least_n_by_exact_fractions(needed: int, p: Fraction, confidence: Fraction) -> None:
    def reached(n: int) -> Fraction:
        return sum(
            (comb(n, k) * (1 - p) ** k * p ** (n - k) for k in range(needed, n + 1)), Fraction()
        )

    n = invitations(needed, float(p), float(confidence))
    # Probabilities that equal the confidence exactly are a matter of the last bit.
    assert reached(n) >= confidence - Fraction(1, 10**12)
    assert n == needed or reached(n - 1) < confidence + Fraction(1, 10**12)


def test_without_dropout_nobody_is_added() -> None:
    assert invitations(17, 0.0) == 17


def test_large_cohorts_do_not_underflow() -> None:
    # Normal approximation of the binomial: n(1-p) - 2.326 sqrt(n p (1-p)) = K.
    n = invitations(100_000, 0.5)
    assert n * 0.5 - 2.326 * sqrt(n * 0.25) == pytest.approx(100_000, abs=2)


@pytest.mark.parametrize("arguments", [(0, 0.1), (5, 1.0), (5, -0.1), (5, 0.1, 1.0), (5, 0.1, 0.0)])
def test_ranges(arguments: tuple[int, float]) -> None:
    with pytest.raises(SettingsError):
        invitations(*arguments)


def test_two_voids_by_one_member_exclude_it_and_refusals_do_not() -> None:
    standing = Standing()
    assert standing.void("a") == 1
    standing.void("b")
    for _ in range(5):
        standing.refused("c")
    assert standing.excluded == frozenset()
    assert standing.void("a") == 2
    assert standing.excluded == {"a"}
    assert standing.counts("c") == (0, 5)


def test_standing_comes_back_from_the_ledger() -> None:
    events = [
        Event(kind=kind, round=1, attempt=attempt, node=node)
        for attempt, (kind, node) in enumerate(
            [("void", "a"), ("void", ""), ("refused", "a"), ("lost", "a"), ("void", "a")]
        )
    ]
    standing = Standing(events)
    assert standing.counts("a") == (2, 1)
    assert standing.excluded == {"a"}


# ---- who voted -------------------------------------------------------------------------------

MODEL, OTHER = b"m" * 32, b"o" * 32


def test_on_a_model_without_votes_anybody_may_be_asked() -> None:
    voters = Voters()
    assert voters.allowed(MODEL, ["b", "a"]) == (("b", "a"), False)
    voters.note(MODEL, ())
    assert voters.allowed(MODEL, ["b", "a"]) == (("b", "a"), False)


def test_a_voted_set_is_asked_in_full_or_not_at_all() -> None:
    voters = Voters()
    voters.note(MODEL, ["a", "b", "c"])
    assert voters.allowed(MODEL, ["d", "c", "b", "a"]) == (("a", "b", "c"), True)
    assert voters.allowed(MODEL, ["d", "c", "b", "e"]) == (("d", "e"), False)
    assert voters.allowed(MODEL, ["c"]) == ((), False)
    assert voters.allowed(OTHER, ["c", "b"]) == (("c", "b"), False)


def test_of_several_voted_sets_the_last_that_is_there_is_asked() -> None:
    voters = Voters()
    for survivors in ("abc", "def"):
        voters.note(MODEL, tuple(survivors))
    assert voters.allowed(MODEL, "abcdefg") == (("d", "e", "f"), True)
    assert voters.allowed(MODEL, "abcdfg") == (("a", "b", "c"), True)
    assert voters.allowed(MODEL, "abdfgh") == (("g", "h"), False)


def test_the_next_model_starts_without_votes() -> None:
    voters = Voters()
    voters.note(MODEL, ["a", "b", "c"])
    voters.note(OTHER, ["d"])
    assert voters.allowed(OTHER, ["a", "d"]) == (("d",), True)
    assert voters.allowed(MODEL, ["a", "b"]) == (("a", "b"), False)
