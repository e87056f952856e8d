"""What fleet.toml says beside its cohorts: sites, the server, prices, pools, expectations.

[sites.NAME]            a site that a cohort names
outage = 0.01           share of hours in which nothing arrives from there
outage-hours = 24       how long that lasts each time; left out, an hour
correlation = 0.1       of losses at one site within an hour (sites.py)

[server]                for plans
overhead = 0.03         seconds of a round that are the server's own, the median
spread = 0.2            they take exp(spread z) times as long, z normal, anew each round
memory = 16e9           bytes that it has

[prices]                for plans
currency = "USD"
egress = 0.09           for 1e9 bytes that leave the server; ingress for those that come in
energy = 0.30           for a kWh

[pools.NAME]            for plans: accelerators or cores that can be rented
kind = "gpu"            or "core"
count = 4
hourly = 2.5            price of one for an hour
reserve = 0.1           share of them that is kept back
fold = 6e9              bytes/s that one of them adds up, where it was measured

[expect]                for a run that is watched
refused = 0.001         share of updates that the firewall will refuse
drop = 0.05             how far a metric may fall below its best
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .beta import LEAST
from .quantities import Range, check_keys, checked, number
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Of a cohort, a site, a pool."""
SHARE = Range(0, 1, "")
MONEY = Range(0, 1e9, "")
MEMORY = Range(1, 1e18, "bytes")
SPREAD = Range(0, 10, "")
_SITE = {"outage": SHARE, "outage-hours": Range(1, 8760, "hours"), "correlation": SHARE}
_TIED = f"0, or {LEAST:g} to 1"
_OVERHEAD = Range(0, 1e6, "seconds")
_FOLD = Range(1, 1e18, "bytes/s")
_CURRENCY = re.compile(r"[A-Za-z]{1,8}")
_MOST = 1000
"""Tables of one kind."""
_MOST_IN_POOL = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What happens to all devices of a place at once."""

    outage: float = 0.0
    """Share of hours in which nothing arrives from there."""
    outage_hours: float = 1.0
    """How long each lasts; two in a row are one that lasts longer."""
    correlation: float = 0.0
    """Intra-class correlation of losses at this site within an hour: 0, or 1e-6 to 1."""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            SettingsError: A value is none that a site has.
        """
        checked(self, "site", {name.replace("-", "_"): most for name, most in _SITE.items()})
        if 0 < self.correlation < LEAST:
            raise SettingsError("site.correlation", _TIED, float(self.correlation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a plan takes the server for."""

    overhead: float = 0.0
    """Seconds of a round that are its own, the median."""
    spread: float = 0.0
    """They take exp(spread z) times as long, z normal, anew each round."""
    memory: float | None = None
    """Bytes; None: not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is paid for."""

    currency: str = "USD"
    egress: float = 0.0
    """For 1e9 bytes that leave the server."""
    ingress: float = 0.0
    """For 1e9 bytes that come in."""
    energy: float = 0.0
    """For a kWh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Accelerators or cores that can be rented."""

    kind: str
    """gpu or core."""
    count: int
    hourly: float = 0.0
    """Price of one for an hour."""
    reserve: float = 0.0
    """Share of them that is kept back."""
    fold: float | None = None
    """Bytes/s that one of them adds up; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What a run that is watched may show."""

    refused: float = 0.0
    """Share of updates that the firewall will refuse."""
    drop: float = 0.05
    """How far a metric may fall below its best."""


TABLES = {"sites", "server", "prices", "pools", "expect"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """All of it."""

    sites: Mapping[str, Site]
    server: Server
    prices: Prices
    pools: Mapping[str, Pool]
    expect: Expect

    @classmethod
    def read(cls, table: dict[str, object], where: str, known: set[str]) -> Declared:
        """Read the tables that are there.

        Args:
            table: What the file says.
            where: The file, for errors.
            known: Sites that cohorts name.

        Raises:
            SettingsError: A key or a value may not be.
        """
        sites = _named(table, "sites", where, _site)
        for name in sites:
            if name not in known:
                expected = (
                    f"a site that a cohort names: {', '.join(sorted(known - {''})) or 'none does'}"
                )
                place = f"{where}: sites.{name}"
                raise SettingsError(place, expected, name, f'site = "{name}" in a cohort')
        return cls(
            sites=sites,
            server=Server(**_one(table, "server", where, _SERVER)),
            prices=_prices(table, where),
            pools=_named(table, "pools", where, _pool),
            expect=Expect(**_one(table, "expect", where, {"refused": SHARE, "drop": MONEY})),
        )


_Made = TypeVar("_Made")
_SERVER = {"overhead": _OVERHEAD, "spread": SPREAD, "memory": MEMORY}
_PRICES = {"egress": MONEY, "ingress": MONEY, "energy": MONEY}
_POOL = {"hourly": MONEY, "reserve": SHARE, "fold": _FOLD}


def _named(
    table: dict[str, object], key: str, where: str, make: Callable[[dict[str, object], str], _Made]
) -> dict[str, _Made]:
    """Return what some tables of names are."""
    found = table.get(key, {})
    if not isinstance(found, dict) or len(found) > _MOST:
        raise SettingsError(f"{where}: {key}", f"at most {_MOST} tables [{key}.NAME]", found)
    made = {}
    for name, value in found.items():
        place = f"{where}: {key}.{name}"
        if not NAME.fullmatch(name):
            raise SettingsError(place, "a name of letters, digits, - and _", name)
        made[name] = make(_table(value, place), place)
    return made


def _table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise SettingsError(where, "a table", value)
    return value


def _one(
    table: dict[str, object], key: str, where: str, ranges: Mapping[str, Range]
) -> dict[str, Any]:
    """Return the numbers of one table."""
    place = f"{where}: {key}"
    return _numbers(_table(table.get(key, {}), place), place, ranges, set())


def _numbers(
    table: dict[str, object], where: str, ranges: Mapping[str, Range], others: set[str]
) -> dict[str, Any]:
    check_keys(table, {*ranges, *others}, where)
    names = [name for name in ranges if name in table]
    return {name: number(table[name], f"{where}.{name}", ranges[name]) for name in names}


def _site(table: dict[str, object], where: str) -> Site:
    numbers = _numbers(table, where, _SITE, set())
    if 0 < numbers.get("correlation", 0.0) < LEAST:
        raise SettingsError(f"{where}.correlation", _TIED, numbers["correlation"])
    return Site(**{name.replace("-", "_"): value for name, value in numbers.items()})


def _prices(table: dict[str, object], where: str) -> Prices:
    place = f"{where}: prices"
    found = _table(table.get("prices", {}), place)
    numbers = _numbers(found, place, _PRICES, {"currency"})
    currency = found.get("currency", "USD")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise SettingsError(f"{place}.currency", "1 to 8 letters", currency)
    return Prices(currency=currency, **numbers)


def _pool(table: dict[str, object], where: str) -> Pool:
    numbers = _numbers(table, where, _POOL, {"kind", "count"})
    kind, count = table.get("kind"), table.get("count")
    if kind not in ("gpu", "core"):
        raise SettingsError(f"{where}.kind", "gpu or core", kind)
    if type(count) is not int or not 1 <= count <= _MOST_IN_POOL:
        raise SettingsError(f"{where}.count", f"an integer, 1 to {_MOST_IN_POOL}", count)
    return Pool(kind=str(kind), count=count, **numbers)
