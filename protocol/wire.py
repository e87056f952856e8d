"""Session messages from bytes, bounded: nothing a peer announces is believed before it is checked.

    parse_to_server, parse_to_client     bytes -> message, or `Malformed` naming the peer
    parse_up, parse_down, parse_fetch    the same for what the gateway's methods carry
    parse_trust                          who decides about members, where a file or socket has it

Checked here: the size of the whole message, that exactly one body is set, the length of
every fixed field, and the counts of repeated ones against the largest roster. Fields that this
version does not know are dropped: headers and blobs are passed on to all neighbours, and what one
member hid in them would make every neighbour's message too large. What depends on the roster (how
many neighbours, whose place) is checked by the rules of scheme A.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from . import members, tickets
from . import messages_pb2 as pb
from .context import ENTRY_BYTES
from .errors import Malformed
from .graph import MAX_DEGREE, MAX_MEMBERS
from .keys import BLOB_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

MAX_MESSAGE = 2 << 20
"""Bytes of one session message: a roster of 1,250 with all its certificates fits."""
MAX_ENVELOPE = MAX_MESSAGE + 64
"""Bytes of one message with its numbers, as gRPC carries it."""
MAX_CERTIFICATE = 4096
MAX_ISSUING = 16
"""Issuing CAs at a time: the one that issues now, and those before it that are still in force."""
MAX_RUN_ID = 128
MAX_VERSION = 32
"""Characters of a device's version; one of before `Hello.version` says none."""
_VERSION = frozenset(string.ascii_letters + string.digits + ".+-_")
HASH, KEY, SIGNATURE = 32, 32, 64
_BITMAP = (MAX_MEMBERS + 7) // 8
_WITH_KEY = frozenset({pb.REASON_POLICY, pb.REASON_LIMITS})


def parse_to_server(data: bytes, peer: str) -> pb.ToServer:
    """Return a device's message.

    Raises:
        Malformed: No such message, or a field outside its limits; `peer` is named.
    """
    message = pb.ToServer()
    _decode(message, data, peer)
    body = message.WhichOneof("body")
    if body is None:
        raise Malformed(peer, "message", "one body", "none")
    _exact(peer, "ctx", message.ctx, HASH)
    _TO_SERVER[body](message, peer)
    return message


def parse_to_client(data: bytes, peer: str = "gateway") -> pb.ToClient:
    """Return a server's message.

    Raises:
        Malformed: No such message, or a field outside its limits; `peer` is named.
    """
    message = pb.ToClient()
    _decode(message, data, peer)
    body = message.WhichOneof("body")
    if body is None:
        raise Malformed(peer, "message", "one body", "none")
    _exact(peer, "ctx", message.ctx, 0 if body in {"start", "goodbye"} else HASH)
    _TO_CLIENT[body](message, peer)
    return message


def parse_up(data: bytes, peer: str) -> pb.Up:
    """Return one message of a session's upward stream: `hello`, a message, or only an `ack`.

    `hello` has the number 0, and on a resumed session the `ack` says what is to be sent again.

    Raises:
        Malformed: As in `parse_to_server`; the carried message itself is not looked into.
    """
    up = pb.Up()
    _decode(up, data, peer, MAX_ENVELOPE)
    _numbered(peer, up.seq, up.HasField("message"), up.message)
    if up.HasField("hello"):
        _run(peer, up.hello.run)
        _within(peer, "hello.ticket, bytes", len(up.hello.ticket), tickets.MAX_BYTES)
        _within(peer, "hello.certificate, bytes", len(up.hello.certificate), MAX_CERTIFICATE)
        version = up.hello.version
        if len(version) > MAX_VERSION or not _VERSION.issuperset(version):
            expected = f"at most {MAX_VERSION} letters, digits, `.`, `+`, `-` and `_`"
            raise Malformed(peer, "hello.version", expected, version)
    return up


def parse_down(data: bytes, peer: str = "gateway") -> pb.Down:
    """Return one message of a session's downward stream.

    It is `welcome`, `trust`, a message, or only an `ack`.

    Raises:
        Malformed: As in `parse_up`.
    """
    down = pb.Down()
    _decode(down, data, peer, MAX_ENVELOPE)
    _numbered(peer, down.seq, down.HasField("message"), down.message)
    if down.HasField("welcome") and not down.welcome.epoch:
        raise Malformed(peer, "welcome.epoch", "1 or more", 0)
    if down.HasField("trust"):
        _trust(down.trust, peer)
    return down


def parse_trust(data: bytes, peer: str) -> pb.Trust:
    """Return who decides about members, outside of a stream; nobody has looked at a signature.

    Raises:
        Malformed: As in `parse_up`.
    """
    trust = pb.Trust()
    _decode(trust, data, peer, MAX_ENVELOPE)
    _trust(trust, peer)
    return trust


def parse_fetch(data: bytes, peer: str) -> pb.FetchRequest:
    """Return the request for a published model's bytes from an offset on.

    Raises:
        Malformed: As in `parse_up`.
    """
    request = pb.FetchRequest()
    _decode(request, data, peer, MAX_ENVELOPE)
    _run(peer, request.run)
    _exact(peer, "fetch.digest", request.digest, HASH)
    return request


def _trust(trust: pb.Trust, peer: str) -> None:
    """Check the sizes of who decides about members."""
    _at_most(peer, "trust.issuing", len(trust.issuing), MAX_ISSUING)
    for certificate in trust.issuing:
        _within(peer, "an issuing CA, bytes", len(certificate), MAX_CERTIFICATE)
    _at_most(peer, "trust.members, bytes", len(trust.members), members.MAX_BYTES)


def _numbered(peer: str, seq: int, carries: bool, message: bytes) -> None:
    """Check that messages have a number, and nothing else has."""
    if carries is not (seq > 0):
        raise Malformed(peer, "seq", "1 or more with a message, 0 without", seq)
    if carries:
        _within(peer, "message, bytes", len(message), MAX_MESSAGE)


def _run(peer: str, run: str) -> None:
    _within(peer, "run, characters", len(run), MAX_RUN_ID)


def _within(peer: str, what: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise Malformed(peer, what, f"1..{limit}", value)


def _decode(message: Message, data: bytes, peer: str, limit: int = MAX_MESSAGE) -> None:
    if len(data) > limit:
        raise Malformed(peer, "message", f"at most {limit} bytes", len(data))
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Malformed(peer, "message", "a session message", "bytes that are none") from error
    message.DiscardUnknownFields()


def _exact(peer: str, what: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise Malformed(peer, what, f"{length} bytes", len(value))


def _at_most(peer: str, what: str, value: int, limit: int) -> None:
    if value > limit:
        raise Malformed(peer, what, f"at most {limit}", value)


def _keys(message: pb.ToServer, peer: str) -> None:
    body = message.keys
    _exact(peer, "keys.mask_pk", body.mask_pk, KEY)
    _exact(peer, "keys.seal_pk", body.seal_pk, KEY)
    _exact(peer, "keys.signature", body.signature, SIGNATURE)


def _sealed(blobs: Iterable[pb.Sealed], count: int, peer: str) -> None:
    _at_most(peer, "sealed blobs", count, MAX_DEGREE)
    for sealed in blobs:
        _exact(peer, "sealed.blob", sealed.blob, BLOB_BYTES)
        _exact(peer, "sealed.mask_share_hash", sealed.mask_share_hash, HASH)
        _exact(peer, "sealed.seed_share_hash", sealed.seed_share_hash, HASH)


def _header(header: pb.MaskedHeader, peer: str) -> None:
    _exact(peer, "header.u2_hash", header.u2_hash, HASH)
    _exact(peer, "header.y_hash", header.y_hash, HASH)
    _exact(peer, "header.signature", header.signature, SIGNATURE)


def _shares(message: pb.ToServer, peer: str) -> None:
    body = message.shares
    _exact(peer, "shares.commitment", body.commitment, HASH)
    _exact(peer, "shares.signature", body.signature, SIGNATURE)
    _sealed(body.blobs, len(body.blobs), peer)


def _masked(message: pb.ToServer, peer: str) -> None:
    _header(message.masked.header, peer)


def _vote(message: pb.ToServer, peer: str) -> None:
    _exact(peer, "vote.u2_hash", message.vote.u2_hash, HASH)
    _exact(peer, "vote.u_hash", message.vote.u_hash, HASH)
    _exact(peer, "vote.signature", message.vote.signature, SIGNATURE)


def _release(message: pb.ToServer, peer: str) -> None:
    shares = message.release.shares
    _at_most(peer, "released shares", len(shares), MAX_DEGREE)
    for share in shares:
        if share:  # empty where the holder's blob was bad
            _exact(peer, "released share", share, KEY)


def _refusal(message: pb.ToServer, peer: str) -> None:
    if message.refusal.reason not in pb.Reason.values() or not message.refusal.reason:
        raise Malformed(peer, "refusal.reason", "a code of the list", message.refusal.reason)
    key = message.refusal.key
    _at_most(peer, "refusal.key, characters", len(key), 64)
    if not key.isprintable() or (key and message.refusal.reason not in _WITH_KEY):
        raise Malformed(peer, "refusal.key", "the name of a key, of policy or limits", "another")


def _start(message: pb.ToClient, peer: str) -> None:
    body = message.start
    _exact(peer, "start.model_digest", body.model_digest, HASH)
    _at_most(peer, "start.run, characters", len(body.run), MAX_RUN_ID)
    if body.phase not in {pb.PHASE_TRAIN, pb.PHASE_EVALUATE}:
        raise Malformed(peer, "start.phase", "train or evaluate", body.phase)


def _roster(message: pb.ToClient, peer: str) -> None:
    body = message.roster
    _at_most(peer, "roster.members", body.members, MAX_MEMBERS)
    _at_most(peer, "roster.entries, bytes", len(body.entries), MAX_MEMBERS * ENTRY_BYTES)
    _at_most(peer, "roster.keys_signatures", len(body.keys_signatures), MAX_DEGREE)
    for signature in body.keys_signatures:
        _exact(peer, "roster.keys_signature", signature, SIGNATURE)
    _at_most(peer, "roster.certificates", len(body.certificates), MAX_MEMBERS)
    for certificate in body.certificates:
        _at_most(peer, "a certificate, bytes", len(certificate), MAX_CERTIFICATE)


def _inbox(message: pb.ToClient, peer: str) -> None:
    _at_most(peer, "inbox.u2, bytes", len(message.inbox.u2), _BITMAP)
    _sealed(message.inbox.blobs, len(message.inbox.blobs), peer)


def _survivors(message: pb.ToClient, peer: str) -> None:
    body = message.survivors
    _at_most(peer, "survivors.u, bytes", len(body.u), _BITMAP)
    _at_most(peer, "survivors.masked", len(body.masked), MAX_DEGREE)
    for header in body.masked:
        _header(header, peer)


def _votes(message: pb.ToClient, peer: str) -> None:
    votes = message.votes.votes
    _at_most(peer, "votes", len(votes), MAX_MEMBERS)
    for vote in votes:
        _at_most(peer, "vote.position", vote.position, MAX_MEMBERS - 1)
        _exact(peer, "vote.signature", vote.signature, SIGNATURE)


def _nothing(message: pb.ToServer | pb.ToClient, peer: str) -> None:
    """A body without fields to bound."""


_TO_SERVER: dict[str, Callable[[pb.ToServer, str], None]] = {
    "keys": _keys,
    "ready": _nothing,
    "shares": _shares,
    "masked": _masked,
    "vote": _vote,
    "release": _release,
    "refusal": _refusal,
}
_TO_CLIENT: dict[str, Callable[[pb.ToClient, str], None]] = {
    "start": _start,
    "roster": _roster,
    "inbox": _inbox,
    "survivors": _survivors,
    "votes": _votes,
    "close": _nothing,
    "goodbye": _nothing,
}
