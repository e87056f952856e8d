"""`server.toml`: what the operator of a federation decides about its server.

    name          the federation, as it stands in every node's certificate; never changed
    names         public DNS and IP names of this server
    gateway       host:port at which devices dial the gateway
    front         host:port at which devices dial the front
    superlink     host:port of Flower's SuperLink, on loopback
    node_days     life of a node's certificates, 1 to 7
    [listen]      core, front: address and port that the two listen on

Strict: a key that is missing or unknown, or a value of another kind, is a `SettingsError` that
names it. Written by `umbel server init`; read when a command starts.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from .plain_files import read_file, why
from ..protocol.certificates import DNS_NAME, FEDERATION, NODE_DAYS
from ..protocol.documents import read_toml
from ..protocol.enrolment_token import is_address
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE = "server.toml"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LIMIT = 1 << 20
_MOST_NAMES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What stands in server.toml."""

    name: str
    names: tuple[str, ...]
    gateway: str
    front: str
    superlink: str
    node_days: int = NODE_DAYS
    listen_core: str
    listen_front: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a federation's file.

        Raises:
            SettingsError: It cannot be read, or a key or a value may not be.
        """
        file = folder / FILE
        try:
            found = read_toml(read_file(file, _LIMIT).decode("utf-8"))
        except (OSError, ValueError) as error:
            move = "`umbel server init` makes one"
            raise SettingsError(str(file), "the settings of a server", why(error), move) from error
        listen = _table(found.pop("listen", None), _LISTEN, f"{file}: listen.")
        values = _table(found, _KEYS, f"{file}: ")
        made = cls(**values, **{f"listen_{key}": value for key, value in listen.items()})
        made._check_dialled(f"{file}: ")
        return made

    def check(self) -> None:
        """Check what a command line gave.

        Raises:
            SettingsError: A value may not be.
        """
        for key in _KEYS:
            value = getattr(self, key)
            _read(key, list(value) if isinstance(value, tuple) else value, _KEYS, "")
        for key in _LISTEN:
            _read(key, getattr(self, f"listen_{key}"), _LISTEN, "listen.")
        self._check_dialled("")

    def _check_dialled(self, where: str) -> None:
        """Refuse an address that no device could use: its host is in no certificate or policy."""
        for key, known in (("gateway", self.names), ("front", self.names_of("front"))):
            address = getattr(self, key)
            if address.rpartition(":")[0].strip("[]") not in known:
                raise SettingsError(f"{where}{key}", "a host that is one of `names`", address)

    def names_of(self, server: str) -> tuple[str, ...]:
        """Return the names that the certificate of `gateway`, `front` or `superlink` bears."""
        public = () if server == "superlink" else self.names
        return tuple(dict.fromkeys((*public, *LOOPBACK)))

    def dumps(self) -> str:
        """Return the file's text."""
        lines = [
            "# The server of one federation, made by `umbel server init`.",
            "# Edit it, then start the server's programs anew.",
            *(f"{key} = {json.dumps(getattr(self, key))}" for key in _KEYS),
            "",
            "[listen]",
            *(f"{key} = {json.dumps(getattr(self, f'listen_{key}'))}" for key in _LISTEN),
        ]
        return "\n".join(lines) + "\n"


def is_host(text: str) -> bool:
    """Tell whether a text is a DNS name in lower case, or an IP address."""
    try:
        return str(ipaddress.ip_address(text)) == text
    except ValueError:
        return text == text.lower() and DNS_NAME.fullmatch(text) is not None


def _table(found: object, keys: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise SettingsError(where.rstrip(". "), "a table", type(found).__name__)
    for name in found.keys() - keys.keys():
        raise SettingsError(f"{where}{name}", f"one of the keys {', '.join(keys)}", name)
    for name in keys.keys() - found.keys():
        raise SettingsError(f"{where}{name}", keys[name][0], "nothing")
    return {name: _read(name, value, keys, where) for name, value in found.items()}


def _read(name: str, value: object, keys: dict[str, Any], where: str) -> object:
    expected, read = keys[name]
    found = read(value)
    if found is None:
        raise SettingsError(f"{where}{name}", expected, value)
    return found


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and FEDERATION.fullmatch(value) else None


def _names(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_NAMES:
        return None
    sound = all(isinstance(item, str) and is_host(item) for item in value)
    return tuple(value) if sound and len(set(value)) == len(value) else None


def _address(value: object) -> str | None:
    return value if isinstance(value, str) and is_address(value) else None


def _loopback(value: object) -> str | None:
    host = value.rpartition(":")[0] if isinstance(value, str) else ""
    return _address(value) if host in {"127.0.0.1", "localhost", "[::1]"} else None


def _days(value: object) -> int | None:
    return value if type(value) is int and 1 <= value <= NODE_DAYS else None


_KEYS: dict[str, tuple[str, Callable[[object], object]]] = {
    "name": ("1 to 63 of a-z, 0-9 and -", _name),
    "names": (f"1 to {_MOST_NAMES} different DNS names in lower case or IP addresses", _names),
    "gateway": ("'host:port'", _address),
    "front": ("'host:port'", _address),
    "superlink": ("'host:port' on loopback", _loopback),
    "node_days": (f"an integer, 1 to {NODE_DAYS}", _days),
}
_LISTEN: dict[str, tuple[str, Callable[[object], object]]] = {
    "core": ("'address:port'", _address),
    "front": ("'address:port'", _address),
}
