"""Scheme A as the server sees it: gather, freeze, route, count votes, rebuild, unmask.

    keys       -> freeze      R, in the order of arrival; the graph follows from n
    shares     -> end_shares  U2, and each member's inbox
    headers    -> end_uploads U: signed, whole, and masked against the same U2
    votes      -> quorum      q votes for one (U2, U)
    releases   -> finish      the mask streams to take off the sum

The vectors never come here: the aggregation core folds them and reports `delivered`. A
member that breaks a rule is named in a `PeerError`; the coordinator drops it and the attempt
goes on while D allows. What is rebuilt here are the self masks of U and the pair masks of
U2 without U, never both secrets of one owner. docs/protocol.md, section 5.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from . import graph, keys, plan, unmasking
from . import messages_pb2 as pb
from .context import RosterEntry, bitmap, context, roster_root
from .errors import PeerError, SettingsError, TooFewMembers, VoidRound
from .scheme_a import Event, OutOfOrder, Role, State, after

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .context import Terms
    from .verification import Member


class ServerSide:
    """The server in one attempt; holds public material and, at its end, released shares."""

    def __init__(self, terms: Terms) -> None:
        """Start by gathering keys for the attempt that `terms` describes."""
        self.terms = terms
        self.ctx0 = terms.ctx0()
        self.ctx = b""
        self.state = State.GATHERING
        self.numbers: graph.Parameters | None = None
        self.entries: list[RosterEntry] = []
        self.u2: tuple[int, ...] = ()
        self.u: tuple[int, ...] = ()
        self.faults: list[tuple[bytes, str]] = []
        self._gathered: dict[bytes, tuple[Member, RosterEntry, bytes]] = {}
        self._places: dict[bytes, int] = {}
        self._shares: dict[int, pb.Shares] = {}
        self._headers: dict[int, pb.MaskedHeader] = {}
        self._whole: set[int] = set()
        self._votes: dict[int, bytes] = {}
        self._released: set[int] = set()
        self._usable: dict[int, list[tuple[int, bytes]]] = {}
        self._withheld: Counter[int] = Counter()

    # -- trip 1 ---------------------------------------------------------------------------

    def keys(self, member: Member, message: pb.Keys) -> None:
        """Take a verified member's round keys, signed over this attempt's ctx0.

        Raises:
            PeerError: The signature is not for this ctx0 (the member sees another model,
                configuration or parameters), a key was seen before or is of low order: every
                honest neighbour would refuse such a roster, and nobody would be named.
        """
        self._next(Event.KEYS, member.id)
        name = member.id.hex()
        fields = (self.ctx0, member.id, message.mask_pk, message.seal_pk)
        if not keys.verify(member.public, message.signature, "keys", *fields):
            raise PeerError(name, "its keys are not signed for this round's ctx0")
        entry = RosterEntry(member.id, member.fingerprint, message.mask_pk, message.seal_pk)
        taken = [key for _, other, _ in self._gathered.values() for key in other[2:]]
        if member.id in self._gathered or len({*taken, *entry[2:]}) != len(taken) + 2:
            raise PeerError(name, "sent keys that this attempt already has")
        for public in entry[2:]:
            keys.check_public(public, name)
        self._gathered[member.id] = (member, entry, message.signature)

    @property
    def gathered(self) -> int:
        """How many members have sent keys."""
        return len(self._gathered)

    def drop(self, member_id: bytes) -> None:
        """Forget a member that went away before the roster froze."""
        self._gathered.pop(member_id, None)

    def freeze(self) -> dict[bytes, pb.Roster]:
        """Freeze the roster and return what each member gets (trip 1 down).

        Raises:
            TooFewMembers: n is too small for the parameters; the arithmetic is shown.
        """
        state = self._next(Event.FREEZE)
        n = len(self._gathered)
        try:
            p = plan.numbers(self.terms.params, n)
        except SettingsError as error:
            raise TooFewMembers(f"{n} members sent keys: {error}") from error
        self.numbers = p
        self.entries = [entry for _, entry, _ in self._gathered.values()]
        self._places = {entry.id: i for i, entry in enumerate(self.entries)}
        self.ctx = context(self.ctx0, roster_root(self.entries))
        self.state = state
        packed = b"".join(entry.pack() for entry in self.entries)
        signatures = [signature for _, _, signature in self._gathered.values()]
        return {
            entry.id: pb.Roster(
                entries=packed,
                members=n,
                keys_signatures=[signatures[v] for v in self.around(i)],
            )
            for i, entry in enumerate(self.entries)
        }

    # -- trip 2 ---------------------------------------------------------------------------

    def shares(self, member_id: bytes, message: pb.Shares) -> None:
        """Take a member's sealed shares.

        Raises:
            PeerError: A wrong number of blobs, a wrong signature, or a second message.
        """
        self._next(Event.SHARES, member_id)
        place, name = self.place(member_id), member_id.hex()
        if place in self._shares:
            raise PeerError(name, "sent its shares twice")
        if len(message.blobs) != self._plan().k:
            raise PeerError(name, "sealed shares", self._plan().k, len(message.blobs))
        hashes = b"".join(b.mask_share_hash + b.seed_share_hash for b in message.blobs)
        sealed = sha256(b"".join(b.blob for b in message.blobs)).digest()
        fields = (self.ctx, member_id, message.commitment, hashes, sealed)
        if not self._signed(place, message.signature, "shares", *fields):
            raise PeerError(name, "its shares are not signed for this context")
        self._shares[place] = message

    def end_shares(self) -> dict[bytes, pb.Inbox]:
        """Fix U2 and return each of its members' inbox (trip 2 down).

        Raises:
            TooFewMembers: More than D members sent no shares.
        """
        state = self._next(Event.END_SHARES)
        self._tolerable(len(self._shares), "shares")
        self.u2 = tuple(sorted(self._shares))
        self.state = state
        bits = bitmap(self.u2, self._plan().n)
        return {
            self.entries[i].id: pb.Inbox(
                u2=bits, blobs=[self._blob(v, i) for v in self.around(i) if v in self._shares]
            )
            for i in self.u2
        }

    def _blob(self, owner: int, holder: int) -> pb.Sealed:
        p = self._plan()
        return self._shares[owner].blobs[graph.point(owner, holder, p.n, p.k) - 1]

    # -- trip 3 ---------------------------------------------------------------------------

    def header(self, member_id: bytes, message: pb.MaskedHeader) -> None:
        """Take the signed header of a vector whose bytes go to the aggregation core.

        Raises:
            PeerError: A wrong signature, another U2, or a second header with other content.
        """
        self._next(Event.HEADER, member_id)
        place, name = self.place(member_id), member_id.hex()
        if place not in self._shares:
            raise PeerError(name, "sent a vector without having sent shares")
        if message.u2_hash != self._hash(self.u2):
            raise PeerError(name, "masked against another set of share senders")
        fields = (self.ctx, member_id, message.u2_hash, message.y_hash)
        if not self._signed(place, message.signature, "masked", *fields):
            raise PeerError(name, "its vector's header is not signed for this context")
        if self._headers.setdefault(place, message) != message:
            raise PeerError(name, "sent a second vector for one context")

    def delivered(self, member_id: bytes, y_hash: bytes) -> None:
        """Note that the core holds this member's whole vector, with this SHA-256.

        Raises:
            PeerError: The bytes are not those that the member signed.
        """
        self._next(Event.DELIVERED, member_id)
        place = self.place(member_id)
        if place not in self._headers or self._headers[place].y_hash != y_hash:
            raise PeerError(member_id.hex(), "the vector does not hash to what was signed")
        self._whole.add(place)

    def end_uploads(self) -> dict[bytes, pb.Survivors]:
        """Fix U and return what each survivor gets (trip 3 down).

        Raises:
            TooFewMembers: More than D members of R are missing, or U is below a floor.
        """
        state = self._next(Event.END_UPLOADS)
        p = self._plan()
        self._tolerable(len(self._whole), "a whole vector")
        least = max(p.a + 2, plan.read(self.terms.params).min_survivors)
        if len(self._whole) < least:
            raise TooFewMembers(f"{len(self._whole)} survivors, at least {least} are needed")
        self.u = tuple(sorted(self._whole))
        self.state = state
        return {self.entries[i].id: self.call(i) for i in self.u}

    def call(self, place: int) -> pb.Survivors:
        """Return what a survivor is shown of U (trip 3 down)."""
        around = [self._headers[v] for v in self.around(place) if v in self._whole]
        return pb.Survivors(u=bitmap(self.u, self._plan().n), masked=around)

    # -- trip 4 ---------------------------------------------------------------------------

    def vote(self, member_id: bytes, message: pb.Vote) -> None:
        """Count a survivor's vote for this (U2, U).

        Raises:
            PeerError: Not a survivor, a second vote, or a vote for something else.
        """
        self._next(Event.VOTE, member_id)
        place, name = self.place(member_id), member_id.hex()
        if place not in self.u:
            raise PeerError(name, "voted and is no survivor")
        if place in self._votes:
            raise PeerError(name, "voted twice")
        fields = (self.ctx, self._hash(self.u2), self._hash(self.u))
        if not self._signed(place, message.signature, "survivors", *fields):
            raise PeerError(name, "voted for another survivor set")
        self._votes[place] = message.signature

    @property
    def has_quorum(self) -> bool:
        """Whether q survivors have voted."""
        return len(self._votes) >= self._plan().q

    def quorum(self) -> dict[bytes, pb.Votes]:
        """Return the counted votes for every survivor (trip 4 down).

        Raises:
            TooFewMembers: Fewer than q votes came.
        """
        state = self._next(Event.QUORUM)
        p = self._plan()
        if not self.has_quorum:
            text = f"{len(self._votes)} votes, the quorum is {p.q}"
            raise TooFewMembers(f"{text}: {p.n} members tolerate {p.d} losses")
        self._usable = {owner: [] for owner in self.u2}
        self.state = state
        counted = self.counted()
        return {self.entries[i].id: counted for i in self.u}

    def counted(self) -> pb.Votes:
        """Return the votes so far."""
        counted = [pb.CountedVote(position=i, signature=s) for i, s in self._votes.items()]
        return pb.Votes(votes=counted)

    # -- trip 5 ---------------------------------------------------------------------------

    def release(self, member_id: bytes, message: pb.Release) -> None:
        """Keep a survivor's shares; one that its owner did not deal names the holder.

        Raises:
            PeerError: Not a survivor, a second release, or a wrong number of shares.
        """
        self._next(Event.RELEASE, member_id)
        place, name = self.place(member_id), member_id.hex()
        if place not in self.u or place in self._released:
            raise PeerError(name, "released shares that nobody asked of it")
        owners = [v for v in self.around(place) if v in self._shares]
        if len(owners) != len(message.shares):
            raise PeerError(name, "released shares", len(owners), len(message.shares))
        self._released.add(place)
        for owner, share in zip(owners, message.shares, strict=True):
            self._keep(owner, place, share)

    def _keep(self, owner: int, holder: int, share: bytes) -> None:
        """Keep a share that hashes to what its owner signed; an empty one blames nobody yet."""
        p, sealed = self._plan(), self._blob(owner, holder)
        wanted = sealed.seed_share_hash if owner in self.u else sealed.mask_share_hash
        if sha256(share).digest() == wanted:
            self._usable[owner].append((graph.point(owner, holder, p.n, p.k), share))
        elif share:
            what = f"released a share that {self.entries[owner].id.hex()} never dealt"
            self.faults.append((self.entries[holder].id, what))
        else:
            self._withheld[owner] += 1

    @property
    def solvable(self) -> bool:
        """Whether every needed secret has t good shares among the releases so far."""
        t = self._plan().t
        return all(len(shares) >= t for shares in self._usable.values())

    def finish(self) -> list[tuple[bytearray, int]]:
        """Return the mask streams to apply to the folded sum, as pairs (key, sign).

        Raises:
            TooFewMembers: More than D members are gone, and a secret misses shares for it.
            VoidRound: A secret has fewer than t good shares, or does not match what its
                owner advertised; the owner is named, and `faults` names every bad holder.
        """
        state = self._next(Event.FINISH)
        if not self.solvable:
            self._tolerable(len(self._released), "shares of the others")
            self._blame_owners()
        streams = unmasking.streams(self._material(), self._usable)
        self._usable.clear()
        self.state = state
        return streams

    def _blame_owners(self) -> None:
        """Name an owner whose blobs more than A holders found bad: one of them is honest."""
        p = self._plan()
        for owner, shares in self._usable.items():
            if len(shares) < p.t and self._withheld[owner] > p.a:
                who = self.entries[owner].id
                what = f"{self._withheld[owner]} holders got bad shares of member {who.hex()}"
                raise VoidRound(what, who)

    def _material(self) -> unmasking.Material:
        commitments = {i: self._shares[i].commitment for i in self.u2}
        return unmasking.Material(
            self.ctx, self.entries, self._plan(), frozenset(self.u2), frozenset(self.u), commitments
        )

    # -- helpers --------------------------------------------------------------------------

    def around(self, place: int) -> tuple[int, ...]:
        """Return N(place), in ring order."""
        p = self._plan()
        return graph.neighbours(place, p.n, p.k)

    def place(self, member_id: bytes) -> int:
        """Return a member's place in the roster; PeerError when it has none."""
        if member_id not in self._places:
            raise PeerError(member_id.hex(), "is not in this attempt's roster")
        return self._places[member_id]

    def ids(self, places: Iterable[int]) -> tuple[bytes, ...]:
        """Return the ids at these places."""
        return tuple(self.entries[i].id for i in places)

    def _tolerable(self, present: int, what: str) -> None:
        p = self._plan()
        if p.n - present > p.d:
            raise TooFewMembers(
                f"{present} of {p.n} sent {what}: {p.n} members tolerate {p.d} losses"
            )

    def _signed(self, place: int, signature: bytes, message: str, *fields: bytes) -> bool:
        member, _, _ = self._gathered[self.entries[place].id]
        return keys.verify(member.public, signature, message, *fields)

    def _hash(self, places: tuple[int, ...]) -> bytes:
        return sha256(bitmap(places, self._plan().n)).digest()

    def _plan(self) -> graph.Parameters:
        if self.numbers is None:
            raise OutOfOrder("the roster is not frozen yet")
        return self.numbers

    def _next(self, event: Event, member_id: bytes = b"") -> State:
        try:
            return after(Role.SERVER, self.state, event)
        except OutOfOrder as error:
            if member_id:
                raise PeerError(member_id.hex(), str(error)) from error
            raise
