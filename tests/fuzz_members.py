"""Who is a member, as bytes: what a gateway relays and a device keeps, and the server's files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients import member_file
from umbel.clients.device_files import DeviceFiles
from umbel.protocol import messages_pb2 as pb
from umbel.protocol import wire
from umbel.protocol.certificates import Authority
from umbel.protocol.errors import Malformed, Refused, SettingsError, StateError
from umbel.protocol.members import LIFE, MemberList
from umbel.protocol.membership import Membership
from umbel.server.core_watch import read_leaf, read_trust
from umbel.tests.actors import FEDERATION, NOW, authority
from umbel.tests.fuzz_files import device, federation, of, pem
from umbel.tests.fuzz_protocol import NODE, _body, _list_signed
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Authority.create(FEDERATION, NOW, above_issuing=True)
ISSUER = ROOT.issue_authority(NOW)
LISTED = MemberList(FEDERATION, 4, NOW, NOW + LIFE, frozenset((NODE,)))


def _issuing() -> list[bytes]:
    return [ISSUER.der, authority("ours").der]


def _learned(data: bytes) -> int:
    """Show a device an issuing CA, and its list."""
    known = Membership(ROOT.certificate, FEDERATION)
    known.learn([data])
    known.take(LISTED.sign(ISSUER), NOW)
    return known.epoch


def _taken(data: bytes) -> frozenset[bytes]:
    known = Membership(authority("ours").certificate, FEDERATION)
    known.take(data, NOW)
    known.check(NOW)
    return known.revoked()


def _recalled() -> int:
    return DeviceFiles.read(device()).membership(datetime.now(UTC)).epoch


def _public(*names: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        files = [(federation().folder / name).read_bytes() for name in names]
        return [x509.load_pem_x509_certificate(f).public_bytes(Encoding.DER) for f in files]

    return make


MEMBERS = (
    Parser(
        name="wire.parse_trust", form="protobuf", errors=(Malformed,),
        make=lambda: [pb.Trust(issuing=_issuing(), members=bytes(90)).SerializeToString()],
        parse=lambda data: wire.parse_trust(data, "core"), again=pb.Trust.SerializeToString,
    ),
    Parser(
        name="membership.take", errors=(Refused,), seal=_list_signed, parse=_taken,
        make=lambda: [_body(LISTED.sign(authority("ours")))],
    ),
    Parser(
        name="membership.learn", form="der", errors=(Refused,), make=_issuing, parse=_learned,
    ),
    Parser(
        name="device_files.membership, list", errors=(SettingsError, StateError),
        make=lambda: [LISTED.sign(authority("ours"))],
        parse=of(lambda: device() / member_file.FILE, _recalled),
    ),
    Parser(
        name="device_files.membership, issuing", form="der", errors=(SettingsError,),
        make=_issuing, seal=pem("CERTIFICATE"),
        parse=of(lambda: device() / "issuing.pem", _recalled),
    ),
    Parser(
        name="core_watch.read_trust", form="der", errors=(StateError,), make=_issuing,
        seal=pem("CERTIFICATE"), parse=of(
            lambda: federation().folder / "issuing.pem",
            lambda: read_trust(federation().folder).SerializeToString(),
        ),
    ),
    Parser(
        name="core_watch.read_leaf", form="der", errors=(StateError,),
        make=_public("gateway.pem"), seal=pem("CERTIFICATE"), parse=of(
            lambda: federation().folder / "gateway.pem",
            lambda: read_leaf(federation().folder, "gateway")[1],
        ),
    ),
)  # fmt: skip
