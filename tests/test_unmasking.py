"""Rebuilding masks from shares: which, with which sign, and who is named when it fails.

The secrets, and the shares with them, are made here; the expected streams come from
transcript.py, which shares no code with the package.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import pytest

from umbel.protocol import shamir, unmasking
from umbel.protocol.context import RosterEntry
from umbel.protocol.errors import VoidRound
from umbel.protocol.graph import Parameters, neighbours, point
from umbel.tests import transcript

CTX = bytes(range(32))
Shares = dict[int, list[tuple[int, bytes]]]


def stream(tag: str) -> bytes:
    return hashlib.sha256(tag.encode()).digest()


def seeded(buffer: bytearray | memoryview) -> None:
    """Fill with bytes that are as good as any for shares that nobody must keep secret."""
    view = memoryview(buffer).cast("B")
    view[:] = np.random.default_rng(len(view)).bytes(len(view))


class Roster(NamedTuple):
    """Members whose secrets lie open."""

    p: Parameters
    entries: list[RosterEntry]
    secrets: list[bytes]
    seeds: list[bytes]

    def material(self, u2: set[int], u: set[int]) -> unmasking.Material:
        """Return what the server knows of them."""
        com = {i: transcript.commitment(self.seeds[i], CTX, self.entries[i].id) for i in sorted(u2)}
        return unmasking.Material(CTX, self.entries, self.p, frozenset(u2), frozenset(u), com)

    def shares(self, u2: set[int], u: set[int], releasing: set[int]) -> Shares:
        """Return what the releasing survivors give: a seed or a key share of each owner."""
        found: Shares = {}
        for owner in sorted(u2):
            secret = self.seeds[owner] if owner in u else self.secrets[owner]
            dealt = shamir.split(bytearray(secret), self.p.t, self.p.k, entropy=seeded)
            found[owner] = [
                (x, dealt[x - 1].tobytes())
                for holder in sorted(releasing)
                if holder in neighbours(owner, self.p.n, self.p.k)
                for x in [point(owner, holder, self.p.n, self.p.k)]
            ]
        return found

    def expected(self, u2: set[int], u: set[int]) -> list[tuple[bytes, int]]:
        """Return what must come off: the self masks of U, and what U did for the lost."""
        off = [(transcript.self_key(self.seeds[i], CTX, self.entries[i].id), -1) for i in sorted(u)]
        for lost in sorted(u2 - u):
            for other in neighbours(lost, self.p.n, self.p.k):
                if other in u:
                    mine, theirs = self.entries[lost].id, self.entries[other].id
                    key = transcript.pair_key(
                        self.secrets[lost], self.entries[other].mask_pk, CTX, mine, theirs
                    )
                    # The survivor added the stream if its id is the smaller one.
                    off.append((key, -1 if theirs < mine else 1))
        return off


def roster(p: Parameters) -> Roster:
    secrets = [stream(f"mask {i}") for i in range(p.n)]
    entries = [
        RosterEntry(
            stream(f"id {i}")[:16],
            stream(f"certificate {i}"),
            transcript.public_of(secrets[i]),
            stream(f"seal {i}"),
        )
        for i in range(p.n)
    ]
    return Roster(p, entries, secrets, [stream(f"seed {i}") for i in range(p.n)])


FIVE = roster(Parameters(5, 4, 3, 1, 1, 4))
RING = roster(Parameters(40, 14, 10, 4, 4, 23))


def sets(members: Roster, unshared: set[int], lost: set[int]) -> tuple[set[int], set[int]]:
    u2 = set(range(members.p.n)) - unshared
    return u2, u2 - lost


@pytest.mark.parametrize(
    ("members", "unshared", "lost"),
    [
        (FIVE, set(), set()), (FIVE, set(), {2}), (FIVE, {4}, set()), (RING, set(), set()),
        (RING, {3}, {0, 1, 39}), (RING, set(), {10, 11, 12, 30}),
    ],
)  # fmt: skip
def test_the_streams_that_the_sum_still_carries(
    members: Roster, unshared: set[int], lost: set[int]
) -> None:
    u2, u = sets(members, unshared, lost)
    got = unmasking.streams(members.material(u2, u), members.shares(u2, u, u))
    assert [(bytes(key), sign) for key, sign in got] == members.expected(u2, u)


def test_both_signs_occur() -> None:
    u2, u = sets(RING, set(), {5, 20})
    assert {sign for _, sign in RING.expected(u2, u)[len(u) :]} == {-1, 1}


def test_more_than_t_shares_are_not_needed() -> None:
    u2, u = sets(FIVE, set(), set())
    given = FIVE.shares(u2, u, u)
    assert {len(shares) for shares in given.values()} == {4}
    exact = {owner: shares[-3:] for owner, shares in given.items()}
    for shares in (given, exact):
        got = unmasking.streams(FIVE.material(u2, u), shares)
        assert [(bytes(k), s) for k, s in got] == FIVE.expected(u2, u)


@pytest.mark.parametrize("lost", [set[int](), {1}])
def test_too_few_shares_void_the_round_and_name_the_secret_nobody_is_blamed_for(
    lost: set[int],
) -> None:
    u2, u = sets(FIVE, set(), lost)
    given = FIVE.shares(u2, u, u)
    for owner in sorted(u2):
        short = {**given, owner: given[owner][:2]}
        with pytest.raises(VoidRound) as caught:
            unmasking.streams(FIVE.material(u2, u), short)
        name = FIVE.entries[owner].id.hex()
        assert str(caught.value) == f"2 good shares of member {name}, 3 are needed"
        assert caught.value.member == b""


def test_a_lost_member_without_a_neighbour_in_u_needs_no_shares() -> None:
    """Nobody masked against it: its fourteen neighbours on the ring of 40 are not in U2."""
    u = set(range(40)) - {(20 + i) % 40 for i in range(-7, 8)}
    u2 = {20} | u
    given = RING.shares(u2, u, u)
    assert given[20] == []
    for owner in u:  # those at the edge of the gap have few neighbours left
        given[owner] = RING.shares(u2, u, set(range(40)))[owner]
    got = unmasking.streams(RING.material(u2, u), given)
    assert [(bytes(k), s) for k, s in got] == RING.expected(u2, u)
    assert len(got) == len(u)


def test_a_seed_that_was_not_committed_to_names_its_owner() -> None:
    u2, u = sets(FIVE, set(), set())
    other = FIVE._replace(seeds=[*FIVE.seeds[:3], stream("another"), FIVE.seeds[4]])
    with pytest.raises(VoidRound, match="dealt shares of another seed than its own") as caught:
        unmasking.streams(FIVE.material(u2, u), other.shares(u2, u, u))
    assert caught.value.member == FIVE.entries[3].id


def test_a_mask_key_that_was_not_advertised_names_its_owner() -> None:
    u2, u = sets(FIVE, set(), {2})
    other = FIVE._replace(secrets=[*FIVE.secrets[:2], stream("another"), *FIVE.secrets[3:]])
    with pytest.raises(VoidRound, match="dealt shares of another mask key") as caught:
        unmasking.streams(FIVE.material(u2, u), other.shares(u2, u, u))
    assert caught.value.member == FIVE.entries[2].id


def test_one_altered_byte_of_a_share_is_noticed() -> None:
    u2, u = sets(FIVE, set(), {2})
    for owner in (0, 2):
        given = FIVE.shares(u2, u, u)
        x, share = given[owner][0]
        given[owner][0] = (x, bytes([share[0] ^ 1]) + share[1:])
        with pytest.raises(VoidRound) as caught:
            unmasking.streams(FIVE.material(u2, u), given)
        assert caught.value.member == FIVE.entries[owner].id
