"""The token of an enrolment: whom a device may trust, and the right to enrol once, in one line.

`umbel1-` and base64url of the length-prefixed fields (fields.py) federation, SHA-256 of the root's
DER, `host:port` of the front, secret, end (seconds since 1970, decimal ASCII), SHA-256 of the
bundles that whoever uses it lets run (0 to 8, 32 bytes each); then 4 bytes of SHA-256 over all
that, so that a mistyped token is called one. No error quotes it: it holds the secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Self

from .certificates import FEDERATION
from .errors import Malformed, SettingsError
from .fields import number, pack, unpack

MAX_APPS = 8
SECRET_BYTES = 32
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
"""`host:port`; the port still has to be one: `is_address`."""

_PREFIX = "umbel1-"
_TOKEN = re.compile(r"umbel1-[A-Za-z0-9_-]{100,1600}")
_CHECK = 4
_DIGEST = 32
_LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """What one line gives a device: whom it may trust, and the right to enrol once."""

    federation: str
    root: bytes
    """SHA-256 of the root certificate's DER."""
    address: str
    """`host:port` of the front."""
    secret: bytes = field(repr=False)
    expires: int
    """Seconds since 1970."""
    apps: tuple[bytes, ...] = ()
    """SHA-256 of bundles that run on the device from its enrolment on."""

    @property
    def text(self) -> str:
        """The line."""
        number_, apps = str(self.expires).encode(), b"".join(self.apps)
        address = self.address.encode()
        body = pack(b"", self.federation.encode(), self.root, address, self.secret, number_, apps)
        return _PREFIX + _base64url(body + _checksum(body))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the line; blanks around it do not matter.

        Raises:
            SettingsError: It is no token, or a mistyped one; nothing of it is quoted.
        """
        line = text.strip()
        if _TOKEN.fullmatch(line) is None:
            raise _no_token("something else")
        try:
            raw = base64.urlsafe_b64decode(line[len(_PREFIX) :] + "==")
            body, check = raw[:-_CHECK], raw[-_CHECK:]
            if check != _checksum(body):
                raise _no_token("a mistyped or shortened one")
            name, root, address, secret, expires, apps = unpack(b"", body, 6, "token")
            found = cls(
                federation=name.decode("ascii"),
                root=root,
                address=address.decode("ascii"),
                secret=secret,
                expires=number(expires, "token"),
                apps=tuple(apps[i : i + 32] for i in range(0, len(apps), 32)),
            )
        except (binascii.Error, UnicodeDecodeError, Malformed) as error:
            raise _no_token("a damaged one") from error
        if not found._is_sound():
            raise _no_token("one with a field of another form")
        return found

    def _is_sound(self) -> bool:
        return (
            FEDERATION.fullmatch(self.federation) is not None
            and len(self.root) == _DIGEST
            and is_address(self.address)
            and len(self.secret) == SECRET_BYTES
            and len(self.apps) <= MAX_APPS
            and all(len(app) == _DIGEST for app in self.apps)
        )


def is_address(text: str) -> bool:
    """Tell whether a text is `host:port` or `[IPv6]:port`."""
    match = ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match[2]) <= _LAST_PORT


def _no_token(got: str) -> SettingsError:
    expected = "one line `umbel1-…`, as `umbel server token` prints it"
    return SettingsError("token", expected, got, "copy the whole line")


def _checksum(body: bytes) -> bytes:
    return sha256(_PREFIX.encode() + body).digest()[:_CHECK]


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
