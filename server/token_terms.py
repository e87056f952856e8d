"""What an operator says of a token: the name and site of the node to be, how long, which apps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from ..protocol.enrolment_token import MAX_APPS
from ..protocol.errors import SettingsError

LONGEST_S = 30 * 86400
SHORTEST_S = 60
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SITE, _DIGEST = 64, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """Terms that have been checked."""

    name: str
    site: str
    seconds: int
    apps: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            SettingsError: One may not be.
        """
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            expected = "1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
            raise SettingsError("--name", expected, self.name)
        sound = isinstance(self.site, str) and self.site.isprintable()
        if not sound or not 1 <= len(self.site) <= _SITE:
            raise SettingsError("--site", f"1 to {_SITE} printable characters", self.site)
        if type(self.seconds) is not int or not SHORTEST_S <= self.seconds <= LONGEST_S:
            raise SettingsError("--expires", "1m to 30d, as in 30m, 24h, 7d", self.seconds)
        if len(self.apps) > MAX_APPS or any(len(app) != _DIGEST for app in self.apps):
            raise SettingsError("--app", f"at most {MAX_APPS} SHA-256 of bundles", len(self.apps))

    def dumps(self) -> dict[str, Any]:
        """Return them as JSON has them."""
        apps = [app.hex() for app in self.apps]
        return {"name": self.name, "site": self.site, "seconds": self.seconds, "apps": apps}

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """Read what `dumps` made.

        Raises:
            SettingsError: It is something else.
        """
        try:
            apps = tuple(bytes.fromhex(app) for app in found["apps"])
            return cls(**{**found, "apps": apps})
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                "token", "name, site, seconds, apps", type(found).__name__
            ) from error


def span(text: str) -> int:
    """Return the seconds of `30m`, `24h`, `7d`.

    Raises:
        SettingsError: It is none.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise SettingsError("--expires", "a number and s, m, h or d, as in 24h", text)
    return int(match[1]) * _UNITS[match[2]]
