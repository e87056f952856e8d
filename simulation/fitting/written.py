"""A description as the text of a fleet.toml that reads as the same description, to nine digits.

What stood in files beside the first one, recorded traces, cannot be written and is refused.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

from ..fleet.declared import Expect, Pool, Prices, Server, Site
from ..fleet.distributions import (
    Choice,
    Clipped,
    Constant,
    LogNormal,
    LogUniform,
    Normal,
    Recorded,
    Uniform,
)
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..fleet.description import Cohort, Description
    from ..fleet.distributions import Distribution

_NUMBERS = ("power", "price", "line_price")
_BEHAVIOUR = ("jitter", "spread", "dropout", "crash")


def text(description: Description, about: Iterable[str] = ()) -> str:
    """Return the file.

    Args:
        description: The fleet.
        about: Lines of a comment at its head.

    Raises:
        SettingsError: A cohort has a recorded trace.
    """
    lines = [f"# {line}".rstrip() for line in about]
    if description.seed is not None:
        lines.append(f"seed = {description.seed}")
    for cohort in description.cohorts:
        lines += ["", f"[cohorts.{cohort.name}]", *_cohort(cohort, str(description.path))]
    for name, site in description.sites.items():
        lines += _table(f"sites.{name}", site, Site())
    lines += _table("server", description.server, Server())
    lines += _table("prices", description.prices, Prices())
    for name, pool in description.pools.items():
        lines += _table(f"pools.{name}", pool, Pool(kind="", count=0))
    lines += _table("expect", description.expect, Expect())
    return "\n".join(lines).lstrip("\n") + "\n"


def _cohort(cohort: Cohort, path: str) -> Iterator[str]:
    where = f"{path}: cohorts.{cohort.name}"
    if cohort.behaviour.trace is not None:
        move = "fit without this file, or say hours and from"
        raise SettingsError(f"{where}.online.trace", "hours that can be written", "a trace", move)
    size = "share" if cohort.count is None else "count"
    yield f"{size} = {_number(getattr(cohort, size))}"
    if cohort.site:
        yield f'site = "{cohort.site}"'
    for key in ("samples", "speed", "memory"):
        if (found := getattr(cohort, key)) is not None:
            yield f"{key} = {quantity(found)}"
    if cohort.uplink is None:
        yield f"bandwidth = {quantity(cohort.downlink)}"
    else:
        yield f"downlink = {quantity(cohort.downlink)}"
        yield f"uplink = {quantity(cohort.uplink)}"
    for owner, names in ((cohort.behaviour, _BEHAVIOUR), (cohort, _NUMBERS)):
        for name in names:
            if value := getattr(owner, name):
                yield f"{name.replace('_', '-')} = {_number(value)}"
    if cohort.hours is not None:
        hours = quantity(cohort.hours)
        begins = quantity(cohort.begins)
        yield f"online = {{ hours = {hours}, from = {begins} }}"


def quantity(found: Distribution) -> str:
    """Return a distribution as quantities.py reads it."""
    clips = ""
    if isinstance(found, Clipped):
        clips = f", least = {_number(found.least)}, most = {_number(found.most)}"
        found = found.inner
    match found:
        case Constant(value):
            return _number(value)
        case Uniform(low, high):
            said = f"uniform = [{_number(low)}, {_number(high)}]"
        case LogUniform(low, high):
            said = f"loguniform = [{_number(low)}, {_number(high)}]"
        case LogNormal(median, sigma):
            said = f"lognormal = {{ median = {_number(median)}, sigma = {_number(sigma)} }}"
        case Normal(mean, deviation):
            said = f"normal = {{ mean = {_number(mean)}, deviation = {_number(deviation)} }}"
        case Choice(values, weights):
            said = f"choice = {_list(values)}, weights = {_list(weights)}"
        case Recorded():
            said = f"each = {_list(found.values.tolist())}"
        case _:
            raise SettingsError("fleet", "a distribution of fleet.toml", type(found).__name__)
    return f"{{ {said}{clips} }}"


def _table(name: str, found: object, default: object) -> list[str]:
    """Return the lines of a table, or none where it says nothing."""
    lines = []
    for field in fields(found):  # type: ignore[arg-type]
        value = getattr(found, field.name)
        if value is None or value == getattr(default, field.name):
            continue
        said = f'"{value}"' if isinstance(value, str) else _number(value)
        lines.append(f"{field.name.replace('_', '-')} = {said}")
    return ["", f"[{name}]", *lines] if lines else []


def _list(values: Iterable[float]) -> str:
    return f"[{', '.join(map(_number, values))}]"


def _number(value: float) -> str:
    """Return a number of TOML, with nine digits."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise SettingsError("fleet", "finite numbers", value)
    return repr(float(f"{value:.9g}"))
