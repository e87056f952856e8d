"""Enrolment, renewal, leaving: what a device and its CA say to each other.

Requests and answers are strict JSON (forms.py). A request for a certificate is a PKCS #10 one
(`request_for`), signed by its own key: that proves possession, and of the rest nothing is read.

| request | fields |
|---|---|
| enrol | version, federation, secret (hex), tls, signing, flower (PEM), about |
| renew | version, federation, id (hex), tls, signing (PEM), about |
| leave | version, federation, id (hex), time, signature (hex, Ed25519 by the signing key) |

The answer to the first two is an `EnrolAnswer`; a refusal is `{"code", "line"}` with the HTTP
status of `STATUS`. The same request again, when an answer was lost, is answered the same way.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from .certificates import FEDERATION
from .enrolment_token import SECRET_BYTES, is_address
from .errors import PeerError
from .fields import pack
from .forms import (
    base64_bytes,
    hex_bytes,
    integer,
    matching,
    one_of,
    read_fields,
    read_object,
    several,
    words,
)  # fmt: skip
from .verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = 1
MAX_REQUEST = 1 << 16
"""Bytes of a request; a usual one has 2,000."""
MAX_ANSWER = 1 << 21
"""Bytes of an answer: a member list of 1 MiB in base64, and certificates."""
LEAVE = b"umbel/leave/1"

STATUS = {
    **{"token unknown": 403, "token used": 409, "token expired": 410, "token revoked": 410},
    **{"other federation": 403, "removed": 410, "unknown node": 403, "other keys": 409},
    **{"not a csr": 403, "malformed": 400, "unavailable": 503},
}
"""Codes of a refusal, and the HTTP status of each. Only `unavailable` is worth another try."""
LINES = {
    "token unknown": "this server has issued no such token; ask its operator for one",
    "token used": "other keys have used this token; ask the operator for another",
    "token expired": "this token has expired; ask the operator for another",
    "token revoked": "the operator has revoked this token; ask for another",
    "other federation": "this is the CA of another federation",
    "removed": "this node was removed; a new token and new keys make a new node of it",
    "unknown node": "this CA knows no such node; enrol it with a token",
    "other keys": "these are not the keys of this node, or they are another node's",
    "not a csr": "a certificate request is none, is not signed by its own key or has another kind "
    "of key than P-256 for tls, Ed25519 for signing, P-384 for flower",
    "malformed": "this is no such request",
    "unavailable": "the CA cannot answer now; try again in a minute",
}

_PEER = "enrolment"


class Declined(PeerError):
    """A request that the CA does not grant; `code` is a key of `STATUS`, `line` says why."""

    def __init__(self, code: str, line: str = "") -> None:
        """Take the code's own line unless there is a better one; neither quotes the request."""
        self.code, self.line = code, line or LINES[code]
        super().__init__(code, self.line)

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return STATUS[self.code]

    def dumps(self) -> bytes:
        """Return the JSON of the answer."""
        return json.dumps({"code": self.code, "line": self.line}).encode()

    @classmethod
    def parse(cls, raw: bytes) -> Declined:
        """Read the answer of a server.

        Raises:
            Malformed: It is none.
        """
        return cls(**read_object(raw, {"code": one_of(STATUS), "line": words(240)}, 4096, _PEER))


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a device says of itself, for the operator's eyes; nothing is decided by it."""

    umbel: str
    flwr: str
    python: str
    system: str
    machine: str
    time: int
    """Its own clock, seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrolRequest:
    """A device with a token asks for its certificates."""

    federation: str
    secret: bytes = field(repr=False)
    tls: str
    signing: str
    flower: str
    about: About

    def dumps(self) -> bytes:
        """Return the JSON."""
        return _dumps(self, secret=self.secret.hex())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read the JSON.

        Raises:
            Malformed: With the field that is wrong.
        """
        keys = {"secret": hex_bytes(SECRET_BYTES), "tls": _PEM, "signing": _PEM, "flower": _PEM}
        return cls(**_request(raw, keys | {"about": _about}))


@dataclass(frozen=True, kw_only=True, slots=True)
class RenewRequest:
    """A node asks for new leaves for the keys that it is registered with."""

    federation: str
    id: bytes
    tls: str
    signing: str
    about: About

    def dumps(self) -> bytes:
        """Return the JSON."""
        return _dumps(self, id=self.id.hex())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read the JSON.

        Raises:
            Malformed: With the field that is wrong.
        """
        keys = {"id": hex_bytes(16), "tls": _PEM, "signing": _PEM, "about": _about}
        return cls(**_request(raw, keys))


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveRequest:
    """A node says that it goes; a replay says nothing new, so no clock is asked."""

    federation: str
    id: bytes
    time: int
    signature: bytes

    @classmethod
    def sign(cls, federation: str, node: bytes, time: int, key: Ed25519PrivateKey) -> Self:
        """Make one, by the node's signing key; `time` in seconds since 1970."""
        signature = key.sign(_leaving(federation, node, time))
        return cls(federation=federation, id=node, time=time, signature=signature)

    def is_of(self, key: Ed25519PublicKey) -> bool:
        """Tell whether the key's holder has signed it."""
        try:
            key.verify(self.signature, _leaving(self.federation, self.id, self.time))
        except InvalidSignature:
            return False
        return True

    def dumps(self) -> bytes:
        """Return the JSON."""
        return _dumps(self, id=self.id.hex(), signature=self.signature.hex())

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read the JSON.

        Raises:
            Malformed: With the field that is wrong.
        """
        return cls(
            **_request(raw, {"id": hex_bytes(16), "time": _TIME, "signature": hex_bytes(64)})
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrolAnswer:
    """What an enrolment or a renewal gives. All of it is public, and the device verifies it."""

    federation: str
    id: bytes
    name: str
    site: str
    gateway: str
    """`host:port` of the gateway."""
    superlink: str
    """`host:port` of the front, at which Flower's SuperNode finds the SuperLink."""
    gateways: tuple[str, ...]
    """Names that the gateway's certificate may bear."""
    tls: str
    """PEM: the leaf, then the issuing CA."""
    signing: str
    """PEM of the leaf."""
    issuing: tuple[str, ...]
    """PEM of every issuing CA in force."""
    members: bytes
    """The member list, as the CA signed it."""
    flower_node: int
    """Flower's id of the node."""

    def dumps(self) -> bytes:
        """Return the JSON."""
        members = base64.b64encode(self.members).decode()
        return _dumps(self, id=self.id.hex(), members=members)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read the JSON.

        Raises:
            Malformed: With the field that is wrong.
        """
        keys: dict[str, Callable[[object], Any]] = {
            **{"id": hex_bytes(16), "name": words(64), "site": words(64), "gateway": _address},
            **{"superlink": _address, "gateways": several(words(253), 64), "tls": _PEM},
            **{"signing": _PEM, "issuing": several(_PEM, 16), "members": base64_bytes},
            "flower_node": integer(1, (1 << 64) - 1),
        }
        return cls(**_request(raw, keys, MAX_ANSWER))


def request_for(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> str:
    """Return a certificate request for a key, PEM: the key alone, signed by itself."""
    algorithm = None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


def requested_tls(pem: str) -> ec.EllipticCurvePublicKey:
    """Return the P-256 key of a request that its holder has signed, or decline `not a csr`."""
    return _curve_key(pem, ec.SECP256R1)


def requested_flower(pem: str) -> ec.EllipticCurvePublicKey:
    """Return the P-384 key of a request that its holder has signed, or decline `not a csr`."""
    return _curve_key(pem, ec.SECP384R1)


def requested_signing(pem: str) -> Ed25519PublicKey:
    """Return the Ed25519 key of a request that its holder has signed, or decline `not a csr`."""
    request, key = _requested(pem)
    if not isinstance(key, Ed25519PublicKey) or not request.is_signature_valid:
        raise Declined("not a csr")
    return key


def _curve_key(pem: str, curve: type[ec.EllipticCurve]) -> ec.EllipticCurvePublicKey:
    request, key = _requested(pem)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):
        raise Declined("not a csr")
    if not request.is_signature_valid:
        raise Declined("not a csr")
    return key


def _requested(pem: str) -> tuple[x509.CertificateSigningRequest, object]:
    """Return a request and its key; the kind is looked at before the signature, which may cost."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        return request, request.public_key()
    except UNREADABLE as error:
        raise Declined("not a csr") from error


def _leaving(federation: str, node: bytes, time: int) -> bytes:
    return pack(LEAVE, federation.encode(), node, str(time).encode())


def _dumps(form: Any, **changed: object) -> bytes:
    return json.dumps({"version": VERSION} | asdict(form) | changed).encode()


def _request(
    raw: bytes, form: Mapping[str, Callable[[object], Any]], most: int = MAX_REQUEST
) -> dict[str, Any]:
    """Return the fields but for the version, which is ours."""
    head = {"version": integer(VERSION, VERSION), "federation": _FEDERATION}
    found = read_object(raw, head | dict(form), most, _PEER)
    del found["version"]
    return found


def _about(value: object) -> About:
    texts = dict.fromkeys(("umbel", "flwr", "python", "system", "machine"), words(64))
    return About(**read_fields(value, {**texts, "time": _TIME}, f"{_PEER}: about"))


def _address(value: object) -> str:
    if not isinstance(value, str) or not is_address(value):
        raise ValueError("host:port")
    return value


_FEDERATION = matching(FEDERATION, "a federation's name")
_PEM = matching(re.compile(r"[\x20-\x7e\r\n]{1,8192}"), "PEM text")
_TIME = integer(0, 1 << 40)
