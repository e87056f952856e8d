"""`fleet.toml`: cohorts of devices by distributions, strict.

    seed = 7                            of the devices and what they do; left out: the run's

    [cohorts.NAME]                      one table for each kind of device
    share = 0.8                         of all clients; or count = 800. All cohorts alike
    site = "north"                      where they are; a name
    samples = 50                        quantities are numbers or distributions (quantities.py)
    speed = 0.02                        seconds to train a sample once
    bandwidth = 1e6                     bytes/s in both directions; or downlink and uplink
    capacity = "capacity.json"          in place of speed and bandwidth: recorded (traces.py)
    jitter = 0.1                        training takes 0.9 to 1.1 times as long, anew each round
    spread = 0.3                        in place of jitter: exp(0.3 z) times as long, z normal
    dropout = 0.02                      probability that an update is lost on the way
    crash = 0.01                        probability of breaking off
    memory = 4e9                        bytes that a training process may use; a quantity
    power = 3.5                         watts while at work, beyond those of idling
    price = 0.02                        money for a device's hour at work
    line-price = 5.0                    money for 1e9 bytes over its line

    [cohorts.NAME.online]               left out: always
    hours = 8                           a day, at most 19.2
    from = { uniform = [0, 24] }        hour of the day at which it comes at the earliest; it
                                        comes within the next 4.8 hours, each day anew
    trace = "online.json"               in place of both: recorded

Files are looked for beside fleet.toml. declared.py has the tables beside the cohorts. An unknown
key is an error.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from .declared import MEMORY, MONEY, NAME, SPREAD, TABLES, Declared
from .description import Cohort, Description
from .distributions import Constant, Recorded
from .profiles import DAY, LONGEST, Behaviour
from .quantities import Range, check_keys, distribution, number
from .traces import Availability, capacity
from ...protocol.documents import read_toml
from ...protocol.errors import SettingsError
from ...server.plain_files import read_file, why

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .distributions import Distribution

_LIMIT = 1 << 20
_MOST_COHORTS = 1000
_MOST = 1 << 31
"""Clients."""
_KEYS = {
    *("count", "share", "site", "samples", "speed", "bandwidth", "downlink", "uplink", "capacity"),
    *("jitter", "spread", "dropout", "crash", "online"),
    *("memory", "power", "price", "line-price"),
}
_SAMPLES = Range(1, 2**31 - 1, "samples")
_SPEED = Range(0, 1e6, "seconds a sample")
_RATE = Range(1, 1e15, "bytes/s")
_PROBABILITY = Range(0, 1, "")
_WATTS = Range(0, 1e6, "watts")
_HOURS = Range(0.01, LONGEST * DAY / 3600, "hours a day")
_CLOCK = Range(0, 24, "hours")
_NUMBERS = {
    "jitter": _PROBABILITY,
    "spread": SPREAD,
    "dropout": _PROBABILITY,
    "crash": _PROBABILITY,
    "power": _WATTS,
    "price": MONEY,
    "line-price": MONEY,
}
"""Of a cohort: what is one number for all its devices, 0 where it is left out."""
_SHARE = Range(1e-9, 1e9, "")


def read(path: Path) -> Description:
    """Return the fleet that a file describes.

    Raises:
        SettingsError: It cannot be read, or a key or a value may not be.
    """
    try:
        text = read_file(path, _LIMIT).decode("utf-8")
        table = read_toml(text)
    except (OSError, ValueError) as error:
        move = "docs/simulation.md has one"
        raise SettingsError(str(path), "the description of a fleet", why(error), move) from error
    check_keys(table, {"seed", "cohorts"} | TABLES, f"{path}:")
    seed = table.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise SettingsError(f"{path}: seed", "an integer, 0 or more", seed)
    cohorts = table.get("cohorts")
    if not isinstance(cohorts, dict) or not 1 <= len(cohorts) <= _MOST_COHORTS:
        expected = f"1 to {_MOST_COHORTS} tables [cohorts.NAME]"
        got = "nothing" if cohorts is None else cohorts
        raise SettingsError(f"{path}: cohorts", expected, got)
    made = [_cohort(path, name, value) for name, value in cohorts.items()]
    _check_sizes(path, made)
    beside = Declared.read(table, str(path), {cohort.site for cohort in made})
    return Description(
        path=path,
        seed=seed,
        cohorts=tuple(made),
        digest=_digest(text, made),
        sites=beside.sites,
        server=beside.server,
        prices=beside.prices,
        pools=beside.pools,
        expect=beside.expect,
    )


def _digest(text: str, cohorts: Sequence[Cohort]) -> str:
    """Return one digest over the file and what stands in the traces that it names."""
    found = sha256(text.encode())
    for cohort in cohorts:
        for rate in (cohort.speed, cohort.downlink):
            if isinstance(rate, Recorded):
                found.update(rate.values.tobytes())
        if (trace := cohort.behaviour.trace) is not None:
            for array in (trace.starts, trace.begin, trace.end, trace.period):
                found.update(array.tobytes())
    return found.hexdigest()


def _cohort(path: Path, name: str, table: object) -> Cohort:
    where = f"{path}: cohorts.{name}"
    if not NAME.fullmatch(name):
        raise SettingsError(where, "a name of letters, digits, - and _", name)
    if not isinstance(table, dict):
        raise SettingsError(where, "a table", table)
    check_keys(table, _KEYS, where)
    hours, begins, trace = _online(path, table.get("online", "always"), f"{where}.online")
    if "spread" in table:
        _exclude(table, "spread", ("jitter",), where)
    site = _text(table.get("site", ""), f"{where}.site")
    numbers = {
        key: number(table.get(key, 0.0), f"{where}.{key}", bounds)
        for key, bounds in _NUMBERS.items()
    }
    behaviour = Behaviour(
        **{key: numbers[key] for key in ("jitter", "spread", "dropout", "crash")},
        trace=trace,
        name=name,
        site=site,
    )
    speed, down, up = _rates(path, table, where)
    memory = table.get("memory")
    return Cohort(
        name=name,
        count=_count(table, where),
        share=number(table["share"], f"{where}.share", _SHARE) if "share" in table else None,
        site=site,
        samples=distribution(table.get("samples"), f"{where}.samples", _SAMPLES),
        speed=speed,
        downlink=down,
        uplink=up,
        hours=hours,
        begins=begins,
        behaviour=behaviour,
        memory=None if memory is None else distribution(memory, f"{where}.memory", MEMORY),
        power=numbers["power"],
        price=numbers["price"],
        line_price=numbers["line-price"],
    )


def _rates(
    path: Path, table: dict[str, object], where: str
) -> tuple[Distribution, Distribution, Distribution | None]:
    """Return speed, downlink and uplink; None where the uplink is the same line."""
    if "capacity" in table:
        _exclude(table, "capacity", ("speed", "bandwidth", "downlink", "uplink"), where)
        return *capacity(_beside(path, table["capacity"], f"{where}.capacity")), None
    speed = distribution(table.get("speed"), f"{where}.speed", _SPEED)
    if not table.keys() & {"downlink", "uplink"}:
        return speed, distribution(table.get("bandwidth"), f"{where}.bandwidth", _RATE), None
    _exclude(table, "downlink and uplink", ("bandwidth",), where)
    down, up = (distribution(table.get(k), f"{where}.{k}", _RATE) for k in ("downlink", "uplink"))
    return speed, down, up


def _online(
    path: Path, value: object, where: str
) -> tuple[Distribution | None, Distribution, Availability | None]:
    """Return hours a day, when they begin, and the trace: hours and trace None is always."""
    anytime = Constant(0.0)
    if value == "always":
        return None, anytime, None
    if not isinstance(value, dict):
        raise SettingsError(where, 'a table, or "always"', value)
    check_keys(value, {"hours", "from", "trace"}, where)
    if "trace" in value:
        _exclude(value, "trace", ("hours", "from"), where)
        return None, anytime, Availability.read(_beside(path, value["trace"], f"{where}.trace"))
    hours = distribution(value.get("hours"), f"{where}.hours", _HOURS)
    return hours, distribution(value.get("from", 0.0), f"{where}.from", _CLOCK), None


def _exclude(table: dict[str, object], key: str, others: Sequence[str], where: str) -> None:
    for other in others:
        if other in table:
            raise SettingsError(f"{where}.{other}", f"nothing beside {key}", table[other])


def _count(table: dict[str, object], where: str) -> int | None:
    count = table.get("count")
    if count is None:
        return None
    if type(count) is not int or not 1 <= count < _MOST:
        raise SettingsError(f"{where}.count", f"an integer, 1 to {_MOST - 1}", count)
    return count


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or (value and not NAME.fullmatch(value)):
        raise SettingsError(where, "a name of letters, digits, - and _", value)
    return value


def _beside(path: Path, value: object, where: str) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise SettingsError(where, "the name of a file beside fleet.toml", value)
    return path.parent / value


def _check_sizes(path: Path, cohorts: Sequence[Cohort]) -> None:
    """Refuse a mixture of counts and shares: what would a share be of?"""
    for cohort in cohorts:
        first = cohorts[0]
        wanted = "count" if first.count is not None else "share"
        if (cohort.count is None) == (cohort.share is None) or (
            (cohort.count is None) != (first.count is None)
        ):
            said = [key for key in ("count", "share") if getattr(cohort, key) is not None]
            where, got = f"{path}: cohorts.{cohort.name}", " and ".join(said) or "neither"
            like = "count or share" if cohort is first else f"{wanted}, as cohort {first.name}"
            raise SettingsError(where, like, got, "count in all cohorts, or share in all")
    if sum(cohort.count or 0 for cohort in cohorts) >= _MOST:
        raise SettingsError(f"{path}: cohorts", f"fewer than {_MOST} clients", "more")
