"""What a device reads of a server that it cannot trust yet: the root, its own certificates."""

from __future__ import annotations

from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients import granted
from umbel.clients.front_line import root_of
from umbel.protocol.enrolment import EnrolAnswer
from umbel.protocol.errors import PeerError
from umbel.tests.fuzz_issuer import answer, keys, stage
from umbel.tests.fuzzing import Parser
from umbel.tests.issuing import NOW


def _root() -> x509.Certificate:
    return x509.load_pem_x509_certificate(stage().issuer.ca())


def _pinned(data: bytes) -> x509.Certificate:
    digest = sha256(_root().public_bytes(Encoding.DER)).digest()
    return root_of(data, "fl.example.org:443", digest)


def _granted(data: bytes) -> EnrolAnswer:
    found = EnrolAnswer.parse(data)
    own = granted.Keys(keys().tls, keys().signing)
    granted.check(found, _root(), "wards", own, NOW, answer().id)
    return found


JOINING = (
    Parser(
        name="front_line.root_of", parse=_pinned, errors=(PeerError,),
        make=lambda: [stage().issuer.ca()],
    ),
    Parser(
        name="granted.check", parse=_granted, errors=(PeerError,), form="json",
        make=lambda: [answer().dumps()],
    ),
)  # fmt: skip
