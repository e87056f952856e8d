"""Scheme A as a member sees it: five trips, four abort rules, secrets of one attempt.

    begin      -> keys          fresh X25519 keys, signed over ctx0
    roster     -> shares        rule 1; seed b, Shamir shares of (mask key, b), sealed
    inbox      -> masked        rule 2; y = x + PRG(self) +- sum of PRG(pair) over N(u) and U2
    survivors  -> vote          rule 3
    votes      -> release       rule 4; then every secret is wiped

Each step returns a `Step`: the journal's record, which must be on disk before the message
leaves, and the message. A server that lost its memory after the uploads may ask for the vote
and the release again (section 7.3): the same question gets the same bytes, another one is
refused. Nothing here sends, stores or reads a clock. The states are those of scheme_a.py.
docs/protocol.md, section 5.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from . import graph, journal, keys, masks, plan, rules, shamir
from . import messages_pb2 as pb
from .context import RosterEntry, bitmap, context, positions, roster_root
from .entropy import random_bytes, wipe
from .errors import BadCertificate, PeerError, Refused, SettingsError
from .scheme_a import Event, OutOfOrder, Role, State, after
from .standpoint import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .context import Terms
    from .standpoint import Identity, Standpoint
    from .verification import Member


class MemberSide:
    """One member in one attempt; holds the attempt's secrets until it ends."""

    def __init__(self, identity: Identity, terms: Terms, standpoint: Standpoint) -> None:
        """Start in state `trained`: nothing is made or signed yet."""
        self._identity = identity
        self._at = standpoint
        self._terms = terms
        self.ctx0 = terms.ctx0()
        self.ctx = b""
        self.state = State.TRAINED
        self.numbers: graph.Parameters | None = None
        self._entries: list[RosterEntry] = []
        self._members: list[Member] = []
        self._own = -1
        self._around: tuple[int, ...] = ()
        self._u2: tuple[int, ...] = ()
        self._u: tuple[int, ...] = ()
        self._mask: keys.KeyPair | None = None
        self._seal: keys.KeyPair | None = None
        self._seed = bytearray()
        self._opening: dict[int, bytearray] = {}
        self._held: dict[int, tuple[bytearray, bytearray]] = {}
        self._vote = self._release = pb.ToServer()
        self.faults: list[str] = []
        """What was wrong with which neighbour's blob, for the device's own log."""

    # -- trip 1 ---------------------------------------------------------------------------

    def begin(self) -> Step:
        """Make this attempt's round keys and sign them over ctx0 (trip 1 up)."""
        state = self._next(Event.BEGIN, pb.REASON_ROSTER)
        self._mask = keys.KeyPair.generate(entropy=self._at.entropy)
        self._seal = keys.KeyPair.generate(entropy=self._at.entropy)
        mine = (self._mask.public, self._seal.public)
        signature = self._sign("keys", self.ctx0, self._identity.id, *mine)
        self.state = state
        body = pb.Keys(mask_pk=mine[0], seal_pk=mine[1], signature=signature)
        return Step(journal.Keyed(self.ctx0), pb.ToServer(ctx=self.ctx0, keys=body))

    def roster(self, message: pb.Roster) -> Step:
        """Check the frozen roster by rule 1 and deal this member's shares (trip 2 up).

        Raises:
            Refused: Rule 1, the device's floors, or a repeat that is not exact.
        """
        state = self._next(Event.ROSTER, pb.REASON_ROSTER)
        try:
            self._read_roster(message)
            step = self._deal()
        except PeerError as error:  # a key of low order, or a list that is no list of entries
            raise Refused(pb.REASON_ROSTER, str(error)) from error
        self.state = state
        return step

    def _read_roster(self, message: pb.Roster) -> None:
        mask, seal = self._keys()
        entries = RosterEntry.unpack_all(message.entries)
        rules.distinct_roster(entries)
        own = RosterEntry(self._identity.id, self._identity.fingerprint, mask.public, seal.public)
        self._own = rules.own_entry(entries, own)
        self._members = self._resolve(entries)
        rules.certified(entries, self._members)
        rules.repeat_roster([entry.id for entry in entries], self._at.voted)
        p = self._plan(len(entries))
        self._around = graph.neighbours(self._own, p.n, p.k)
        signatures = list(message.keys_signatures)
        rules.neighbours_keys(entries, self._members, self._around, signatures, self.ctx0)
        self._entries, self.numbers = entries, p
        self.ctx = context(self.ctx0, roster_root(entries))

    def _resolve(self, entries: Sequence[RosterEntry]) -> list[Member]:
        try:
            return [self._at.resolve(entry.fingerprint) for entry in entries]
        except BadCertificate as error:
            raise Refused(pb.REASON_CERTIFICATE, str(error)) from error

    def _plan(self, n: int) -> graph.Parameters:
        """Return the round's numbers for n, from ctx0's parameters, if the own policy has them."""
        floors = self._at.floors
        try:
            p = plan.numbers(self._terms.params, n)
        except SettingsError as error:
            raise Refused(pb.REASON_ROSTER, str(error)) from error
        graph.check(p, floors.tolerated(n), floors.losses(n))
        floors.check_roster(n, p.d)
        return p

    def _deal(self) -> Step:
        """Split (mask key, seed) among the neighbours and seal each share."""
        p = self._numbers()
        mask, seal = self._keys()
        self._seed = random_bytes(32, self._at.entropy)
        secret = bytearray(mask.secret) + self._seed
        shares = shamir.split(secret, p.t, p.k, entropy=self._at.entropy)
        try:
            blobs = [
                self._sealed(seal, place, share[:32].tobytes(), share[32:].tobytes())
                for place, share in zip(self._around, shares, strict=True)
            ]
        finally:
            wipe(secret, shares)
        com = keys.commitment(self.ctx, self._identity.id, self._seed)
        hashes = b"".join(b.mask_share_hash + b.seed_share_hash for b in blobs)
        sealed = sha256(b"".join(b.blob for b in blobs)).digest()
        signature = self._sign("shares", self.ctx, self._identity.id, com, hashes, sealed)
        body = pb.Shares(commitment=com, blobs=blobs, signature=signature)
        # Trip 2 has no record of its own: `keyed` already forbids a second one for this ctx0.
        return Step(None, pb.ToServer(ctx=self.ctx, shares=body))

    def _sealed(self, seal: keys.KeyPair, place: int, first: bytes, second: bytes) -> pb.Sealed:
        """Seal two shares for a neighbour, and keep the key that opens what it seals."""
        p, to = self._numbers(), self._entries[place]
        shared = seal.exchange(to.seal_pk)
        key = keys.seal_key(shared, self.ctx, self._identity.id, to.id)
        self._opening[place] = keys.seal_key(shared, self.ctx, to.id, self._identity.id)
        x = graph.point(self._own, place, p.n, p.k)
        blob = keys.seal(
            key,
            ctx=self.ctx,
            src=self._identity.id,
            dst=to.id,
            x=x,
            mask_share=first,
            seed_share=second,
        )
        wipe(shared, key)
        return pb.Sealed(
            blob=blob,
            mask_share_hash=sha256(first).digest(),
            seed_share_hash=sha256(second).digest(),
        )

    # -- trip 3 ---------------------------------------------------------------------------

    def inbox(self, message: pb.Inbox, vector: bytearray, split: int) -> Step:
        """Open the neighbours' shares by rule 2 and mask `vector` in place (trip 3 up).

        Args:
            message: U2 and the sealed blobs of this member's neighbours in U2.
            vector: The round's message (layout.py), encoded once; it becomes y.
            split: Where its 64-bit section begins, in bytes.
        """
        state = self._next(Event.INBOX, pb.REASON_SHARES)
        p = self._numbers()
        self._u2 = self._positions(message.u2, pb.REASON_SHARES)
        senders = self._neighbours(self._u2)
        if len(message.blobs) != len(senders):
            text = f"{len(senders)} neighbours sent shares, {len(message.blobs)} blobs came"
            raise Refused(pb.REASON_SHARES, text)
        for place, sealed in zip(senders, message.blobs, strict=True):
            self._open(place, sealed)
        rules.enough_shares(p, self._u2, self._own, len(self._held))
        try:
            self._cover(vector, split, senders)
        except PeerError as error:  # a mask key of low order
            raise Refused(pb.REASON_SHARES, str(error)) from error
        header = self._header(sha256(vector).digest())
        wipe(*self._opening.values())
        self._opening.clear()
        self.state = state
        record = journal.Masked(self.ctx, self._terms.run, self._terms.model, header.y_hash)
        body = pb.Masked(header=header, bytes=len(vector))
        return Step(record, pb.ToServer(ctx=self.ctx, masked=body))

    def _open(self, place: int, sealed: pb.Sealed) -> None:
        """Keep a neighbour's two shares if its blob is good; a bad one is noted and not held."""
        p, source = self._numbers(), self._entries[place]
        try:
            self._held[place] = keys.unseal(
                self._opening[place],
                sealed.blob,
                ctx=self.ctx,
                src=source.id,
                dst=self._identity.id,
                x=graph.point(place, self._own, p.n, p.k),
                mask_hash=sealed.mask_share_hash,
                seed_hash=sealed.seed_share_hash,
            )
        except PeerError as error:
            self._held.pop(place, None)
            self.faults.append(str(error))

    def _cover(self, vector: bytearray, split: int, senders: Sequence[int]) -> None:
        """Add the self mask and every pair mask of N(u) and U2, also where the blob was bad.

        A server could otherwise choose a member's mask edges by spoiling blobs.
        """
        mask, _ = self._keys()
        own = self._identity.id
        streams = [(keys.self_key(self._seed, self.ctx, own), 1)]
        try:
            for place in senders:
                other = self._entries[place]
                shared = mask.exchange(other.mask_pk)
                pair = keys.pair_key(shared, self.ctx, own, other.id)
                streams.append((pair, keys.pair_sign(own, other.id)))
                wipe(shared)
            masks.apply(vector, split, streams)
        finally:
            wipe(*(key for key, _ in streams))

    def _header(self, y_hash: bytes) -> pb.MaskedHeader:
        u2_hash = self._hash(self._u2)
        signature = self._sign("masked", self.ctx, self._identity.id, u2_hash, y_hash)
        return pb.MaskedHeader(u2_hash=u2_hash, y_hash=y_hash, signature=signature)

    def delivered(self) -> None:
        """Note that the whole vector has left; only then may this member vote for itself."""
        self.state = self._next(Event.DELIVERED, pb.REASON_SURVIVORS)

    # -- trip 4 ---------------------------------------------------------------------------

    def survivors(self, message: pb.Survivors) -> Step | None:
        """Check the survivor set by rule 3 and vote for it (trip 4 up).

        Returns:
            The vote, or None when this member is not among the survivors: it says nothing
            more and its secrets are gone.
        """
        u = self._positions(message.u, pb.REASON_SURVIVORS)
        if self._own not in u:
            self.state = self._next(Event.EXCLUDED, pb.REASON_SURVIVORS)
            self.wipe()
            return None
        state = self._next(Event.SURVIVORS, pb.REASON_SURVIVORS)
        if self._u:
            return Step(None, self._again(u))
        self._check_survivors(u, message)
        self._u = u
        u2_hash, u_hash = self._hash(self._u2), self._hash(u)
        signature = self._sign("survivors", self.ctx, u2_hash, u_hash)
        self.state = state
        record = journal.Voted(self.ctx, u2_hash, tuple(sorted(self.survivor_ids())))
        body = pb.Vote(u2_hash=u2_hash, u_hash=u_hash, signature=signature)
        self._vote = pb.ToServer(ctx=self.ctx, vote=body)
        return Step(record, self._vote)

    def _again(self, u: Sequence[int]) -> pb.ToServer:
        """Return the vote that was given before; there is no second one for another set."""
        if tuple(u) != self._u:
            raise Refused(pb.REASON_SURVIVORS, "this device voted for another survivor set")
        return self._vote

    def _check_survivors(self, u: Sequence[int], message: pb.Survivors) -> None:
        p = self._numbers()
        rules.survivor_set(p, self._u2, u, plan.read(self._terms.params).min_survivors)
        rules.repeat_survivors(p, u, self._at.voted)
        expected = self._neighbours(u)
        headers = [rules.Header(h.u2_hash, h.y_hash, h.signature) for h in message.masked]
        mine = self._hash(self._u2)
        rules.neighbours_masked(self._entries, self._members, expected, headers, self.ctx, mine)
        ids = frozenset(self._entries[i].id for i in u)
        before = self._at.previous
        difference = 0 if before is None else len(ids ^ before)
        sites = len({self._members[i].site for i in u})
        self._at.floors.check_survivors(len(u), p.a, difference, sites)

    # -- trip 5 ---------------------------------------------------------------------------

    def votes(self, message: pb.Votes) -> Step:
        """Check the quorum by rule 4 and release one share of each neighbour (trip 5 up).

        A seed share for a neighbour in U, a mask-key share for one in U2 and not in U,
        never both; an empty share where the blob was bad. Every secret is wiped after.
        """
        state = self._next(Event.VOTES, pb.REASON_VOTES)
        p = self._numbers()
        public = {i: self._members[i].public for i in self._u}
        votes = [(vote.position, vote.signature) for vote in message.votes]
        rules.quorum(p, public, votes, self.ctx, self._hash(self._u2), self._hash(self._u))
        if self.state is State.RELEASED:
            return Step(None, self._release)
        alive = frozenset(self._u)
        shares = [self._share_of(v, alive) for v in self._neighbours(self._u2)]
        body = pb.Release(shares=shares)
        self.state = state
        self.wipe()
        self._release = pb.ToServer(ctx=self.ctx, release=body)
        return Step(journal.Released(self.ctx), self._release)

    def _share_of(self, place: int, alive: frozenset[int]) -> bytes:
        if place not in self._held:
            return b""
        mask_share, seed_share = self._held[place]
        return bytes(seed_share if place in alive else mask_share)

    # -- the end --------------------------------------------------------------------------

    def close(self) -> journal.Closed:
        """End this attempt: its secrets are gone; returns the record, after which it is silent."""
        self.state = self._next(Event.CLOSE, pb.REASON_ATTEMPT_CLOSED)
        self.wipe()
        self._release = pb.ToServer()
        return journal.Closed(self.ctx or self.ctx0)

    def wipe(self) -> None:
        """Zero the seed, every key and every share held (as far as Python allows)."""
        wipe(self._seed, *(half for pair in self._held.values() for half in pair))
        wipe(*self._opening.values())
        self._held.clear()
        self._opening.clear()
        for pair in (self._mask, self._seal):
            if pair is not None:
                pair.wipe()
        self._mask = self._seal = None

    def survivor_ids(self) -> frozenset[bytes]:
        """Ids of the survivors that this member voted for."""
        return frozenset(self._entries[i].id for i in self._u)

    # -- helpers --------------------------------------------------------------------------

    def _neighbours(self, among: Sequence[int]) -> list[int]:
        """Return the neighbours that are among these places, in the order of the ring."""
        here = frozenset(among)
        return [place for place in self._around if place in here]

    def _next(self, event: Event, reason: pb.Reason) -> State:
        try:
            return after(Role.MEMBER, self.state, event)
        except OutOfOrder as error:
            raise Refused(reason, str(error)) from error

    def _keys(self) -> tuple[keys.KeyPair, keys.KeyPair]:
        if self._mask is None or self._seal is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "the secrets of this attempt are gone")
        return self._mask, self._seal

    def _numbers(self) -> graph.Parameters:
        if self.numbers is None:
            raise Refused(pb.REASON_ROSTER, "no roster came in this attempt")
        return self.numbers

    def _positions(self, raw: bytes, reason: pb.Reason) -> tuple[int, ...]:
        try:
            return positions(raw, self._numbers().n)
        except ValueError as error:
            raise Refused(reason, str(error)) from error

    def _hash(self, places: Sequence[int]) -> bytes:
        return sha256(bitmap(places, self._numbers().n)).digest()

    def _sign(self, message: str, *fields: bytes) -> bytes:
        return keys.sign(self._identity.signing, message, *fields)
