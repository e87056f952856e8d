"""A server that tampers with sealed shares, replays them, or is in league with their owner.

Reference list: 9 to 12, 14 and 23. A bad blob is never held and never stops an honest member as
long as t good ones remain; the member masks against its sender all the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from umbel.protocol import keys, shamir
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.context import RosterEntry, bitmap
from umbel.protocol.errors import PeerError
from umbel.tests.actors import SPLIT, TOTAL, Game, agreed, identity, refuses

if TYPE_CHECKING:
    from collections.abc import Callable


def _copy(inbox: pb.Inbox) -> pb.Inbox:
    changed = pb.Inbox()
    changed.CopyFrom(inbox)
    return changed


# ---- 10: one bad blob ----------------------------------------------------------------------------


def _flip(inbox: pb.Inbox) -> None:
    blob = bytearray(inbox.blobs[1].blob)
    blob[0] ^= 1
    inbox.blobs[1].blob = bytes(blob)


def _flip_tag(inbox: pb.Inbox) -> None:
    blob = bytearray(inbox.blobs[1].blob)
    blob[80] ^= 0x80
    inbox.blobs[1].blob = bytes(blob)


def _truncate(inbox: pb.Inbox) -> None:
    inbox.blobs[1].blob = inbox.blobs[1].blob[:80]


def _swap(inbox: pb.Inbox) -> None:
    inbox.blobs[1].CopyFrom(inbox.blobs[2])


def _swap_hashes(inbox: pb.Inbox) -> None:
    one = inbox.blobs[1]
    one.mask_share_hash, one.seed_share_hash = one.seed_share_hash, one.mask_share_hash


def _claim_other_hash(inbox: pb.Inbox) -> None:
    inbox.blobs[1].seed_share_hash = bytes(32)


@pytest.mark.parametrize(
    "tamper", [_flip, _flip_tag, _truncate, _swap, _swap_hashes, _claim_other_hash]
)
def test_a_tampered_blob_is_named_not_held_and_its_sender_still_masked_against(
    tamper: Callable[[pb.Inbox], None],
) -> None:
    game = Game(7).to_shared()
    changed = _copy(game.inboxes[0])
    tamper(changed)
    game.mask(0, changed)
    member, sender = game.members[0], game.around(0)[1]
    assert sender not in member._held
    assert len(member._held) == 5
    assert [fault.split(":")[0] for fault in member.faults] == [
        f"member {game.people[sender].id.hex()}"
    ]
    _finishes(game, given=5, withheld=sender)


def _finishes(game: Game, given: int, withheld: int) -> None:
    """Play the rest: the round survives, and the sum shows that no mask edge was left out."""
    for place in range(1, 7):
        game.mask(place)
    for place in range(7):
        game.upload(place)
    for place, ballot in game.ballots(game.server.end_uploads()).items():
        game.server.vote(game.people[place].id, ballot)
    game.counted = game.server.quorum()
    for place in range(7):
        game.server.release(game.people[place].id, game.release(place))
    shares = game.released[0].shares
    assert sum(1 for share in shares if share) == given
    assert shares[game.around(0).index(withheld)] == b""
    streams = game.server.finish()
    assert game.opened(range(7), streams) == game.truth(range(7))


def test_a_server_that_reflects_a_members_own_blob_gives_it_nothing_to_hold() -> None:
    """The key of the way back is another one: src and dst stand in its derivation."""
    game = Game(7).to_shared()
    place = game.around(0)[1]
    mine = game.server._shares[0].blobs[1]
    changed = _copy(game.inboxes[0])
    changed.blobs[1].CopyFrom(mine)
    game.mask(0, changed)
    assert place not in game.members[0]._held


def test_a_server_that_drops_share_senders_far_away_gets_no_vector() -> None:
    """On a ring all of the member's own neighbours may be there, and too many others not."""
    game = Game(40)  # k = 14, D = 4
    step = game.members[0].roster(game.gather()[0])
    assert len(step.message.shares.blobs) == 14
    far = set(range(10, 15))
    inbox = pb.Inbox(u2=bitmap(set(range(40)) - far, 40), blobs=step.message.shares.blobs)
    refuses(pb.REASON_SHARES, lambda: game.mask(0, inbox), "5 of 40 sent no shares")


def test_a_server_that_spoils_too_many_blobs_gets_no_vector() -> None:
    game = Game(7).to_shared()  # t = 4 of 6
    changed = _copy(game.inboxes[0])
    for sealed in changed.blobs[:3]:
        sealed.blob = bytes(81)
    refuses(pb.REASON_SHARES, lambda: game.mask(0, changed), "3 good blobs of 6")


def test_a_server_that_keeps_blobs_back_gets_no_vector() -> None:
    game = Game(7).to_shared()
    changed = _copy(game.inboxes[0])
    del changed.blobs[5]
    refuses(pb.REASON_SHARES, lambda: game.mask(0, changed), "5 blobs came")


# ---- 9: replays ----------------------------------------------------------------------------------


class Rewound:
    """A machine put back to a snapshot: its entropy gives the same bytes again."""

    def __init__(self) -> None:
        """Start at the snapshot."""
        self._drawn = 0

    def __call__(self, buffer: bytearray | memoryview) -> None:
        """Fill the buffer with what came at this point the last time."""
        self._drawn += 1
        stream = hashlib.shake_256(b"snapshot %d" % self._drawn).digest(len(buffer))
        memoryview(buffer).cast("B")[:] = stream


def _keys_used(game: Game, monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Return every stream key that the members of a game mask with."""
    used: list[bytes] = []
    for name in ("pair_key", "self_key"):
        derive = getattr(keys, name)

        def seen(*args: bytes, derive: Callable[..., bytearray] = derive) -> bytearray:
            key = derive(*args)
            used.append(bytes(key))
            return key

        monkeypatch.setattr(keys, name, seen)
    game.to_masked()
    monkeypatch.undo()
    # Six own keys; each of the 15 pairs has one, derived at both ends.
    assert (len(used), len(set(used))) == (36, 21)
    return set(used)


def test_a_machine_put_back_to_a_snapshot_repeats_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """23: the same round keys and seeds twice, and still no two masks alike: ctx salts them."""
    games = [Game(6, terms=agreed(attempt=a), entropy=Rewound()) for a in (0, 1)]
    first, second = (_keys_used(game, monkeypatch) for game in games)
    assert games[0].server.entries == games[1].server.entries
    assert not first & second


def test_a_server_that_replays_blobs_of_another_attempt_gets_no_vector() -> None:
    """Even where a rewound machine made the same sealing keys for both."""
    old, now = (Game(6, terms=agreed(attempt=a), entropy=Rewound()).to_shared() for a in (0, 1))
    assert old.server.entries == now.server.entries
    refuses(pb.REASON_SHARES, lambda: now.mask(0, old.inboxes[0]), "0 good blobs")


def test_a_server_that_replays_headers_votes_or_calls_of_another_attempt_is_refused() -> None:
    old, now = (Game(6, terms=agreed(attempt=a)).to_masked() for a in (0, 1))
    everybody = range(6)
    call = old.call(0, everybody)
    refuses(pb.REASON_SURVIVORS, lambda: now.vote(0, call), "did not sign its vector")
    ballots = old.ballots(old.server.end_uploads())
    now.vote(0, now.call(0, everybody))
    counted = [pb.CountedVote(position=p, signature=b.signature) for p, b in ballots.items()]
    refuses(
        pb.REASON_VOTES,
        lambda: now.members[0].votes(pb.Votes(votes=counted)),
        "not for this survivor set",
    )
    # And the server that is honest takes none of them from a member either.
    who = now.people[0].id
    fresh = Game(6, terms=agreed(attempt=2)).to_shared()
    for header in (old.headers[0], now.headers[0]):
        with pytest.raises(PeerError, match="not signed for this context"):
            fresh.server.header(who, header)
    now.server.end_uploads()
    with pytest.raises(PeerError, match="another survivor set"):
        now.server.vote(who, ballots[0])


def test_a_server_that_replays_shares_of_another_attempt_to_an_honest_engine_is_refused() -> None:
    old, now = (Game(5, terms=agreed(attempt=a)) for a in (0, 1))
    body = old.members[0].roster(old.gather()[0]).message.shares
    now.gather()
    with pytest.raises(PeerError, match="not signed for this context"):
        now.server.shares(now.people[0].id, body)


# ---- 11, 12: a blob that opens and is wrong inside -----------------------------------------------


def _sealed_by_hand(x: int, mask: bytes, seed: bytes, claims: tuple[bytes, bytes, int]) -> bytes:
    """Seal as an owner can: what the AAD claims is one thing, what is inside another."""
    mask_hash, seed_hash, point = claims
    aad = CTX + SRC + DST + bytes([point]) + mask_hash + seed_hash
    return ChaCha20Poly1305(KEY).encrypt(bytes(12), bytes([x]) + mask + seed, aad)


KEY, CTX = bytes(range(32)), bytes(range(32, 64))
SRC, DST = identity(0).id, identity(1).id
MASK, SEED = b"m" * 32, b"s" * 32
HASHES = hashlib.sha256(MASK).digest(), hashlib.sha256(SEED).digest()


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ((3, MASK, SEED), ""),
        ((4, MASK, SEED), "share point"),
        ((0, MASK, SEED), "share point"),
        ((3, SEED, SEED), "signed hash"),
        ((3, MASK, MASK), "signed hash"),
    ],
)
def test_an_owner_whose_blob_holds_another_share_or_point_than_it_signed_is_named(
    inside: tuple[int, bytes, bytes], words: str
) -> None:
    """The blob opens: its owner sealed it. What it holds is not what its owner signed."""
    blob = _sealed_by_hand(*inside, (*HASHES, 3))
    around = {"ctx": CTX, "src": SRC, "dst": DST, "mask_hash": HASHES[0], "seed_hash": HASHES[1]}
    if not words:
        assert [*map(bytes, keys.unseal(KEY, blob, x=3, **around))] == [MASK, SEED]
        return
    with pytest.raises(PeerError, match=words) as caught:
        keys.unseal(KEY, blob, x=3, **around)
    assert SRC.hex() in caught.value.peer


@pytest.mark.parametrize("field", ["ctx", "src", "dst", "x", "mask_hash", "seed_hash"])
def test_a_blob_under_the_right_key_opens_for_nothing_else_than_it_was_sealed_for(
    field: str,
) -> None:
    """All of it is authenticated: a server that changes what surrounds a blob breaks it."""
    blob = keys.seal(KEY, ctx=CTX, src=SRC, dst=DST, x=3, mask_share=MASK, seed_share=SEED)
    options: dict[str, object] = {"ctx": CTX, "src": SRC, "dst": DST, "x": 3}
    options |= {"mask_hash": HASHES[0], "seed_hash": HASHES[1]}
    old = options[field]
    options[field] = 4 if isinstance(old, int) else bytes(len(SRC if old in {SRC, DST} else KEY))
    with pytest.raises(PeerError, match="does not open"):
        keys.unseal(KEY, blob, **options)  # type: ignore[arg-type]


def test_a_signature_or_a_secret_of_one_purpose_serves_no_other() -> None:
    """Their fields can be alike in number and length: the label tells them apart."""
    who, fields = identity(0), (CTX, SRC, KEY, KEY)
    signed = keys.sign(who.signing, "keys", *fields)
    public = who.signing.public_key()
    assert keys.verify(public, signed, "keys", *fields)
    assert not keys.verify(public, signed, "masked", *fields)
    assert keys.pair_key(KEY, CTX, *sorted((SRC, DST))) != keys.seal_key(
        KEY, CTX, *sorted((SRC, DST))
    )


def test_a_server_that_turns_the_ring_for_one_member_gets_no_vector_of_it() -> None:
    """The same entries in another order are another roster: ctx has its root."""
    game = Game(6)
    rosters = game.gather()
    entries = RosterEntry.unpack_all(rosters[0].entries)
    rosters[0].entries = b"".join(one.pack() for one in [*entries[1:], entries[0]])
    game.deal(rosters, silent=[0])
    everybody = _copy(game.inboxes[1])
    everybody.u2 = b"\x3f"
    del everybody.blobs[:]
    everybody.blobs.extend(game.server._blob(v, 0) for v in game.around(0))
    refuses(pb.REASON_SHARES, lambda: game.mask(0, everybody), "0 good blobs")


@pytest.mark.parametrize("points", [[1, 2, 2], [0, 1, 2], [1, 2, 255]])
def test_shares_with_a_doubled_a_zero_or_a_far_index_are_never_combined(points: list[int]) -> None:
    shares = np.zeros((1, 3, 32), np.uint8)
    with pytest.raises(ValueError, match="points"):
        shamir.combine(np.array([points]), shares)


# ---- 14, 16, 20: what the sum of vectors shows before it is opened -------------------------------


def test_the_folded_sum_shows_nothing_before_shares_are_released() -> None:
    """The pair masks cancel in it; the own masks, whose seeds only t holders give, do not."""
    game = Game(6).to_masked()
    masked, hidden = game.folded(range(6)), game.truth(range(6))
    words = np.frombuffer(masked[:SPLIT], "<u4") - np.frombuffer(hidden[:SPLIT], "<u4")
    assert np.unpackbits(words.view(np.uint8)).mean() == pytest.approx(0.5, abs=0.08)  # 2048 bits
    tail = np.frombuffer(masked[SPLIT:TOTAL], "<u8") - np.frombuffer(hidden[SPLIT:TOTAL], "<u8")
    assert np.count_nonzero(tail) == 4


def test_every_pair_of_neighbours_masks_against_each_other() -> None:
    """A vector without its own mask still hides behind each neighbour: one edge is enough."""
    game = Game(6).to_masked()
    member = game.members[0]
    mask, own_id = member._keys()[0], game.people[0].id
    own = [(keys.self_key(member._seed, member.ctx, own_id), -1)]
    for left_out in game.around(0):
        streams = list(own)
        for other in set(game.around(0)) - {left_out}:
            entry = game.server.entries[other]
            pair = keys.pair_key(mask.exchange(entry.mask_pk), member.ctx, own_id, entry.id)
            streams.append((pair, -1 if own_id < entry.id else 1))
        assert game.opened([0], streams)[:SPLIT] != game.truth([0])[:SPLIT]
