"""From an app's directory and what is asked of it to the settings of a run; nothing is started.

A setting that the app declares in its run-config goes to Flower with the run, as `flwr run -c`
would send it. Any other must be one of run_config.py and reaches the ServerApp by its environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .consistency import check_clients
from .run_config import absolute, run_settings, tables
from .run_rule import chosen
from ..protocol.errors import SettingsError
from ..strategies.app import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .run_config import Value
    from .settings import RunSettings

ROUNDS = ("rounds", "num-server-rounds")
"""How an app may call its number of rounds, our name first."""
FLOORS: dict[str, Value] = {"min-members": 5, "min-survivors": 4}
"""What a device's policy demands where nobody has changed it: a run that promises less is refused.
A federation of `umbel up` writes smaller ones into the policies that it makes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AppPlan:
    """A run of an app of which Umbel drives the rounds."""

    app: Path
    clients: int
    """How many nodes it waits for."""
    secure: bool
    config: Mapping[str, Value]
    """Overrides of the app's own run-config."""
    settings: Mapping[str, Value]
    """The run's other settings."""


def plan_app(
    app: Path, given: Mapping[str, Value], clients: int | None, *, secure: bool
) -> AppPlan:
    """Check what is asked of an app.

    Args:
        app: Its directory.
        given: Settings by key.
        clients: How many nodes it waits for; None for what the app says.
        secure: Whether masks are on.

    Raises:
        SettingsError: The app or a setting is wrong, or contradicts another.
    """
    declared, own = read_tables(app)
    given = with_plan(app, given, declared, own)
    if "clients" in given:
        raise SettingsError("run-config", "--clients for the number of clients", "clients")
    more: dict[str, Value] = {} if clients is None else {"clients": clients}
    config, rest = split(given, declared)
    said = {*declared, *own, *rest}
    rest = {key: floor for key, floor in FLOORS.items() if secure and key not in said} | rest
    table, settings = checked(declared, own, config, {**rest, **more}, secure=secure)
    wanted = int(table["clients"])
    check_clients(settings, wanted)
    return AppPlan(
        app=app, clients=wanted, secure=secure, config=config,
        settings={**rest, "clients": wanted},
    )  # fmt: skip


def with_plan(
    app: Path,
    given: Mapping[str, Value],
    declared: Mapping[str, Value],
    own: Mapping[str, Value],
) -> dict[str, Value]:
    """Return what is asked, with the plan's file where its ServerApp will find it.

    A file that the caller names lies in the working directory, one that the app names in its own.
    """
    asked = dict(given)
    absolute(asked, Path.cwd(), "plan")
    said: dict[str, Value] = {key: v for key, v in {**declared, **own}.items() if key == "plan"}
    absolute(said, app.absolute(), "plan")
    return {**said, **asked}


def split(
    given: Mapping[str, Value], declared: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the overrides of what an app declares, and the other settings."""
    config = {key: value for key, value in given.items() if key in declared}
    return config, {key: value for key, value in given.items() if key not in declared}


def checked(
    declared: Mapping[str, Value], own: Mapping[str, Value], config: Mapping[str, Value],
    rest: Mapping[str, Value], *, secure: bool,
) -> tuple[dict[str, Value], RunSettings]:  # fmt: skip
    """Return the table of a run, and its settings, which its ServerApp will find too.

    Args:
        declared: The app's run-config.
        own: Its `[tool.umbel]`; an app without one counts its rounds in its own way.
        config: Overrides of `declared`.
        rest: Settings beside them.
        secure: Whether masks are on.

    Raises:
        SettingsError: One is wrong.
    """
    merged = {**declared, **own, **config} if own else _rounds_of({**declared, **config})
    merged.pop("task", None)
    table, extra = tables(merged, rest)
    rule = chosen(table, {*merged, *rest})
    settings = run_settings(table, extra, run="run", secure=secure, rule=rule)
    return table, settings


def _rounds_of(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the number of rounds of an app that names it as Flower's apps do."""
    found = next((settings[key] for key in ROUNDS if key in settings), None)
    return {} if found is None else {ROUNDS[0]: found}
