"""The abort rules of scheme A: what a member checks before it goes on.

Each function is a part of one rule of docs/protocol.md, section 5.7; each raises `Refused` with
the rule's code and a line for the device's own console. None reads a number that the server
reported: the survivors are counted from the bitmap, n and the graph come from the roster.

Pure and without secrets, so that the attacks that they stop can be played against them
(tests/test_attacks.py), one by one, with the rule taken out (`make mutants`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from . import keys
from . import messages_pb2 as pb
from .errors import Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from .context import RosterEntry
    from .graph import Parameters
    from .verification import Member


class Floors(Protocol):
    """What the device's own policy says about a roster and its survivors (clients/policy.py)."""

    def tolerated(self, n: int) -> int:
        """Return A(n), the corrupt members that this device wants withstood."""

    def losses(self, n: int) -> int | None:
        """Return D(n), the most losses this device allows; None where the graph is complete."""

    def check_roster(self, n: int, d: int) -> None:
        """Refuse a roster of n members, d of which may go missing."""

    def check_survivors(self, count: int, a: int, difference: int, sites: int) -> None:
        """Refuse a survivor set by its size, its difference to the last one, and its sites."""


class Header(NamedTuple):
    """The signed part of a masked vector: what it was masked against, and its hash."""

    u2_hash: bytes
    y_hash: bytes
    signature: bytes


def distinct_roster(entries: Sequence[RosterEntry]) -> None:
    """Rule 1, the list itself: no id, certificate or key occurs twice, in any role."""
    ids = [entry.id for entry in entries]
    prints = [entry.fingerprint for entry in entries]
    public = [key for entry in entries for key in (entry.mask_pk, entry.seal_pk)]
    for what, values in (("an id", ids), ("a certificate", prints), ("a key", public)):
        if len(set(values)) != len(values):
            raise Refused(pb.REASON_ROSTER, f"{what} occurs twice in the roster")


def own_entry(entries: Sequence[RosterEntry], own: RosterEntry) -> int:
    """Rule 1, itself: the member's own entry stands in the roster, exactly as it sent it."""
    places = [i for i, entry in enumerate(entries) if entry.id == own.id]
    if len(places) != 1 or entries[places[0]] != own:
        raise Refused(pb.REASON_ROSTER, "this device's own entry is missing or altered")
    return places[0]


def certified(entries: Sequence[RosterEntry], members: Sequence[Member]) -> None:
    """Rule 1, the certificates: entry i is the member whose certificate was verified for it."""
    for entry, member in zip(entries, members, strict=True):
        if (member.fingerprint, member.id) != (entry.fingerprint, entry.id):
            raise Refused(
                pb.REASON_CERTIFICATE, f"entry {entry.id.hex()} bears another certificate"
            )


def neighbours_keys(
    entries: Sequence[RosterEntry],
    members: Sequence[Member],
    around: Sequence[int],
    signatures: Sequence[bytes],
    ctx0: bytes,
) -> None:
    """Rule 1, the keys: every neighbour signed its round keys over this member's own ctx0.

    A server that shows clients different models, configurations or parameters gives them
    different ctx0, and fails here.
    """
    if len(signatures) != len(around):
        raise Refused(
            pb.REASON_ROSTER, f"{len(around)} neighbours, {len(signatures)} `keys` signatures"
        )
    for place, signature in zip(around, signatures, strict=True):
        entry = entries[place]
        fields = (ctx0, entry.id, entry.mask_pk, entry.seal_pk)
        if not keys.verify(members[place].public, signature, "keys", *fields):
            raise Refused(
                pb.REASON_ROSTER, f"member {entry.id.hex()} did not sign these keys for this round"
            )


def repeat_roster(ids: Collection[bytes], voted: frozenset[bytes] | None) -> None:
    """A member that voted on this model joins again only for exactly the same sum."""
    if voted is not None and frozenset(ids) != voted:
        raise Refused(
            pb.REASON_WOULD_DIFFERENCE,
            f"this device voted for {len(voted)} survivors on this model; the new roster differs",
        )


def enough_shares(p: Parameters, u2: Collection[int], own: int, good: int) -> None:
    """Rule 2: at most D members are gone, and at least t neighbours' blobs are good."""
    if p.n - len(u2) > p.d:
        raise Refused(
            pb.REASON_SHARES, f"{p.n - len(u2)} of {p.n} sent no shares, {p.d} may be lost"
        )
    if own not in u2:
        raise Refused(pb.REASON_SHARES, "this device sent its shares and is not among the senders")
    if good < p.t:
        raise Refused(pb.REASON_SHARES, f"{good} good blobs of {p.k}, the threshold is {p.t}")


def survivor_set(p: Parameters, u2: Collection[int], u: Collection[int], least: int) -> None:
    """Rule 3, the set: U lies in U2, misses at most D of R, and keeps two honest members.

    `least` is the round's own floor (params); A + 2 stands whatever it says.
    """
    if not set(u) <= set(u2):
        raise Refused(pb.REASON_SURVIVORS, "a survivor is named that sent no shares")
    if p.n - len(u) > p.d:
        raise Refused(pb.REASON_SURVIVORS, f"{p.n - len(u)} of {p.n} are lost, {p.d} may be")
    if len(u) < max(least, p.a + 2):
        text = f"{len(u)} survivors, at least {max(least, p.a + 2)} are needed"
        raise Refused(pb.REASON_SURVIVORS, text)


def repeat_survivors(p: Parameters, u: Collection[int], voted: frozenset[bytes] | None) -> None:
    """An exact repeat tolerates no loss: its survivors are its whole roster."""
    if voted is not None and len(u) != p.n:
        raise Refused(pb.REASON_WOULD_DIFFERENCE, f"a repeat with {len(u)} of {p.n} survivors")


def neighbours_masked(
    entries: Sequence[RosterEntry],
    members: Sequence[Member],
    expected: Sequence[int],
    headers: Sequence[Header],
    ctx: bytes,
    u2_hash: bytes,
) -> None:
    """Rule 3, the signatures: every surviving neighbour masked against the same U2 as this one.

    Without it a server shows one client a thinner U2 and takes away most of its mask edges.
    """
    if len(headers) != len(expected):
        raise Refused(
            pb.REASON_SURVIVORS, f"{len(expected)} surviving neighbours, {len(headers)} headers"
        )
    for place, header in zip(expected, headers, strict=True):
        who = entries[place].id
        if header.u2_hash != u2_hash:
            raise Refused(pb.REASON_SURVIVORS, f"member {who.hex()} masked against another U2")
        fields = (ctx, who, header.u2_hash, header.y_hash)
        if not keys.verify(members[place].public, header.signature, "masked", *fields):
            raise Refused(pb.REASON_SURVIVORS, f"member {who.hex()} did not sign its vector")


def quorum(
    p: Parameters,
    public: Mapping[int, Ed25519PublicKey],
    votes: Sequence[tuple[int, bytes]],
    ctx: bytes,
    u2_hash: bytes,
    u_hash: bytes,
) -> None:
    """Rule 4: q votes, each by a distinct member of U, for exactly this (U2, U).

    Args:
        p: The round's numbers; q is `p.q`.
        public: The verified signing keys of U, by place in the roster.
        votes: Pairs of place and signature, as the server passed them on.
        ctx: The round's context.
        u2_hash: SHA-256 of this member's own U2.
        u_hash: SHA-256 of the U that this member voted for.
    """
    seen: set[int] = set()
    for place, signature in votes:
        if place in seen:
            raise Refused(pb.REASON_VOTES, f"two votes of the member at place {place}")
        seen.add(place)
        if place not in public:
            raise Refused(pb.REASON_VOTES, f"a vote of place {place}, which is no survivor")
        if not keys.verify(public[place], signature, "survivors", ctx, u2_hash, u_hash):
            raise Refused(
                pb.REASON_VOTES, f"the vote of place {place} is not for this survivor set"
            )
    if len(seen) < p.q:
        raise Refused(pb.REASON_VOTES, f"{len(seen)} votes, the quorum is {p.q}")
