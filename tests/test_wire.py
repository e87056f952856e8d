"""Session messages: every limit at its edge, and nothing but `Malformed` for any bytes at all."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Malformed
from umbel.protocol.wire import MAX_MESSAGE, parse_to_client, parse_to_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

MEMBERS, DEGREE = 1250, 254
H, K, S = bytes(32), bytes(32), bytes(64)


def sealed(blob: int = 81, first: int = 32, second: int = 32) -> pb.Sealed:
    return pb.Sealed(blob=bytes(blob), mask_share_hash=bytes(first), seed_share_hash=bytes(second))


def header(u2: int = 32, y: int = 32, signature: int = 64) -> pb.MaskedHeader:
    return pb.MaskedHeader(u2_hash=bytes(u2), y_hash=bytes(y), signature=bytes(signature))


def counted(place: int = 0, signature: int = 64) -> pb.CountedVote:
    return pb.CountedVote(position=place, signature=bytes(signature))


UP: dict[str, Message] = {
    "keys": pb.Keys(mask_pk=K, seal_pk=K, signature=S),
    "ready": pb.Ready(),
    "shares": pb.Shares(commitment=H, blobs=[sealed(), sealed()], signature=S),
    "masked": pb.Masked(header=header(), bytes=1 << 40),
    "vote": pb.Vote(u2_hash=H, u_hash=H, signature=S),
    "release": pb.Release(shares=[K, b"", K]),
    "refusal": pb.Refusal(reason=pb.REASON_POLICY, key="secure.min_members"),
}
DOWN: dict[str, Message] = {
    "start": pb.Start(
        protocol=1, scheme="A", run="r", phase=pb.PHASE_TRAIN, model_digest=H,
        config=[pb.Setting(key="lr", real=0.1)],
    ),
    "roster": pb.Roster(
        entries=bytes(224), keys_signatures=[S], certificates=[bytes(600)], members=2
    ),
    "inbox": pb.Inbox(u2=b"\x03", blobs=[sealed()]),
    "survivors": pb.Survivors(u=b"\x03", masked=[header()]),
    "votes": pb.Votes(votes=[counted(0), counted(1249)]),
    "close": pb.Close(reason=pb.REASON_ATTEMPT_CLOSED),
    "goodbye": pb.Goodbye(),
}  # fmt: skip


def up(name: str, body: Message, ctx: bytes = H) -> bytes:
    return pb.ToServer(ctx=ctx, **{name: body}).SerializeToString()  # type: ignore[arg-type]


def down(name: str, body: Message, ctx: bytes | None = None) -> bytes:
    bound = ctx if ctx is not None else b"" if name in {"start", "goodbye"} else H
    return pb.ToClient(ctx=bound, **{name: body}).SerializeToString()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", UP)
def test_what_a_device_says_is_read_back(name: str) -> None:
    message = parse_to_server(up(name, UP[name]), "node")
    assert message.WhichOneof("body") == name
    assert getattr(message, name) == UP[name]
    assert message.ctx == H


@pytest.mark.parametrize("name", DOWN)
def test_what_a_server_says_is_read_back(name: str) -> None:
    message = parse_to_client(down(name, DOWN[name]))
    assert message.WhichOneof("body") == name
    assert getattr(message, name) == DOWN[name]


def test_every_body_of_the_file_is_known() -> None:
    assert {f.name for f in pb.ToServer.DESCRIPTOR.oneofs[0].fields} == set(UP)
    assert {f.name for f in pb.ToClient.DESCRIPTOR.oneofs[0].fields} == set(DOWN)


@pytest.mark.parametrize(
    ("name", "body", "what"),
    [
        ("keys", pb.Keys(mask_pk=K[1:], seal_pk=K, signature=S), "keys.mask_pk: expected 32"),
        ("keys", pb.Keys(mask_pk=K, seal_pk=K + b"x", signature=S), "keys.seal_pk: expected 32"),
        ("keys", pb.Keys(mask_pk=K, seal_pk=K, signature=S[1:]), "keys.signature: expected 64"),
        ("keys", pb.Keys(), "keys.mask_pk: expected 32 bytes, got 0"),
        ("shares", pb.Shares(commitment=b"", signature=S), "shares.commitment: expected 32"),
        ("shares", pb.Shares(commitment=H, signature=b""), "shares.signature: expected 64"),
        ("shares", pb.Shares(commitment=H, signature=S, blobs=[sealed(80)]), "sealed.blob"),
        ("shares", pb.Shares(commitment=H, signature=S, blobs=[sealed(82)]), "sealed.blob"),
        ("shares", pb.Shares(commitment=H, signature=S, blobs=[sealed(first=31)]), "mask_share"),
        ("shares", pb.Shares(commitment=H, signature=S, blobs=[sealed(second=0)]), "seed_share"),
        (
            "shares",
            pb.Shares(commitment=H, signature=S, blobs=[sealed()] * (DEGREE + 1)),
            "sealed blobs: expected at most 254, got 255",
        ),
        ("masked", pb.Masked(), "header.u2_hash: expected 32"),
        ("masked", pb.Masked(header=header(31)), "header.u2_hash"),
        ("masked", pb.Masked(header=header(y=33)), "header.y_hash"),
        ("masked", pb.Masked(header=header(signature=63)), "header.signature"),
        ("vote", pb.Vote(u2_hash=b"", u_hash=H, signature=S), "vote.u2_hash"),
        ("vote", pb.Vote(u2_hash=H, u_hash=H + H, signature=S), "vote.u_hash"),
        ("vote", pb.Vote(u2_hash=H, u_hash=H, signature=b"s"), "vote.signature"),
        ("release", pb.Release(shares=[K, K[1:]]), "released share: expected 32 bytes, got 31"),
        ("release", pb.Release(shares=[K] * 255), "released shares: expected at most 254"),
        ("release", pb.Release(shares=[b""] * 255), "released shares: expected at most 254"),
        ("refusal", pb.Refusal(), "refusal.reason: expected a code of the list, got 0"),
        ("refusal", pb.Refusal(reason=999), "refusal.reason"),  # type: ignore[arg-type]
        ("refusal", pb.Refusal(reason=pb.REASON_POLICY, key="k" * 65), "refusal.key, characters"),
        ("refusal", pb.Refusal(reason=pb.REASON_GOODBYE, key="k"), "refusal.key: expected"),
        ("refusal", pb.Refusal(reason=pb.REASON_POLICY, key="k\x1b[2J"), "refusal.key: expected"),
    ],
)  # fmt: skip
def test_a_devices_field_outside_its_limits_is_named(name: str, body: Message, what: str) -> None:
    with pytest.raises(Malformed, match=rf"^node: .*{what}"):
        parse_to_server(up(name, body), "node")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("shares", pb.Shares(commitment=H, signature=S, blobs=[sealed()] * DEGREE)),
        ("release", pb.Release(shares=[K] * DEGREE)),
        ("release", pb.Release()),
        ("refusal", pb.Refusal(reason=pb.REASON_LIMITS, key="k" * 64)),
    ],
)
def test_a_devices_field_at_its_limit_is_read(name: str, body: Message) -> None:
    assert getattr(parse_to_server(up(name, body), "node"), name) == body


def start(**changes: Any) -> pb.Start:
    message = pb.Start()
    message.CopyFrom(DOWN["start"])  # type: ignore[arg-type]
    for field, value in changes.items():
        setattr(message, field, value)
    return message


@pytest.mark.parametrize(
    ("name", "body", "what"),
    [
        ("start", start(model_digest=b"short"), "start.model_digest: expected 32"),
        ("start", start(run="r" * 129), "start.run, characters: expected at most 128, got 129"),
        ("start", start(phase=pb.PHASE_UNSPECIFIED), "start.phase: expected train or evaluate"),
        ("start", start(phase=7), "start.phase"),
        ("roster", pb.Roster(members=MEMBERS + 1), "roster.members: expected at most 1250"),
        ("roster", pb.Roster(entries=bytes(112 * 1250 + 1)), "roster.entries, bytes"),
        ("roster", pb.Roster(keys_signatures=[S] * 255), "roster.keys_signatures: expected at"),
        ("roster", pb.Roster(keys_signatures=[S, S[1:]]), "roster.keys_signature: expected 64"),
        ("roster", pb.Roster(certificates=[b"c"] * 1251), "roster.certificates: expected at most"),
        ("roster", pb.Roster(certificates=[bytes(4097)]), "a certificate, bytes: expected at most"),
        ("inbox", pb.Inbox(u2=bytes(158)), "inbox.u2, bytes: expected at most 157, got 158"),
        ("inbox", pb.Inbox(blobs=[sealed()] * 255), "sealed blobs: expected at most 254"),
        ("inbox", pb.Inbox(blobs=[sealed(0)]), "sealed.blob: expected 81"),
        ("survivors", pb.Survivors(u=bytes(158)), "survivors.u, bytes: expected at most 157"),
        ("survivors", pb.Survivors(masked=[header()] * 255), "survivors.masked: expected at most"),
        ("survivors", pb.Survivors(masked=[header(y=0)]), "header.y_hash: expected 32"),
        ("votes", pb.Votes(votes=[counted()] * 1251), "votes: expected at most 1250, got 1251"),
        ("votes", pb.Votes(votes=[counted(MEMBERS)]), "vote.position: expected at most 1249"),
        ("votes", pb.Votes(votes=[counted(0, 65)]), "vote.signature: expected 64"),
    ],
)  # fmt: skip
def test_a_servers_field_outside_its_limits_is_named(name: str, body: Message, what: str) -> None:
    with pytest.raises(Malformed, match=rf"^gateway: .*{what}"):
        parse_to_client(down(name, body))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("start", start(run="r" * 128)),
        ("roster", pb.Roster(entries=bytes(112 * 1250), members=1250, keys_signatures=[S] * 254)),
        ("roster", pb.Roster(certificates=[bytes(1400)] * 1250)),
        ("roster", pb.Roster(certificates=[bytes(4096)])),
        ("inbox", pb.Inbox(u2=bytes(157), blobs=[sealed()] * 254)),
        ("survivors", pb.Survivors(u=bytes(157), masked=[header()] * 254)),
        ("votes", pb.Votes(votes=[counted(i) for i in range(1250)])),
    ],
)
def test_a_servers_field_at_its_limit_is_read(name: str, body: Message) -> None:
    assert getattr(parse_to_client(down(name, body)), name) == body


@pytest.mark.parametrize("ctx", [b"", bytes(31), bytes(33)])
def test_every_message_but_the_first_and_the_last_is_bound_to_a_context(ctx: bytes) -> None:
    for name, body in UP.items():
        with pytest.raises(Malformed, match=r"ctx: expected 32 bytes"):
            parse_to_server(up(name, body, ctx), "node")
    for name, body in DOWN.items():
        if name not in {"start", "goodbye"}:
            with pytest.raises(Malformed, match=r"ctx: expected 32 bytes"):
                parse_to_client(down(name, body, ctx))
        elif ctx:
            with pytest.raises(Malformed, match=r"ctx: expected 0 bytes"):
                parse_to_client(down(name, body, ctx))


def test_a_message_has_a_body_and_a_size() -> None:
    for parse in (lambda d: parse_to_server(d, "node"), parse_to_client):
        for data in (b"", pb.ToServer(ctx=H).SerializeToString()):
            with pytest.raises(Malformed, match=r"message: expected one body, got none"):
                parse(data)
        with pytest.raises(Malformed, match=rf"at most {MAX_MESSAGE} bytes, got {MAX_MESSAGE + 1}"):
            parse(bytes(MAX_MESSAGE + 1))
        with pytest.raises(Malformed, match=r"a session message, got bytes that are none"):
            parse(b"\xff" * 20)


def test_an_announcement_is_not_believed() -> None:
    """A length prefix of 2^31 in a message of a few bytes asks for no memory."""
    with pytest.raises(Malformed):
        parse_to_server(b"\x0a\xff\xff\xff\xff\x07" + bytes(16), "node")


# ---- any bytes at all ------------------------------------------------------------------------

VALID = [*(up(*item) for item in UP.items()), *(down(*item) for item in DOWN.items())]


def only_malformed(data: bytes) -> None:
    parsers: tuple[Callable[[bytes], object], ...] = (
        lambda d: parse_to_server(d, "node"),
        parse_to_client,
    )
    for parse in parsers:
        with suppress(Malformed):
            parse(data)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_are_malformed_or_a_message(data: bytes) -> None:
    only_malformed(data)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.sampled_from("xid"), st.floats(0, 1), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=6,
    ),
)
def test_mutated_messages_are_malformed_or_a_message(
    valid: bytes, edits: list[tuple[str, float, bytes]]
) -> None:
    data = bytearray(valid)
    for kind, where, piece in edits:
        at = int(where * len(data))
        if kind == "x":
            data[at : at + len(piece)] = piece
        elif kind == "i":
            data[at:at] = piece
        else:
            del data[at : at + len(piece)]
    only_malformed(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(VALID), st.sampled_from(VALID))
def test_messages_glued_together_are_malformed_or_a_message(one: bytes, other: bytes) -> None:
    only_malformed(one + other)
