"""What an issuer reads: tokens, the requests of devices, its own files."""

from __future__ import annotations

import base64
import json
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from umbel.protocol.enrolment import (
    Declined,
    EnrolAnswer,
    EnrolRequest,
    LeaveRequest,
    RenewRequest,
    requested_flower,
    requested_signing,
    requested_tls,
)
from umbel.protocol.enrolment_token import Token
from umbel.protocol.errors import Malformed, SettingsError, StateError
from umbel.server import federation_files, issuer_commands, issuer_wire, server_toml
from umbel.server.server_toml import ServerSettings
from umbel.server.token_terms import Terms
from umbel.tests.fuzz_files import TOML, folder, of
from umbel.tests.fuzzing import Parser
from umbel.tests.issuing import Keys, Stage

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = b"umbel1-"


@cache
def stage() -> Stage:
    """Return a federation with an issuer, and one node."""
    return Stage(folder() / "wards")


@cache
def token() -> Token:
    """Return the token that made the node."""
    return stage().token(apps=(bytes(32), bytes(range(32))))


@cache
def keys() -> Keys:
    """Return the node's keys."""
    return Keys()


@cache
def answer() -> EnrolAnswer:
    """Return what the node was given."""
    return stage().issuer.enrol(keys().enrol(token()))


def _sealed(data: bytes) -> bytes:
    """Give spoilt fields of a token their checksum."""
    try:
        body = base64.urlsafe_b64decode(data.removeprefix(PREFIX) + b"==")[:-4]
    except ValueError:
        body = data
    whole = body + sha256(PREFIX + body).digest()[:4]
    return PREFIX + base64.urlsafe_b64encode(whole).rstrip(b"=")


def _token(data: bytes) -> Token:
    return Token.parse(data.decode("latin-1"))


def _enrol(data: bytes) -> EnrolAnswer:
    """Ask the issuer itself: nothing but a refusal, or the node that there is."""
    return stage().issuer.enrol(EnrolRequest.parse(data))


def _terms() -> Terms:
    return Terms(name="a", site="b", seconds=60, apps=(bytes(32),))


def _operate(data: bytes) -> str:
    """Take a command of the operator: it is done, or told what is wrong, in JSON."""
    made = issuer_commands.answer(stage().issuer, "token", data, print)
    found = json.loads(made.body)
    if made.status != issuer_commands.OK:
        raise Malformed("issuer", found["line"])
    return str(stage().issuer.revoke_token("a"))


def _csr(data: bytes) -> list[Any]:
    pem = data.decode("latin-1")
    found = []
    for read in (requested_tls, requested_signing, requested_flower):
        try:
            found.append(read(pem))
        except Declined as error:
            last = error
    if not found:
        raise last
    return found


def _requests() -> list[bytes]:
    asked = keys().enrol(token())
    return [text.encode() for text in (asked.tls, asked.signing, asked.flower)]


def _leave() -> LeaveRequest:
    return LeaveRequest.sign("wards", answer().id, 1_800_000_000, keys().signing)


def _issuing() -> Path:
    return stage().folder / federation_files.ISSUING


def _issuing_key() -> Path:
    return stage().folder / federation_files.ISSUING_KEY


def _settings() -> Path:
    return stage().folder / server_toml.FILE


ISSUER = (
    Parser(
        name="enrolment_token.parse", parse=_token, errors=(SettingsError,),
        make=lambda: [token().text.encode()], seal=_sealed,
        again=lambda found: found.text.encode(), secrets=(),
    ),
    Parser(
        name="enrolment.EnrolRequest", parse=EnrolRequest.parse, errors=(Malformed,),
        make=lambda: [keys().enrol(token()).dumps()], form="json",
        again=lambda found: found.dumps(),
    ),
    Parser(
        name="enrolment.RenewRequest", parse=RenewRequest.parse, errors=(Malformed,),
        make=lambda: [keys().renew(answer().id).dumps()], form="json",
        again=lambda found: found.dumps(),
    ),
    Parser(
        name="enrolment.LeaveRequest", parse=LeaveRequest.parse, errors=(Malformed,),
        make=lambda: [_leave().dumps()], form="json", again=lambda found: found.dumps(),
    ),
    Parser(
        name="enrolment.EnrolAnswer", parse=EnrolAnswer.parse, errors=(Malformed,),
        make=lambda: [answer().dumps()], form="json", again=lambda found: found.dumps(),
    ),
    Parser(
        name="enrolment.Declined", parse=lambda data: str(Declined.parse(data)),
        errors=(Malformed,), make=lambda: [Declined("token used").dumps()], form="json",
    ),
    Parser(
        name="enrolment, csr", parse=_csr, errors=(Declined,),
        make=_requests,
    ),
    Parser(
        name="issuer.enrol", parse=_enrol, errors=(Malformed, Declined),
        make=lambda: [keys().enrol(token()).dumps()], form="json",
    ),
    Parser(
        name="issuer_wire.asked", parse=issuer_wire.asked, errors=(Malformed,),
        make=lambda: [issuer_wire.request("enrol", b'{"a": "\\n"}')], form="json",
        again=lambda found: issuer_wire.request(*found),
    ),
    Parser(
        name="issuer_commands.answer", parse=_operate, errors=(Malformed, SettingsError),
        make=lambda: [json.dumps(_terms().dumps()).encode(), b'"press-1"', b"null"], form="json",
    ),
    Parser(
        name="server_toml.read",
        parse=of(_settings, lambda: ServerSettings.read(stage().folder)),
        errors=(SettingsError,), make=lambda: [_settings().read_bytes()], form="toml", growth=TOML,
        again=lambda found: found.dumps().encode(),
    ),
    Parser(
        name="federation_files.authority, issuing.pem",
        parse=of(_issuing, lambda: federation_files.authority(stage().folder).der),
        errors=(StateError,), make=lambda: [_issuing().read_bytes()],
    ),
    Parser(
        name="federation_files.authority, issuing.key",
        parse=of(_issuing_key, lambda: federation_files.authority(stage().folder).der),
        errors=(StateError,), make=lambda: [_issuing_key().read_bytes()],
    ),
)  # fmt: skip
