"""`simulate`: from an app or a task and a few numbers to a finished run.

The settings come, in falling precedence, from the caller (the flags of `umbel simulate`), from
`[tool.umbel]` of the app, from `[tool.flwr.app.config]`, and from the defaults of `KEYS`.
"""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .drops import parse
from .federation import Federation, Result
from ..clients.app import AppRef
from ..clients.child import Child, InProcess
from ..protocol.errors import SettingsError
from ..protocol.plan import Params
from ..server.settings import RunSettings
from ..strategies.fedavg import FedAvg
from ..strategies.places import umbel_home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..clients.policy import Policy
    from ..server.ledger import RoundRecord
    from ..strategies.task import Task

Value = bool | int | float | str

KEYS: dict[str, Value] = {
    "clients": 5,
    "rounds": 10,
    "seed": 0,
    "cohort": 0,
    "attempts": 1,
    "deadline": 600.0,
    "trip": 60.0,
    "value-range": 1.0,
    "weight-cap": 1024,
    "min-members": 3,
    "min-survivors": 3,
    "alpha": 0.1,
    "delta": 0.1,
    "server-learning-rate": 1.0,
}
"""Settings of a run with their defaults; any other key is the task's own and enters `config`.

`cohort` 0 means every client. The two floors are the simulator's, 3; a device's own defaults
are 5 and 4.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller asks for; None leaves the app's setting or the default."""

    clients: int | None = None
    rounds: int | None = None
    seed: int | None = None
    secure: bool = True
    drops: Sequence[str] = ()
    """Each `BOUNDARY:N[@ROUND]` (drops.py)."""
    settings: Mapping[str, Value] | None = None
    """Any key of `KEYS`, or of the task's own configuration."""
    policy: Policy | None = None
    """The policy of every client; None is the one that the simulator writes."""
    in_process: bool = False
    """Whether user code runs here and not in a child: faster to start, no protection."""
    run: str | None = None
    home: Path | None = None


def simulate(
    app: Path | str | Task,
    options: Options | None = None,
    observe: Callable[[RoundRecord], None] = lambda _record: None,
) -> Result:
    """Run an app's federation in this process and return what came of it.

    Args:
        app: An app directory with a pyproject.toml, or a task (which then runs in this process).
        options: What to change about it.
        observe: Called with every record after it is committed.

    Returns:
        The result; a run that ended in a failed round has its cause in `failure`.

    Raises:
        SettingsError: A setting is unknown or outside its range.
        Refused: The task cannot be loaded.
        StateError: The run's directory cannot be written.
    """
    asked = options or Options()
    reference = AppRef.read(Path(app)) if isinstance(app, Path | str) else None
    table, config = _settings(reference, asked)
    clients = int(table["clients"])
    if clients < 1:
        raise SettingsError("clients", "1 or more", clients)
    settings = _run_settings(table, config, asked, _name(app, reference))
    drops = [parse(text, clients, secure=asked.secure) for text in asked.drops]
    user_code = _trainer(app, reference, in_process=asked.in_process)
    with closing(user_code) as trainer:
        return Federation(
            trainer,
            settings,
            clients=clients,
            home=asked.home or umbel_home(),
            rule=FedAvg(server_learning_rate=float(table["server-learning-rate"])),
            policy=asked.policy,
            drops=drops,
            observe=observe,
        ).run()


def _trainer(
    app: Path | str | Task, reference: AppRef | None, *, in_process: bool
) -> Child | InProcess:
    if reference is None:
        if isinstance(app, Path | str):
            raise SettingsError("app", "an app directory or a task", app)
        return InProcess(app)
    return InProcess(reference) if in_process else Child(reference)


def _settings(
    reference: AppRef | None, asked: Options
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the run's own settings and the task's configuration, by precedence."""
    given: dict[str, Value] = {
        **(reference.settings if reference else {}),
        **(asked.settings or {}),
    }
    for name in ("clients", "rounds", "seed"):
        value = getattr(asked, name)
        if value is not None:
            given[name] = value
    table = dict(KEYS)
    for key, default in KEYS.items():
        if key in given:
            table[key] = _typed(key, given.pop(key), default)
    return table, {**given, "seed": table["seed"]}


def _typed(key: str, value: Value, default: Value) -> Value:
    """Return a setting in the type of its default; an integer may stand for a float."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise SettingsError(key, type(default).__name__, value)
    return value


def _run_settings(
    table: Mapping[str, Value], config: Mapping[str, Value], asked: Options, name: str
) -> RunSettings:
    params = Params(
        alpha=float(table["alpha"]),
        delta=float(table["delta"]),
        value_range=float(table["value-range"]),
        weight_cap=int(table["weight-cap"]),
        min_members=int(table["min-members"]),
        min_survivors=int(table["min-survivors"]),
    )
    return RunSettings(
        run=asked.run or f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        rounds=int(table["rounds"]),
        scheme="A" if asked.secure else "plain",
        params=params,
        config=config,
        seed=int(table["seed"]),
        cohort=int(table["cohort"]) or None,
        deadline=float(table["deadline"]),
        trip=float(table["trip"]),
        attempts=int(table["attempts"]),
    )


def _name(app: Path | str | Task, reference: AppRef | None) -> str:
    """Return what the run's id begins with: the app's directory, or the task's class."""
    text = reference.directory.name if reference else type(app).__name__
    return "".join(c for c in text if c.isascii() and (c.isalnum() or c in "-_")) or "run"
