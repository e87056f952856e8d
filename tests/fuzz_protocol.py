"""The parsers of `protocol/`: messages, frames, certificates, lists, tickets, manifests, journals.

Where a signature or a checksum keeps spoilt bytes from being looked at, they are signed again: an
attacker who holds the key, or a fault that struck before the checksum was made.
"""

from __future__ import annotations

import hmac
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError

from umbel.clients.clock import issued, misfit
from umbel.protocol import journal, plan, tickets, wire
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.canonical import lp, settings_from_pb, settings_to_pb
from umbel.protocol.codec import Codec
from umbel.protocol.context import RosterEntry
from umbel.protocol.errors import (
    BadCertificate,
    BadUpdate,
    Malformed,
    PeerError,
    Refused,
    SettingsError,
    StateError,
    VoidRound,
)
from umbel.protocol.frames import Assembly, Kind, frames
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.protocol.members import MemberList
from umbel.protocol.verification import Verifier
from umbel.server.firewall import Firewall
from umbel.tests.actors import FEDERATION, NOW, PARAMS, authority, identity
from umbel.tests.fuzzing import Parser
from umbel.tests.opened import opened
from umbel.tests.test_wire import DOWN, UP

if TYPE_CHECKING:
    from collections.abc import Sequence

_ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
KEY = bytes(range(200, 232))
NODE = bytes(range(16))
SUBJECT = bytes(range(32))
HELLO = pb.Hello(run="r", ticket=bytes(300), certificate=bytes(600), resume=True)


# ---- messages ------------------------------------------------------------------------------


def _to_server() -> list[bytes]:
    return [pb.ToServer(ctx=bytes(32), **{k: v}).SerializeToString() for k, v in UP.items()]  # type: ignore[arg-type]


def _to_client() -> list[bytes]:
    return [
        pb.ToClient(
            ctx=b"" if name in {"start", "goodbye"} else bytes(32),
            **{name: body},  # type: ignore[arg-type]
        ).SerializeToString()
        for name, body in DOWN.items()
    ]


def _up() -> list[bytes]:
    ups = (pb.Up(hello=HELLO, ack=7), pb.Up(seq=9, ack=3, message=b"m" * 90), pb.Up(ack=2**63))
    return [up.SerializeToString() for up in ups]


def _down() -> list[bytes]:
    welcome = pb.Welcome(epoch=4)
    trust = pb.Trust(issuing=[authority("ours").der], members=b"m" * 40)
    downs = (
        pb.Down(welcome=welcome, ack=7), pb.Down(seq=9, ack=3, message=b"m" * 90),
        pb.Down(trust=trust, ack=1),
    )  # fmt: skip
    return [down.SerializeToString() for down in downs]


def _settings(data: bytes) -> dict[str, Any]:
    try:
        start = pb.Start.FromString(data)
    except DecodeError as error:  # what parse_to_client refuses
        raise Malformed("server", "start") from error
    return settings_from_pb(start.config)


def _some_settings() -> list[bytes]:
    table: dict[str, object] = {"lr": 0.1, "n": 3, "flag": True, "text": "é", "raw": b"\x00"}
    tables = (table, {**PARAMS.table()})
    return [pb.Start(config=settings_to_pb(table)).SerializeToString() for table in tables]


# ---- frames and vectors --------------------------------------------------------------------


def _frame(data: bytes) -> int:
    """Feed one frame to an upload of 300 bytes of which the first hundred are here."""
    whole = bytes(i % 251 for i in range(300))
    out = bytearray(300)
    upload = Assembly(Kind.UPLOAD, SUBJECT, 300, "peer", out)
    upload.accept(next(frames(Kind.UPLOAD, SUBJECT, whole))[:40] + _lengths(0, 100) + whole[:100])
    upload.accept(data)
    assert out[upload.received :] == bytes(300 - upload.received)
    return upload.received


def _lengths(offset: int, size: int) -> bytes:
    numbers = offset.to_bytes(8, "little") + (300).to_bytes(8, "little")
    return numbers + size.to_bytes(4, "little") + bytes(4)


def _some_frames() -> list[bytes]:
    whole = bytes(i % 251 for i in range(300))
    head = next(frames(Kind.UPLOAD, SUBJECT, whole))[:40]
    parts = [(0, 300), (100, 200), (50, 100), (100, 1)]
    return [head + _lengths(at, size) + whole[at : at + size] for at, size in parts]


ARRAYS = {
    "w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5),
    "steps": np.array(7),
    "on": np.array([True, False, True]),
    "half": np.full(3, 0.25, np.float16),
    "none": np.empty((0, 4)),
}
MANIFEST = Manifest.of(ARRAYS)
LAYOUT = MessageLayout(MANIFEST, {"eval.loss": 24}, "train")


def _unpacked(data: bytes) -> bytes:
    arrays = MANIFEST.unpack(data)
    packed = bytes(MANIFEST.pack(arrays))
    assert packed == data
    return packed


def _judged(data: bytes) -> None:
    """Look at an unmasked message as the core does before it may be folded."""
    codec = Codec(5, 0.5, 40)
    firewall = Firewall(MANIFEST, max_norm=1.0, weight_cap=40)
    slot = memoryview(data.ljust(LAYOUT.total_bytes, b"\x00")[: LAYOUT.total_bytes])
    firewall.check_message("node", slot, LAYOUT, codec)


def _some_messages() -> list[bytes]:
    deltas = {e.name: np.full(e.shape, 0.001, e.numpy) for e in MANIFEST.averaged}
    codec = Codec(5, 0.5, 40)
    return [bytes(LAYOUT.build(deltas, 7, {"eval.loss": 0.5}, codec, bytearray(32)))]


def _some_sums() -> list[bytes]:
    """Return the sum of three such messages, word by word."""
    split, one = LAYOUT.split, _some_messages()[0]
    low = 3 * np.frombuffer(one[:split], "<u4")
    high = 3 * np.frombuffer(one[split:], "<u8")
    return [low.astype("<u4").tobytes() + high.astype("<u8").tobytes()]


def _sums(data: bytes) -> None:
    codec = Codec(5, 0.5, 40)
    opened(LAYOUT, data.ljust(LAYOUT.total_bytes, b"\x00")[: LAYOUT.total_bytes], 3, codec)


# ---- certificates --------------------------------------------------------------------------


@cache
def _leaves() -> tuple[x509.Certificate, x509.Certificate]:
    ours = authority("ours")
    key = ec.generate_private_key(ec.SECP256R1())
    signing = x509.load_der_x509_certificate(identity(0).certificate)
    return signing, ours.issue_tls(key.public_key(), identity(0).id, "site", NOW)


def _member(data: bytes) -> tuple[bytes, str]:
    verifier = Verifier(authority("ours").certificate, FEDERATION)  # without what it remembers
    found = verifier.member(data, NOW, claimed=identity(0).id)
    return found.id, found.site


def _peer(data: bytes) -> bytes:
    verifier = Verifier(authority("ours").certificate, FEDERATION)
    return verifier.peer(data, NOW).id


def _shown(data: bytes) -> str:
    """Look at what a gateway shows, for a line about this device's clock."""
    leaf = issued(data, authority("ours").certificate)
    return "" if leaf is None else misfit("it", leaf, NOW)


def _issued(body: bytes) -> bytes:
    """Sign a certificate's body with the federation's own key, whatever it says."""
    signature = authority("ours").key.sign(body, ec.ECDSA(hashes.SHA256()))
    return _tlv(0x30, body + _ECDSA_SHA256 + _tlv(3, b"\x00" + signature))


def _tlv(tag: int, body: bytes) -> bytes:
    size = len(body)
    wide = size.to_bytes((size.bit_length() + 7) // 8 or 1)
    return bytes([tag]) + (wide if size < 128 else bytes([128 + len(wide)]) + wide) + body


# ---- lists, tickets, journals --------------------------------------------------------------


def _list(data: bytes) -> MemberList:
    found = MemberList.open(data, [authority("ours").key.public_key()], FEDERATION)
    found.check(NOW, 3)
    return found


def _list_again(found: MemberList) -> bytes:
    return found.sign(authority("ours"))


def _some_lists() -> list[bytes]:
    ends = NOW + timedelta(days=6)
    sets: Sequence[tuple[bytes, ...]] = ((), (NODE,), (NODE, KEY[:16]))
    found = [MemberList(FEDERATION, 4, NOW, ends, frozenset(ids)) for ids in sets]
    return [_body(item.sign(authority("ours"))) for item in found]


def _body(raw: bytes) -> bytes:
    """Return a list's bytes without its signature, the last field."""
    for size in range(60, 80):
        if raw[-size - 8 : -size] == size.to_bytes(8, "little"):
            return raw[: -size - 8]
    raise AssertionError("no signature")


def _list_signed(body: bytes) -> bytes:
    return body + lp(authority("ours").key.sign(body, ec.ECDSA(hashes.SHA256())))


_TICKET = tickets.Ticket("run", NODE, SUBJECT, "gateway", int(NOW.timestamp()) + 60, bytes(16))


def _ticket(data: bytes) -> tickets.Ticket:
    return tickets.admit(
        KEY, data, run="run", node_id=NODE, tls_fingerprint=SUBJECT, gateway="gateway", now=NOW
    )


def _records(data: bytes) -> bytes:
    found, good = journal.parse(data)
    journal.History(found)
    again = b"".join(journal.encode(record) for record in found)
    assert again == data[:good]
    return again


def journals() -> list[bytes]:
    """Return the bytes of some journals."""
    ctx, ids = bytes(range(32)), tuple(sorted((NODE, KEY[:16])))
    records: Sequence[journal.Record] = (
        journal.Keyed(SUBJECT),
        journal.Masked(ctx, "run é/1", SUBJECT, SUBJECT),
        journal.Voted(ctx, SUBJECT, ids),
        journal.Released(ctx),
        journal.Closed(ctx),
    )
    found = [journal.encode(record) for record in records]
    return [b"".join(found), found[1], b"".join(found) + found[0][:20]]


def summed(data: bytes) -> bytes:
    """Give every line its checksum again."""
    out = []
    for line in data.split(b"\n"):
        body = line.rpartition(b" ")[0]
        out.append(body + b" " + sha256(body).hexdigest()[:16].encode() if body else line)
    return b"\n".join(out)


def _params(data: bytes) -> plan.Params:
    return plan.read(_settings(data))


PROTOCOL = (
    Parser(
        name="wire.parse_to_server", form="protobuf", make=_to_server, errors=(Malformed,),
        parse=lambda data: wire.parse_to_server(data, "node"), again=pb.ToServer.SerializeToString,
    ),
    Parser(
        name="wire.parse_to_client", form="protobuf", make=_to_client, errors=(Malformed,),
        parse=wire.parse_to_client, again=pb.ToClient.SerializeToString,
    ),
    Parser(
        name="wire.parse_up", form="protobuf", make=_up, errors=(Malformed,),
        parse=lambda data: wire.parse_up(data, "node"), again=pb.Up.SerializeToString,
    ),
    Parser(
        name="wire.parse_down", form="protobuf", make=_down, errors=(Malformed,),
        parse=wire.parse_down, again=pb.Down.SerializeToString,
    ),
    Parser(
        name="wire.parse_fetch", form="protobuf", errors=(Malformed,),
        make=lambda: [pb.FetchRequest(run="r", digest=SUBJECT, offset=9).SerializeToString()],
        parse=lambda data: wire.parse_fetch(data, "node"), again=pb.FetchRequest.SerializeToString,
    ),
    Parser(
        name="canonical.settings_from_pb", form="protobuf", make=_some_settings,
        errors=(Malformed,), parse=_settings,
        again=lambda found: pb.Start(config=settings_to_pb(found)).SerializeToString(),
    ),
    Parser(
        name="plan.read", form="protobuf", make=_some_settings, errors=(Malformed, SettingsError),
        parse=_params,
        again=lambda p: pb.Start(config=settings_to_pb(p.table())).SerializeToString(),
    ),
    Parser(
        name="context.RosterEntry.unpack_all", errors=(Malformed,), make=lambda: [bytes(224)],
        parse=RosterEntry.unpack_all, again=lambda found: b"".join(e.pack() for e in found),
    ),
    Parser(
        name="frames.Assembly", make=_some_frames, errors=(PeerError,), parse=_frame,
    ),
    Parser(
        name="manifest.from_json", form="json", errors=(Malformed,), parse=Manifest.from_json,
        make=lambda: [MANIFEST.to_json().encode(), b'{"arrays":[]}'],
        again=lambda found: found.to_json().encode(),
    ),
    Parser(
        name="manifest.unpack", errors=(Malformed,), parse=_unpacked,
        make=lambda: [bytes(MANIFEST.pack(ARRAYS))], again=bytes,
    ),
    Parser(
        name="firewall.check_message", errors=(BadUpdate,), make=_some_messages, parse=_judged,
    ),
    Parser(
        name="layout.read", errors=(VoidRound,), make=_some_sums, parse=_sums,
    ),
    Parser(
        name="verification.member", form="der", errors=(BadCertificate,), seal=_issued,
        make=lambda: [leaf.tbs_certificate_bytes for leaf in _leaves()], parse=_member,
    ),
    Parser(
        name="verification.peer", form="der", errors=(BadCertificate,), seal=_issued,
        make=lambda: [leaf.tbs_certificate_bytes for leaf in _leaves()], parse=_peer,
    ),
    Parser(
        name="clock.issued", form="der", errors=(), seal=_issued, parse=_shown,
        make=lambda: [leaf.tbs_certificate_bytes for leaf in _leaves()],
    ),
    Parser(
        name="verification.peer PEM", errors=(BadCertificate,), parse=_peer,
        make=lambda: [leaf.public_bytes(Encoding.PEM) for leaf in _leaves()],
    ),
    Parser(
        name="members.open", errors=(Refused,), make=_some_lists, parse=_list, again=_list_again,
        seal=_list_signed,
    ),
    Parser(
        name="tickets.admit", errors=(PeerError,), parse=_ticket, secrets=(KEY,),
        make=lambda: [tickets.mint(KEY, _TICKET)[:-32]], again=lambda t: tickets.mint(KEY, t),
        seal=lambda body: body + hmac.digest(KEY, body, "sha256"),
    ),
    Parser(
        name="journal.parse", form="lines", errors=(StateError,), make=journals,
        parse=_records, again=bytes, seal=summed,
    ),
)  # fmt: skip
