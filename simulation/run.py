"""`simulate`: from an app or a task and a few numbers to a finished run.

The settings come, in falling precedence, from the caller (the flags of `umbel simulate`), from
`[tool.umbel]` of the app, from `[tool.flwr.app.config]`, and from the defaults of
server/run_config.py.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .drops import parse
from .federation import Federation, Result
from ..clients.child import Child, InProcess
from ..host.places import umbel_home
from ..protocol.errors import SettingsError
from ..server.consistency import check_clients
from ..server.run_config import Value, new_run_id, run_settings, tables
from ..server.run_rule import chosen
from ..strategies.app import AppRef
from ..strategies.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .drops import Drop
    from .link import Link
    from ..clients.policy import Policy
    from ..server.ledger import RoundRecord
    from ..server.settings import RunSettings


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
    init: Path | None = None
    """A safetensors file with the initial model; None draws it from the seed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run whose settings have been checked, before anything is written."""

    app: AppRef | Task
    settings: RunSettings
    clients: int
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
                init=self.asked.init,
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
    own, given = known.settings if isinstance(known, AppRef) else {}, _given(asked)
    table, config = tables(own, given)
    run = asked.run or new_run_id(_name(known))
    rule = chosen(table, {*own, *given})
    settings = run_settings(table, config, run=run, secure=asked.secure, rule=rule)
    clients = int(table["clients"])
    check_clients(settings, clients)
    return Plan(
        app=known,
        settings=settings,
        clients=clients,
        drops=[parse(t, clients, settings.rounds, secure=asked.secure) for t in asked.drops],
        asked=asked,
    )


def _given(asked: Options) -> dict[str, Value]:
    """Return what the caller says: the named options over the settings by key."""
    given = dict(asked.settings or {})
    for name in ("clients", "rounds", "seed"):
        value = getattr(asked, name)
        if value is not None:
            given[name] = value
    return given


def _name(app: AppRef | Task) -> str:
    """Return what the run's id begins with: the app's directory, or the task's class."""
    return app.directory.name if isinstance(app, AppRef) else type(app).__name__
