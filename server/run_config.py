"""The settings of a run by name: what an app, a flag or Flower's run-config may say.

One table for the simulator and for a ServerApp. Precedence: the caller (flags, run-config
overrides), then the environment (`UMBEL_ROUNDS` and its like), then `[tool.umbel]` of the app, then
`[tool.flwr.app.config]`, then `KEYS`. What is in no table here is the task's own and enters every
round's `config`.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from . import run_rule
from .run_plan import RunPlan
from .settings import RunSettings
from ..host.figures import nearest
from ..protocol.errors import SettingsError
from ..protocol.plan import Params
from ..strategies import counted
from ..strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..strategies.server_rules import Rule

Value = bool | int | float | str
_DIGITS = 20
"""Characters of the longest integer of 64 bits; beyond it only a float can be meant."""

SIMULATION: dict[str, Value] = {
    "tier": "auto",
    "workers": 0,
    "hand-over": "auto",
    "test-every": 1,
    "client-test-every": 0,
    "fleet": "",
    "buffer": 0,
    "staleness": "polynomial 0.5",
}
"""Settings that a simulation reads and a deployment passes over (simulation/simulated.py)."""
KEYS: dict[str, Value] = {
    "clients": 5,
    "rounds": 10,
    "seed": 0,
    "cohort": 0,
    "dropout": 0.0,
    "attempts": 1,
    "deadline": 600.0,
    "trip": 0.0,
    "rejoin": 0.0,
    "value-range": 1.0,
    "weight-cap": 1024,
    "min-members": 3,
    "min-survivors": 3,
    "alpha": 0.1,
    "delta": 0.1,
    **run_rule.KEYS,
    **SIMULATION,
    "evaluators": 0,
    counted.HISTOGRAM: 0,
    counted.CLIPPED: False,
    "plan": "",
    "pause-on": "",
}
"""Settings of a run with their defaults.

`cohort` 0 means every client, `dropout` 0 what earlier rounds showed, `trip` 0 parts of `deadline`
(deadlines.py), `evaluators` 0 as many processes as are worth it (evaluators.py). The two floors are
the simulator's and `umbel up`'s, 3; a device's own defaults are 5 and 4. The server step's keys are
those of run_rule.py. `plan` is a file of `umbel plan`, `pause-on` signals with commas between
(docs/planning.md).
"""

TRAINING = ("lr", "local-epochs", "batch-size", "proximal-mu")
"""Keys of `config` that change how a task trains."""


def from_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings that variables say: `UMBEL_VALUE_RANGE=2.0` is `value-range`."""
    names = {key: f"UMBEL_{key.upper().replace('-', '_')}" for key in (*KEYS, *TRAINING)}
    return {key: parsed(environment[name]) for key, name in names.items() if environment.get(name)}


def parsed(text: str) -> Value:
    """Return the value that a text says: a flag, a number, or the text without its quotes."""
    if text in {"true", "false"}:
        return text == "true"
    kinds = (int, float) if len(text) <= _DIGITS else (float,)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")


def tables(
    own: Mapping[str, Value], given: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the run's settings, and the task's configuration.

    Args:
        own: What the app's pyproject.toml says.
        given: What the caller says; it may name keys of `KEYS`, `TRAINING` and `own` only.

    Raises:
        SettingsError: A key is unknown, or a value has another type or lies outside its range.
    """
    known = {*KEYS, *TRAINING, *own}
    for key in given:
        if key not in known:
            expected = f"one of {', '.join(sorted(known))}"
            raise SettingsError("run-config", expected, key, nearest(key, known))
    merged: dict[str, Value] = {**own, **given}
    table = dict(KEYS)
    for key, default in KEYS.items():
        if key in merged:
            table[key] = _typed(key, merged.pop(key), default)
    config = {**merged, "seed": table["seed"], **counted.asked(table)}
    Settings.of(config)  # what no client could train with ends here and not at every client
    return table, config


def run_settings(
    table: Mapping[str, Value],
    config: Mapping[str, Value],
    *,
    run: str,
    secure: bool,
    rule: Rule,
    plan: RunPlan | None = None,
) -> RunSettings:
    """Return the settings of a run from the two tables and its server step.

    `plan` is what a run that goes on keeps of its own; else the file that the table names is read.

    Raises:
        SettingsError: A value lies outside its range, or the plan is another run's.
    """
    if int(table["evaluators"]) < 0:
        raise SettingsError("evaluators", "0 or more", table["evaluators"])
    params = Params(
        alpha=float(table["alpha"]),
        delta=float(table["delta"]),
        value_range=float(table["value-range"]),
        weight_cap=int(table["weight-cap"]),
        min_members=int(table["min-members"]),
        min_survivors=int(table["min-survivors"]),
    )
    if plan is None and table["plan"]:
        plan = RunPlan.read(Path(str(table["plan"])))
    made = RunSettings(
        run=run,
        rounds=int(table["rounds"]),
        scheme="A" if secure else "plain",
        params=params,
        config=config,
        seed=int(table["seed"]),
        cohort=int(table["cohort"]) or None,
        deadline=float(table["deadline"]),
        trip=float(table["trip"]) or None,
        dropout=float(table["dropout"]),
        rejoin=float(table["rejoin"]),
        attempts=int(table["attempts"]),
        rule=rule,
        plan=plan,
        pause_on=_signals(str(table["pause-on"])),
    )
    if plan is not None:
        plan.check(made, int(table["clients"]), int(table["buffer"]))
    return made


def absolute(settings: dict[str, Value], folder: Path, *keys: str) -> None:
    """Make the files that settings name independent of where a process runs."""
    for key in keys:
        if isinstance(file := settings.get(key), str) and file:
            settings[key] = str(folder / file)


def _signals(text: str) -> tuple[str, ...]:
    """Return the signals that a text names, each once."""
    names = (name.strip() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def new_run_id(name: str) -> str:
    """Return an id for a run of the app `name`: name, UTC time and two random bytes.

    An id is at most 64 characters long and begins with a letter or digit.
    """
    plain = "".join(c for c in name if c.isascii() and (c.isalnum() or c in "-_"))
    start = plain.lstrip("-_")[:40] or "run"
    return f"{start}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _typed(key: str, value: Value, default: Value) -> Value:
    """Return a setting in the type of its default; an integer may stand for a float."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise SettingsError(key, type(default).__name__, value)
    return value
