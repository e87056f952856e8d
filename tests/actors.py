"""Actors for the attack tests: enrolled members, and one attempt whose messages lie open.

`Game` plays scheme A with real certificates, the members' side (`MemberSide`) and the server's
own engine (`Reopenable`). Every message between them is at hand, so that a test can be the
server that lies (it sends what it likes to whom it likes) or a member that does (it holds a
valid certificate and signs what it likes). Members are enrolled once for a test process; a
game of one hundred members takes a second or two.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients.policy import Policy
from umbel.protocol import keys, masks
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.context import RosterEntry, Terms, bitmap
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import PeerError, Refused
from umbel.protocol.member import MemberSide
from umbel.protocol.members import LIFE, MemberList
from umbel.protocol.membership import Membership
from umbel.protocol.plan import Params
from umbel.protocol.reopening import Reopenable
from umbel.protocol.standpoint import Identity, Standpoint
from umbel.protocol.verification import Member, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from umbel.protocol.entropy import Entropy

FEDERATION = "attacks"
NOW = datetime(2030, 1, 7, 12, 0, tzinfo=UTC)
PARAMS = Params(value_range=0.5, weight_cap=40, min_members=3, min_survivors=3)
SPLIT, TOTAL = 256, 288
"""Bytes of the 32-bit section and of a whole vector."""


# ---- who takes part --------------------------------------------------------------------------


@cache
def authority(which: str) -> Authority:
    """Return a CA of the federation; only `ours` is the one that members pinned."""
    return Authority.create(FEDERATION, NOW)


@cache
def identity(index: int) -> Identity:
    """Return an enrolled member; the order of the ids is not that of the indices."""
    return enrolled(hashlib.sha256(b"actor %d" % index).digest()[:16], f"site-{index // 2}")


def enrolled(node: bytes, site: str = "site", *, ca: str = "ours", now: datetime = NOW) -> Identity:
    """Certify a fresh signing key for this id."""
    signing = Ed25519PrivateKey.generate()
    leaf = authority(ca).issue_signing(signing.public_key(), node, site, now)
    return Identity(id=node, certificate=leaf.public_bytes(Encoding.DER), signing=signing)


@cache
def verifier() -> Verifier:
    """Return the verifier that pins our CA; what it verified, it keeps."""
    return Verifier(authority("ours").certificate, FEDERATION)


def membership(
    ca: Authority | None = None, now: datetime = NOW, revoked: Iterable[bytes] = (), epoch: int = 1
) -> Membership:
    """Return what a device of a CA's federation verifies by, with a list in force from `now`."""
    ca = ca or authority("ours")
    listed = MemberList(ca.federation, epoch, now, now + LIFE, frozenset(revoked))
    found = Membership(ca.certificate, ca.federation)
    found.take(listed.sign(ca), now)
    return found


def verified(who: Identity) -> Member:
    """Return what a member's certificate says."""
    return verifier().member(who.certificate, NOW)


def policy(**changes: Any) -> Policy:
    """Return a policy that allows rounds of three."""
    return replace(Policy(federation=FEDERATION, min_members=3, min_survivors=3), **changes)


def agreed(params: Params = PARAMS, **changes: Any) -> Terms:
    """Return the terms of an attempt."""
    plain = Terms(
        scheme="A",
        ca=hashlib.sha256(authority("ours").certificate.public_bytes(Encoding.DER)).digest(),
        app=bytes(32),
        run="run",
        round=1,
        phase="train",
        attempt=0,
        model=hashlib.sha256(b"model").digest(),
        config={"lr": 0.1},
        params=params.table(),
        layout=bytes(32),
    )
    return replace(plain, **changes)


# ---- what is expected ------------------------------------------------------------------------


def refuses(reason: pb.Reason, act: Callable[[], object], words: str = "") -> Refused:
    """Check that a device refuses with this code, for the cause that `words` are part of."""
    with pytest.raises(Refused) as caught:
        act()
    assert caught.value.reason == reason, str(caught.value)
    assert words in str(caught.value)
    return caught.value


def names(culprit: bytes, act: Callable[[], object], words: str = "") -> PeerError:
    """Check that the server drops exactly this member, by name."""
    with pytest.raises(PeerError) as caught:
        act()
    assert caught.value.peer == culprit.hex(), str(caught.value)
    assert words in str(caught.value)
    return caught.value


# ---- one attempt -----------------------------------------------------------------------------


class Game:
    """One attempt of n members, step by step; the place of a member is its index."""

    def __init__(
        self,
        n: int,
        *,
        terms: Terms | None = None,
        own: Policy | None = None,
        entropy: Entropy = os_entropy,
        voted: frozenset[bytes] | None = None,
        previous: frozenset[bytes] | None = None,
        people: Sequence[Identity] | None = None,
    ) -> None:
        """Bring n members to one attempt; nobody has said anything yet."""
        self.terms = terms or agreed()
        self.n = n
        self.people = list(people or (identity(i) for i in range(n)))
        self.certificates = {who.fingerprint: who.certificate for who in self.people}
        self._standpoint = Standpoint(
            floors=own or policy(),
            resolve=self.resolve,
            entropy=entropy,
            voted=voted,
            previous=previous,
        )
        self.server = Reopenable(self.terms)
        self.members = [self.newcomer(who) for who in self.people]
        self.plain = [vector(i) for i in range(n)]
        self.masked: dict[int, bytearray] = {}
        self.headers: dict[int, pb.MaskedHeader] = {}
        self.rosters: list[pb.Roster] = []
        self.inboxes: dict[int, pb.Inbox] = {}
        self.counted: dict[bytes, pb.Votes] = {}
        self.released: dict[int, pb.Release] = {}

    def newcomer(self, who: Identity, terms: Terms | None = None) -> MemberSide:
        """Return a member at the start of an attempt, on these terms or the game's."""
        return MemberSide(who, terms or self.terms, self._standpoint)

    def resolve(self, fingerprint: bytes) -> Member:
        """Verify the certificate that a device got for a roster entry."""
        return verifier().member(self.certificates.get(fingerprint, b""), NOW)

    def place(self, who: bytes) -> int:
        """Return the place of an id."""
        return [person.id for person in self.people].index(who)

    def around(self, place: int) -> tuple[int, ...]:
        """Return N(place)."""
        return self.server.around(place)

    # -- the honest course ----------------------------------------------------------------

    def gather(self) -> list[pb.Roster]:
        """Play trip 1 and return what each member gets."""
        for who, member in zip(self.people, self.members, strict=True):
            self.server.keys(verified(who), member.begin().message.keys)
        rosters = self.server.freeze()
        self.rosters = [rosters[who.id] for who in self.people]
        return self.rosters

    def deal(self, rosters: Sequence[pb.Roster], silent: Iterable[int] = ()) -> Game:
        """Play trip 2: everybody but the silent deals shares, and U2 is fixed."""
        for place, roster in enumerate(rosters):
            step = self.members[place].roster(roster)
            if place not in set(silent):
                self.server.shares(self.people[place].id, step.message.shares)
        return self.fix_u2()

    def fix_u2(self) -> Game:
        """End trip 2 with the shares that came."""
        self.inboxes = {self.place(i): box for i, box in self.server.end_shares().items()}
        return self

    def mask(self, place: int, inbox: pb.Inbox | None = None) -> pb.MaskedHeader:
        """Let a member mask its vector (trip 3 up); nothing is sent yet."""
        own = bytearray(self.plain[place])
        step = self.members[place].inbox(inbox or self.inboxes[place], own, SPLIT)
        self.masked[place], self.headers[place] = own, step.message.masked.header
        return step.message.masked.header

    def upload(self, place: int) -> None:
        """Send a member's header and whole vector to the honest server."""
        who = self.people[place].id
        self.members[place].delivered()
        self.server.header(who, self.headers[place])
        self.server.delivered(who, hashlib.sha256(self.masked[place]).digest())

    def vote(self, place: int, call: pb.Survivors) -> pb.Vote | None:
        """Return a member's vote on a survivor set, None if it sees itself excluded."""
        step = self.members[place].survivors(call)
        return None if step is None else step.message.vote

    def to_shared(self, silent: Iterable[int] = ()) -> Game:
        """Play to the end of trip 2."""
        return self.deal(self.gather(), silent)

    def to_masked(self, lost: Iterable[int] = ()) -> Game:
        """Play, from trip 2 if that is over, until all vectors but the lost ones arrived."""
        if not self.inboxes:
            self.to_shared()
        for place in range(self.n):
            self.mask(place)
            if place not in set(lost):
                self.upload(place)
        return self

    def to_released(self, lost: Iterable[int] = (), silent: Iterable[int] = ()) -> Game:
        """Play until all but the silent survivors have released; `finish` is the test's."""
        self.to_masked(lost)
        ballots = self.ballots(self.server.end_uploads())
        for place, ballot in ballots.items():
            self.server.vote(self.people[place].id, ballot)
        self.counted = self.server.quorum()
        for place in (self.place(who) for who in self.counted):
            if place not in set(silent):
                self.server.release(self.people[place].id, self.release(place))
        return self

    def release(self, place: int) -> pb.Release:
        """Return what a member releases on the votes that were counted."""
        step = self.members[place].votes(self.counted[self.people[place].id])
        self.released[place] = step.message.release
        return self.released[place]

    def ballots(self, calls: Mapping[bytes, pb.Survivors]) -> dict[int, pb.Vote]:
        """Let everybody who is called vote."""
        cast = {self.place(who): self.vote(self.place(who), call) for who, call in calls.items()}
        return {place: ballot for place, ballot in cast.items() if ballot is not None}

    # -- the server's lies ----------------------------------------------------------------

    def call(self, place: int, alive: Iterable[int]) -> pb.Survivors:
        """Return a call to vote for any set, with the genuine headers that belong to it."""
        u = set(alive)
        headers = [self.headers[v] for v in self.around(place) if v in u]
        return pb.Survivors(u=bitmap(u, self.n), masked=headers)

    def inbox(self, place: int, senders: Iterable[int]) -> pb.Inbox:
        """Return an inbox with any U2, and the genuine blobs that belong to it."""
        u2 = set(senders)
        whole = [v for v in self.around(place) if v in set(self.server.u2)]
        blobs = dict(zip(whole, self.inboxes[place].blobs, strict=True))
        mine = [blobs[v] for v in self.around(place) if v in u2]
        return pb.Inbox(u2=bitmap(u2, self.n), blobs=mine)

    # -- sums -----------------------------------------------------------------------------

    def folded(self, places: Iterable[int]) -> bytearray:
        """Return the sum of these members' vectors as they came."""
        return added([self.masked[place] for place in places])

    def opened(self, places: Iterable[int], streams: Sequence[tuple[bytearray, int]]) -> bytearray:
        """Return the sum of these members' vectors with some masks taken off."""
        total = self.folded(places)
        masks.apply(total, SPLIT, streams)
        return total

    def truth(self, places: Iterable[int]) -> bytearray:
        """Return the sum of what these members hid."""
        return added([self.plain[place] for place in places])


def vector(index: int) -> bytes:
    """Return a member's message: 64 words below 2^24 and four of 64 bits."""
    rng = np.random.default_rng(index)
    low = rng.integers(0, 2**24, SPLIT // 4, dtype=np.uint32)
    high = np.array([1, index + 1, 0, 1], np.uint64)
    return low.astype("<u4").tobytes() + high.astype("<u8").tobytes()


def added(vectors: Sequence[bytes | bytearray]) -> bytearray:
    """Return the sum modulo 2^32 and 2^64, by numpy alone."""
    total = bytearray(TOTAL)
    for one in vectors:
        for dtype, part in (("<u4", slice(0, SPLIT)), ("<u8", slice(SPLIT, TOTAL))):
            where = np.frombuffer(memoryview(total)[part], dtype)
            where += np.frombuffer(memoryview(one)[part], dtype)
    return total


def entry(who: Identity, body: pb.Keys) -> RosterEntry:
    """Return the roster entry of a member's keys."""
    return RosterEntry(who.id, who.fingerprint, body.mask_pk, body.seal_pk)


def signed_keys(who: Identity, ctx0: bytes, mask_pk: bytes, seal_pk: bytes) -> pb.Keys:
    """Return the keys of a member that signs whatever it likes."""
    signature = keys.sign(who.signing, "keys", ctx0, who.id, mask_pk, seal_pk)
    return pb.Keys(mask_pk=mask_pk, seal_pk=seal_pk, signature=signature)


def rewritten(roster: pb.Roster, place: int, new: RosterEntry) -> pb.Roster:
    """Return a roster with one entry replaced."""
    entries = RosterEntry.unpack_all(roster.entries)
    entries[place] = new
    changed = pb.Roster()
    changed.CopyFrom(roster)
    changed.entries = b"".join(one.pack() for one in entries)
    return changed
