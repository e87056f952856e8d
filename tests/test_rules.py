"""The abort rules one by one, each at its edge. How they stop a lying server: test_attacks*.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import rules
from umbel.protocol.context import RosterEntry
from umbel.protocol.graph import Parameters
from umbel.tests.actors import identity, refuses, verified
from umbel.tests.transcript import lp

if TYPE_CHECKING:
    from umbel.protocol.verification import Member

FIVE = Parameters(5, 4, 3, 1, 1, 4)
"""n, k, t, A, D, q of five members."""
TEN = Parameters(10, 9, 6, 1, 3, 6)
CTX = bytes(range(32))
U2, U = b"2" * 32, b"u" * 32


def entry(tag: int, **changes: bytes) -> RosterEntry:
    plain = RosterEntry(bytes([tag] * 16), *(bytes([16 * tag + i] * 32) for i in (1, 2, 3)))
    return plain._replace(**changes)


ENTRIES = [entry(i) for i in range(1, 6)]


def sign(index: int, message: str, *fields: bytes) -> bytes:
    return identity(index).signing.sign(b"umbel/A/1/" + message.encode() + lp(*fields))


def people(count: int) -> tuple[list[RosterEntry], list[Member]]:
    """Return certified entries and their members."""
    members = [verified(identity(i)) for i in range(count)]
    entries = [
        entry(i + 1, id=member.id, fingerprint=member.fingerprint)
        for i, member in enumerate(members)
    ]
    return entries, members


# ---- rule 1 ----------------------------------------------------------------------------------


def test_a_distinct_roster_passes() -> None:
    rules.distinct_roster(ENTRIES)
    rules.distinct_roster([])


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (entry(2, id=entry(1).id), "id"),
        (entry(2, fingerprint=entry(1).fingerprint), "certificate"),
        (entry(2, mask_pk=entry(1).mask_pk), "key"),
        (entry(2, seal_pk=entry(1).seal_pk), "key"),
        (entry(2, seal_pk=entry(1).mask_pk), "key"),  # in another role
        (entry(2, seal_pk=entry(2).mask_pk), "key"),  # of one member in both
    ],
)
def test_nothing_occurs_twice(second: RosterEntry, what: str) -> None:
    roster = [entry(1), second, entry(3)]
    refuses(pb.REASON_ROSTER, lambda: rules.distinct_roster(roster), f"{what} occurs twice")


def test_the_own_entry_stands_where_it_stands() -> None:
    assert [rules.own_entry(ENTRIES, own) for own in ENTRIES] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("field", RosterEntry._fields)
def test_the_own_entry_is_exact(field: str) -> None:
    own = entry(3)
    altered = [*ENTRIES[:2], own._replace(**{field: b"x" * len(getattr(own, field))}), *ENTRIES[3:]]
    refuses(pb.REASON_ROSTER, lambda: rules.own_entry(altered, own), "missing or altered")
    missing = ENTRIES[:2] + ENTRIES[3:]
    refuses(pb.REASON_ROSTER, lambda: rules.own_entry(missing, own), "missing or altered")
    twice = [*ENTRIES, own]
    refuses(pb.REASON_ROSTER, lambda: rules.own_entry(twice, own), "missing or altered")


@pytest.mark.parametrize("field", ["id", "fingerprint"])
def test_an_entry_is_the_member_whose_certificate_was_verified(field: str) -> None:
    entries, members = people(3)
    rules.certified(entries, members)
    other = entries[1]._replace(**{field: b"x" * len(getattr(entries[1], field))})
    wrong = [entries[0], other, entries[2]]
    refuses(pb.REASON_CERTIFICATE, lambda: rules.certified(wrong, members), other.id.hex())
    swapped = [members[1], members[0], members[2]]
    refuses(pb.REASON_CERTIFICATE, lambda: rules.certified(entries, swapped), entries[0].id.hex())


def keys_signatures(
    entries: list[RosterEntry], around: tuple[int, ...], ctx0: bytes
) -> list[bytes]:
    return [
        sign(i, "keys", ctx0, entries[i].id, entries[i].mask_pk, entries[i].seal_pk) for i in around
    ]


def test_every_neighbours_signature_is_over_the_own_ctx0() -> None:
    entries, members = people(4)
    around = (1, 2, 3)
    good = keys_signatures(entries, around, CTX)
    rules.neighbours_keys(entries, members, around, good, CTX)
    other = keys_signatures(entries, around, bytes(32))
    for at, place in enumerate(around):
        for bad in (other[at], good[at - 1], bytes(64), b""):
            mixed = [*good[:at], bad, *good[at + 1 :]]
            error = refuses(
                pb.REASON_ROSTER,
                partial(rules.neighbours_keys, entries, members, around, mixed, CTX),
            )
            assert entries[place].id.hex() in str(error)
    for wrong in (good[:-1], [*good, good[0]], []):
        refuses(
            pb.REASON_ROSTER,
            partial(rules.neighbours_keys, entries, members, around, wrong, CTX),
            f"3 neighbours, {len(wrong)} `keys` signatures",
        )


def test_a_member_that_voted_joins_for_the_same_set_only() -> None:
    ids = [e.id for e in ENTRIES]
    rules.repeat_roster(ids, None)
    rules.repeat_roster(ids, frozenset(ids))
    rules.repeat_roster(list(reversed(ids)), frozenset(ids))
    for other in (ids[:-1], [*ids, b"x" * 16], [*ids[:-1], b"x" * 16], []):
        refuses(
            pb.REASON_WOULD_DIFFERENCE,
            partial(rules.repeat_roster, other, frozenset(ids)),
        )


# ---- rule 2 ----------------------------------------------------------------------------------


def test_at_most_d_may_be_gone_and_t_blobs_are_good() -> None:
    rules.enough_shares(FIVE, range(5), 0, 4)
    rules.enough_shares(FIVE, (0, 1, 2, 4), 0, 3)
    for u2, own, good, words in (
        ((0, 1, 2), 0, 4, "2 of 5 sent no shares, 1 may be lost"),
        ((1, 2, 3, 4), 0, 4, "not among the senders"),
        (range(5), 0, 2, "2 good blobs of 4, the threshold is 3"),
        ((), 0, 0, "5 of 5"),
    ):
        refuses(
            pb.REASON_SHARES,
            partial(rules.enough_shares, FIVE, u2, own, good),
            words,
        )


# ---- rule 3 ----------------------------------------------------------------------------------


def test_the_survivors_are_counted_from_the_set() -> None:
    rules.survivor_set(TEN, range(10), range(10), 3)
    rules.survivor_set(TEN, range(9), range(7), 3)
    rules.survivor_set(TEN, range(10), range(7), 7)


@pytest.mark.parametrize(
    ("numbers", "u2", "u", "least", "words"),
    [
        (TEN, range(9), range(10), 3, "that sent no shares"),
        (TEN, range(10), range(6), 3, "4 of 10 are lost, 3 may be"),
        (TEN, range(10), range(7), 8, "7 survivors, at least 8 are needed"),
        # A + 2 stands whatever `least` says, also where D would allow fewer.
        (replace(TEN, d=8), range(10), range(2), 1, "2 survivors, at least 3 are needed"),
        (replace(TEN, d=8, a=3), range(10), range(4), 1, "4 survivors, at least 5 are needed"),
        (TEN, range(10), (), 3, "10 of 10 are lost"),
    ],
)
def test_a_survivor_set_that_is_too_small_or_no_part_of_u2(
    numbers: Parameters, u2: Any, u: Any, least: int, words: str
) -> None:
    refuses(pb.REASON_SURVIVORS, lambda: rules.survivor_set(numbers, set(u2), set(u), least), words)


def test_a_repeat_bears_no_loss() -> None:
    rules.repeat_survivors(FIVE, range(4), None)
    rules.repeat_survivors(FIVE, range(5), frozenset({b"x"}))
    refuses(
        pb.REASON_WOULD_DIFFERENCE,
        lambda: rules.repeat_survivors(FIVE, range(4), frozenset({b"x"})),
        "4 of 5",
    )


def header(
    index: int, entries: list[RosterEntry], u2: bytes = U2, ctx: bytes = CTX
) -> rules.Header:
    y_hash = bytes([index] * 32)
    return rules.Header(u2, y_hash, sign(index, "masked", ctx, entries[index].id, u2, y_hash))


def test_every_surviving_neighbour_masked_against_the_own_u2() -> None:
    entries, members = people(4)
    expected = (1, 3)
    good = [header(i, entries) for i in expected]
    rules.neighbours_masked(entries, members, expected, good, CTX, U2)
    cases = [
        ([good[0]], "2 surviving neighbours, 1 headers"),
        ([*good, good[0]], "2 surviving neighbours, 3 headers"),
        ([good[1], good[0]], "did not sign its vector"),
        ([good[0], header(3, entries, u2=U)], "masked against another U2"),
        ([good[0], header(3, entries, ctx=bytes(32))], "did not sign its vector"),
        ([good[0], good[1]._replace(y_hash=bytes(32))], "did not sign its vector"),
        ([good[0], good[1]._replace(signature=bytes(64))], "did not sign its vector"),
    ]
    for headers, words in cases:
        error = refuses(
            pb.REASON_SURVIVORS,
            partial(rules.neighbours_masked, entries, members, expected, headers, CTX, U2),
            words,
        )
        if "member" in str(error):
            assert any(entries[i].id.hex() in str(error) for i in expected)


# ---- rule 4 ----------------------------------------------------------------------------------


def ballots(places: Any, u2: bytes = U2, u: bytes = U, ctx: bytes = CTX) -> list[tuple[int, bytes]]:
    return [(i, sign(i, "survivors", ctx, u2, u)) for i in places]


def test_q_votes_of_distinct_survivors_for_exactly_this() -> None:
    _, members = people(5)
    public = {i: members[i].public for i in range(5)}
    rules.quorum(FIVE, public, ballots(range(4)), CTX, U2, U)
    rules.quorum(FIVE, public, ballots((4, 2, 0, 1, 3)), CTX, U2, U)
    del public[4]
    three = ballots(range(3))
    cases = [
        ([], "0 votes, the quorum is 4"),
        (three, "3 votes, the quorum is 4"),
        ([*three, three[0]], "two votes of the member at place 0"),
        ([*three, (3, three[0][1])], "the vote of place 3 is not for this survivor set"),
        ([*three, *ballots((4,))], "a vote of place 4, which is no survivor"),
        ([*three, (99, bytes(64))], "a vote of place 99, which is no survivor"),
        ([*three, *ballots((3,), u=bytes(32))], "not for this survivor set"),
        ([*three, *ballots((3,), u2=bytes(32))], "not for this survivor set"),
        ([*three, *ballots((3,), ctx=bytes(32))], "not for this survivor set"),
        ([*three, (3, b"")], "not for this survivor set"),
        # One bad vote beside a quorum is enough: an honest server counted every one.
        ([*ballots(range(4)), (99, b"")], "no survivor"),
    ]
    for votes, words in cases:
        refuses(
            pb.REASON_VOTES,
            partial(rules.quorum, FIVE, public, votes, CTX, U2, U),
            words,
        )
