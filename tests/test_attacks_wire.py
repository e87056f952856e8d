"""Peers that send what is no message, too much of it, or other bytes the second time.

Reference list: 14 and 24.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import plan, wire
from umbel.protocol.canonical import settings_from_pb
from umbel.protocol.errors import Malformed, PeerError, SettingsError
from umbel.protocol.frames import PAYLOAD, Assembly, Kind, frames
from umbel.server.core.world import World
from umbel.server.invitation import start_of
from umbel.tests.actors import agreed

if TYPE_CHECKING:
    from collections.abc import Callable

CTX = b"c" * 32
HASH, KEY, SIGNATURE = b"h" * 32, b"k" * 32, b"s" * 64
SEALED = {"blob": bytes(81), "mask_share_hash": HASH, "seed_share_hash": HASH}
HEADER = {"u2_hash": HASH, "y_hash": HASH, "signature": SIGNATURE}


def _up(**body: object) -> bytes:
    return pb.ToServer(ctx=CTX, **body).SerializeToString()  # type: ignore[arg-type]


def _down(**body: object) -> bytes:
    return pb.ToClient(ctx=CTX, **body).SerializeToString()  # type: ignore[arg-type]


def _header(**changes: bytes) -> pb.MaskedHeader:
    return pb.MaskedHeader(**{**HEADER, **changes})


UP: dict[str, tuple[bytes, bytes]] = {
    "a mask key": (
        _up(keys=pb.Keys(mask_pk=KEY, seal_pk=KEY, signature=SIGNATURE)),
        _up(keys=pb.Keys(mask_pk=KEY + b"1", seal_pk=KEY, signature=SIGNATURE)),
    ),
    "a seal key": (
        _up(keys=pb.Keys(mask_pk=KEY, seal_pk=KEY, signature=SIGNATURE)),
        _up(keys=pb.Keys(mask_pk=KEY, signature=SIGNATURE)),
    ),
    "a signature": (
        _up(keys=pb.Keys(mask_pk=KEY, seal_pk=KEY, signature=SIGNATURE)),
        _up(keys=pb.Keys(mask_pk=KEY, seal_pk=KEY, signature=SIGNATURE[1:])),
    ),
    "a blob": (
        _up(shares=pb.Shares(commitment=HASH, blobs=[pb.Sealed(**SEALED)], signature=SIGNATURE)),
        _up(
            shares=pb.Shares(
                commitment=HASH,
                blobs=[pb.Sealed(**{**SEALED, "blob": bytes(82)})],
                signature=SIGNATURE,
            )
        ),
    ),
    "blobs without end": (
        _up(
            shares=pb.Shares(
                commitment=HASH, blobs=[pb.Sealed(**SEALED)] * 254, signature=SIGNATURE
            )
        ),
        _up(
            shares=pb.Shares(
                commitment=HASH, blobs=[pb.Sealed(**SEALED)] * 255, signature=SIGNATURE
            )
        ),
    ),
    "a vector's hash": (
        _up(masked=pb.Masked(header=_header())),
        _up(masked=pb.Masked(header=_header(y_hash=b""))),
    ),
    "a vote": (
        _up(vote=pb.Vote(u2_hash=HASH, u_hash=HASH, signature=SIGNATURE)),
        _up(vote=pb.Vote(u2_hash=HASH, u_hash=HASH + b"1", signature=SIGNATURE)),
    ),
    "a share": (
        _up(release=pb.Release(shares=[KEY, b""])),
        _up(release=pb.Release(shares=[KEY, KEY + b"1"])),
    ),
    "shares without end": (
        _up(release=pb.Release(shares=[b""] * 254)),
        _up(release=pb.Release(shares=[b""] * 255)),
    ),
    "a reason": (
        _up(refusal=pb.Refusal(reason=pb.REASON_POLICY, key="k" * 64)),
        _up(refusal=pb.Refusal(reason=999)),  # type: ignore[arg-type]
    ),
    "words beside a reason": (
        _up(refusal=pb.Refusal(reason=pb.REASON_POLICY, key="k" * 64)),
        _up(refusal=pb.Refusal(reason=pb.REASON_POLICY, key="k" * 65)),
    ),
    "a name beside a reason that has none": (
        _up(refusal=pb.Refusal(reason=pb.REASON_LIMITS, key="eval.loss")),
        _up(refusal=pb.Refusal(reason=pb.REASON_TASK_FAILED, key="eval.loss")),
    ),
    "a context": (
        _up(ready=pb.Ready()),
        pb.ToServer(ctx=CTX + b"1", ready=pb.Ready()).SerializeToString(),
    ),
    "no body": (_up(ready=pb.Ready()), pb.ToServer(ctx=CTX).SerializeToString()),
}


@pytest.mark.parametrize("which", UP)
def test_a_member_that_sends_fields_of_other_sizes_is_named(which: str) -> None:
    good, bad = UP[which]
    wire.parse_to_server(good, "ada")
    with pytest.raises(Malformed, match=r"^ada: "):
        wire.parse_to_server(bad, "ada")


DOWN: dict[str, tuple[bytes, bytes]] = {
    "a roster without end": (
        _down(roster=pb.Roster(entries=bytes(112 * 1250))),
        _down(roster=pb.Roster(entries=bytes(112 * 1251))),
    ),
    "members without end": (
        _down(roster=pb.Roster(members=1250)),
        _down(roster=pb.Roster(members=1251)),
    ),
    "signatures without end": (
        _down(roster=pb.Roster(keys_signatures=[SIGNATURE] * 254)),
        _down(roster=pb.Roster(keys_signatures=[SIGNATURE] * 255)),
    ),
    "certificates without end": (
        _down(roster=pb.Roster(certificates=[b"c"] * 1250)),
        _down(roster=pb.Roster(certificates=[b"c"] * 1251)),
    ),
    "a huge certificate": (
        _down(roster=pb.Roster(certificates=[bytes(4096)])),
        _down(roster=pb.Roster(certificates=[bytes(4097)])),
    ),
    "a bitmap of share senders": (
        _down(inbox=pb.Inbox(u2=bytes(157))),
        _down(inbox=pb.Inbox(u2=bytes(158))),
    ),
    "a bitmap of survivors": (
        _down(survivors=pb.Survivors(u=bytes(157))),
        _down(survivors=pb.Survivors(u=bytes(158))),
    ),
    "headers without end": (
        _down(survivors=pb.Survivors(masked=[_header()] * 254)),
        _down(survivors=pb.Survivors(masked=[_header()] * 255)),
    ),
    "votes without end": (
        _down(votes=pb.Votes(votes=[pb.CountedVote(signature=SIGNATURE)] * 1250)),
        _down(votes=pb.Votes(votes=[pb.CountedVote(signature=SIGNATURE)] * 1251)),
    ),
    "a vote from far away": (
        _down(votes=pb.Votes(votes=[pb.CountedVote(position=1249, signature=SIGNATURE)])),
        _down(votes=pb.Votes(votes=[pb.CountedVote(position=1250, signature=SIGNATURE)])),
    ),
    "a start in another context": (
        pb.ToClient(start=start_of(agreed(), 0)).SerializeToString(),
        _down(start=start_of(agreed(), 0)),
    ),
    "a phase that there is not": (
        pb.ToClient(start=start_of(agreed(), 0)).SerializeToString(),
        pb.ToClient(start=pb.Start(model_digest=HASH, phase=9)).SerializeToString(),  # type: ignore[arg-type]
    ),
    "a run's name without end": (
        pb.ToClient(
            start=pb.Start(model_digest=HASH, phase=pb.PHASE_TRAIN, run="r" * 128)
        ).SerializeToString(),
        pb.ToClient(
            start=pb.Start(model_digest=HASH, phase=pb.PHASE_TRAIN, run="r" * 129)
        ).SerializeToString(),
    ),
}


def _padded(message: bytes, size: int) -> bytes:
    """Return a message with a field of `size` bytes that no version of the protocol has."""
    return message + _field(999, bytes(size))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low = bytes((value >> 7 * i & 0x7F | 0x80) for i in range(4))
    return low + bytes((value >> 28,))


def test_a_member_that_pads_its_header_does_not_drown_its_neighbours() -> None:
    """A header is passed on to k neighbours; 2 MiB in it would end all their sessions, unnamed."""
    header = _padded(_header().SerializeToString(), wire.MAX_MESSAGE - 300)
    masked = _field(5, _field(1, header))  # ToServer.masked, Masked.header
    got = wire.parse_to_server(_field(1, CTX) + masked, "ada").masked.header
    assert got == _header()
    passed_on = _down(survivors=pb.Survivors(masked=[got] * 32))
    assert len(passed_on) < 32 * 200
    assert len(wire.parse_to_client(passed_on).survivors.masked) == 32


@pytest.mark.parametrize("text", ["\x1b[2J", "policy\nround 1 finished", "\u202egpj"])
def test_a_member_that_writes_to_the_operators_terminal_is_named(text: str) -> None:
    with pytest.raises(Malformed, match=r"^ada: refusal\.key"):
        wire.parse_to_server(_up(refusal=pb.Refusal(reason=pb.REASON_POLICY, key=text)), "ada")


@pytest.mark.parametrize("text", ["\x1b[2J", "policy\nrefused: nothing", "\u202egpj"])
def test_a_server_that_writes_to_a_devices_console_is_quoted(text: str) -> None:
    twice = [pb.Setting(key=text, integer=1)] * 2
    with pytest.raises(Malformed) as malformed:
        settings_from_pb(twice)
    with pytest.raises(SettingsError) as unknown:
        plan.read({text: 1})
    assert str(malformed.value).isprintable()
    assert str(unknown.value).isprintable()


@pytest.mark.parametrize("which", DOWN)
def test_a_server_that_sends_fields_of_other_sizes_is_refused(which: str) -> None:
    good, bad = DOWN[which]
    wire.parse_to_client(good)
    with pytest.raises(Malformed, match=r"^gateway: "):
        wire.parse_to_client(bad)


@pytest.mark.parametrize("parse", [wire.parse_to_client, wire.parse_to_server])
def test_a_message_larger_than_the_largest_is_not_even_parsed(
    parse: Callable[[bytes, str], object],
) -> None:
    with pytest.raises(Malformed, match="at most 2097152"):
        parse(bytes(2**21 + 1), "ada")


def test_bytes_that_are_no_message_are_malformed_and_nothing_else() -> None:
    """Real messages with a few bytes changed, cut or added, and noise."""
    rng = np.random.default_rng(24)
    seeds = [good for good, _ in [*UP.values(), *DOWN.values()] if len(good) < 2000]
    for _ in range(2000):
        data = bytearray(seeds[rng.integers(len(seeds))])
        data[rng.integers(len(data))] = rng.integers(256)
        data = data[: rng.integers(1, len(data) + 1)] + rng.bytes(int(rng.integers(3)))
        for parse in (wire.parse_to_client, wire.parse_to_server):
            with suppress(Malformed):
                parse(bytes(data), "ada")


def test_settings_without_end_or_with_a_key_twice_are_malformed() -> None:
    item = pb.Setting(key="a", integer=1)
    assert settings_from_pb([item]) == {"a": 1}
    for items in (
        [item, pb.Setting(key="a", integer=2)],
        [pb.Setting(key="a")],
        [pb.Setting(key=f"k{i}", integer=i) for i in range(257)],
        [pb.Setting(key="a", raw=bytes(2**16))],
        [pb.Setting(key="a", real=float("nan"))],
    ):
        with pytest.raises(Malformed):
            settings_from_pb(items)


# ---- 14: frames that come again ------------------------------------------------------------------


def _first(kind: Kind, subject: bytes, whole: bytes) -> bytes:
    return next(iter(frames(kind, subject, whole)))


def _assembly(total: int) -> tuple[Assembly, bytearray]:
    out = bytearray(total)
    return Assembly(Kind.UPLOAD, CTX, total, "ada", out), out


def test_a_member_that_sends_other_bytes_for_a_place_is_named_and_nothing_is_merged() -> None:
    whole = bytes(range(256)) * 8192  # two frames
    other = whole[:100] + b"!" + whole[101:]
    assembly, out = _assembly(len(whole))
    first = _first(Kind.UPLOAD, CTX, whole)
    assembly.accept(first)
    assembly.accept(first)  # byte for byte the same: a resend
    before = bytes(out)
    with pytest.raises(PeerError, match=r"^ada: sent other bytes for 0"):
        assembly.accept(_first(Kind.UPLOAD, CTX, other))
    assert bytes(out) == before
    assert assembly.received == PAYLOAD


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (lambda w: [*frames(Kind.UPLOAD, CTX, w)][1], "offset"),
        (lambda w: _first(Kind.UPLOAD, b"d" * 32, w), "subject"),
        (lambda w: _first(Kind.MODEL, CTX, w), "kind"),
        (lambda w: _first(Kind.UPLOAD, CTX, w + b"more"), "total"),
        (lambda w: _first(Kind.UPLOAD, CTX, w)[:-1], "payload"),
        (lambda w: b"", "header"),
    ],
)
def test_a_member_whose_frames_belong_elsewhere_is_named(
    frame: Callable[[bytes], bytes], words: str
) -> None:
    whole = bytes(PAYLOAD + 64)
    assembly, out = _assembly(len(whole))
    with pytest.raises(Malformed, match=rf"^ada: frame {words}"):
        assembly.accept(frame(whole))
    assert not any(out)


def test_a_member_that_would_be_folded_twice_is_named_and_the_sum_is_as_it_was() -> None:
    opened = World(2).open(96, 64)
    for node in ("ada", "bob"):
        slot = opened.slot(node)
        assert slot is not None
        slot[:] = np.ones(24, "<u4").tobytes()
        opened.fold(node)
    for again in (opened.fold, opened.slot):
        with pytest.raises(PeerError, match=r"^ada: "):
            again("ada")
    assert np.frombuffer(opened.result()[:64], "<u4").tolist() == [2] * 16


def test_a_servers_memory_does_not_grow_with_the_number_of_members() -> None:
    """One accumulator and its slots, however many vectors are folded."""
    opened = World(2).open(96, 64)
    places = set()
    for node in range(50):
        slot = opened.slot(str(node))
        assert slot is not None
        places.add(id(slot.obj))
        opened.fold(str(node))
    assert len(places) <= 2
