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
from ..strategies.task import Task
from ..strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .drops import Drop
    from .link import Link
    from ..clients.policy import Policy
    from ..server.ledger import RoundRecord

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


TRAINING = ("lr", "local-epochs", "batch-size")
"""Keys of `config` that change how a task trains."""


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
    """Any key of `KEYS` or `TRAINING`, or one that the app's pyproject.toml sets."""
    policy: Policy | None = None
    """The policy of every client; None is the one that the simulator writes."""
    in_process: bool = False
    """Whether user code runs here and not in a child: faster to start, no protection."""
    run: str | None = None
    home: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run whose settings have been checked, before anything is written."""

    app: AppRef | Task
    settings: RunSettings
    clients: int
    rule: FedAvg
    drops: Sequence[Drop]
    asked: Options

    def run(
        self,
        observe: Callable[[RoundRecord], None] = lambda _record: None,
        watch: Callable[[Link], None] = lambda _link: None,
    ) -> Result:
        """Run it: `observe` is called with every record, `watch` before every step of the link."""
        app, here = self.app, self.asked.in_process
        user_code = InProcess(app) if here or isinstance(app, Task) else Child(app)
        with closing(user_code) as trainer:
            federation = Federation(
                trainer,
                self.settings,
                clients=self.clients,
                home=self.asked.home or umbel_home(),
                rule=self.rule,
                policy=self.asked.policy,
                drops=self.drops,
                observe=observe,
            )
            federation.link.watch = watch
            return federation.run()


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
    return plan(app, options).run(observe)


def plan(app: Path | str | Task, options: Options | None = None) -> Plan:
    """Return the run that `simulate` would run.

    Raises:
        SettingsError: A setting is unknown or outside its range.
    """
    asked = options or Options()
    if not isinstance(app, Path | str | Task):
        raise SettingsError("app", "an app directory or a umbel.Task", type(app).__name__)
    known = app if isinstance(app, Task) else AppRef.read(Path(app))
    table, config = _settings(known, asked)
    settings = _run_settings(table, config, asked, _name(known))
    clients, least = int(table["clients"]), max(int(table["cohort"]), settings.params.min_members)
    if clients < least:
        raise SettingsError("clients", f"at least {least}, for a cohort of that size", clients)
    return Plan(
        app=known,
        settings=settings,
        clients=clients,
        rule=FedAvg(server_learning_rate=float(table["server-learning-rate"])),
        drops=[parse(t, clients, settings.rounds, secure=asked.secure) for t in asked.drops],
        asked=asked,
    )


def _settings(app: AppRef | Task, asked: Options) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the run's own settings and the task's configuration, by precedence."""
    own: Mapping[str, Value] = app.settings if isinstance(app, AppRef) else {}
    for key in asked.settings or {}:
        if key not in (known := {*KEYS, *TRAINING, *own}):
            raise SettingsError("run-config", f"one of {', '.join(sorted(known))}", key)
    given: dict[str, Value] = {**own, **(asked.settings or {})}
    for name in ("clients", "rounds", "seed"):
        value = getattr(asked, name)
        if value is not None:
            given[name] = value
    table = dict(KEYS)
    for key, default in KEYS.items():
        if key in given:
            table[key] = _typed(key, given.pop(key), default)
    config = {**given, "seed": table["seed"]}
    Settings.of(config)  # what no client could train with ends here and not at every client
    return table, config


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


def _name(app: AppRef | Task) -> str:
    """Return what the run's id begins with: the app's directory, or the task's class.

    An id is at most 64 characters long and begins with a letter or digit.
    """
    text = app.directory.name if isinstance(app, AppRef) else type(app).__name__
    plain = "".join(c for c in text if c.isascii() and (c.isalnum() or c in "-_"))
    return plain.lstrip("-_")[:40] or "run"
