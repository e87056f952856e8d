"""What can be asked of an issuer by name, and how an error of it is told.

Devices ask for `ca`, `enrol`, `renew`, `leave` through the front, and get what
protocol/enrolment.py says: of an error of this machine no more than that the CA cannot answer now,
its line goes to the issuer's log. The operator's commands (`token`, `tokens`, `revoke-token`,
`remove`, `nodes`, `refresh`) are told everything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from .token_terms import Terms
from ..protocol.documents import read_json
from ..protocol.enrolment import Declined, EnrolRequest, LeaveRequest, RenewRequest
from ..protocol.errors import Malformed, SettingsError, UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .issuer import Issuer

OK, NOT_FOUND, SETTINGS, STATE = 200, 404, 422, 500
DEVICES = ("ca", "enrol", "renew", "leave")
OPERATORS = ("token", "tokens", "revoke-token", "remove", "nodes", "refresh")
_LINE = 240


class Answer(NamedTuple):
    """An HTTP status, and what goes with it."""

    status: int
    body: bytes


def answer(issuer: Issuer, command: str, body: bytes, say: Callable[[str], None]) -> Answer:
    """Carry out a command.

    Args:
        issuer: Of the federation.
        command: One of `DEVICES` or `OPERATORS`.
        body: What a device has sent, or the arguments as JSON.
        say: Takes the line of an error that a device is not told.
    """
    if command in DEVICES:
        return _to_device(issuer, command, body, say)
    if command not in OPERATORS:
        return _told(NOT_FOUND, "no such command")
    try:
        return Answer(OK, json.dumps(_operate(issuer, command, read_json(body))).encode())
    except SettingsError as error:
        return _told(SETTINGS, str(error))
    except (ValueError, UmbelError) as error:
        return _told(STATE, str(error))


def _to_device(issuer: Issuer, command: str, body: bytes, say: Callable[[str], None]) -> Answer:
    try:
        if command == "ca":
            return Answer(OK, issuer.ca())
        if command == "leave":
            issuer.leave(LeaveRequest.parse(body))
            return Answer(OK, b"{}")
        made = (
            issuer.enrol(EnrolRequest.parse(body))
            if command == "enrol"
            else issuer.renew(RenewRequest.parse(body))
        )
        return Answer(OK, made.dumps())
    except Declined as error:
        declined = error
    except Malformed as error:
        declined = Declined("malformed", str(error)[:_LINE])
    except UmbelError as error:
        say(f"{command}: {error}")
        declined = Declined("unavailable")
    return Answer(declined.status, declined.dumps())


def _operate(issuer: Issuer, command: str, given: Any) -> Any:
    if command == "token":
        return {"token": issuer.token(Terms.of(given)).text}
    if command == "tokens":
        return issuer.tokens()
    if command == "nodes":
        return issuer.nodes()
    if command == "refresh":
        return issuer.refresh()
    if not isinstance(given, str):
        raise SettingsError(command, "a name or an id", type(given).__name__)
    return issuer.remove(given) if command == "remove" else issuer.revoke_token(given)


def _told(status: int, line: str) -> Answer:
    return Answer(status, json.dumps({"line": line}).encode())
