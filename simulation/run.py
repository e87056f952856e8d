"""`simulate`: from an app or a task and a few numbers to a finished run.

The settings come, in falling precedence, from the caller (the flags of `umbel simulate`), from
`[tool.umbel]` of the app, from `[tool.flwr.app.config]`, and from the defaults of
server/run_config.py.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .drops import parse
from .engine.choosing import AUTO
from .engine.hand_over import HandOver, hand_over
from .engine.replicas import group, world
from .federation import Federation, Result
from .fleet.toml import read
from .population import Population, task_of
from .seats import Cohort
from .simulated import Simulated
from .tier_choice import tier_for
from ..clients.child import Child, InProcess
from ..host.places import umbel_home
from ..protocol.errors import SettingsError, StateError
from ..server.consistency import check_clients
from ..server.run_config import Value, absolute, new_run_id, run_settings, tables
from ..server.run_plan import RunPlan
from ..server.run_rule import chosen
from ..server.settings import SIMULATION
from ..strategies.app import AppRef
from ..strategies.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .drops import Drop
    from .fleet.devices import Fleet
    from .link import Link
    from ..clients.policy import Policy
    from ..server.ledger import RoundRecord, RunRecord
    from ..server.settings import RunSettings
    from ..strategies.trainer import Trainer


MANY = 1000
"""From so many client trainings on a trial finds who trains the clients of sessions."""


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
    fleet: Path | str | Fleet | None = None
    """What devices the clients are: a fleet.toml, or an object with the methods of `Fleet`."""
    resume: bool = False
    """Whether `run` is there already and goes on where it stands."""
    plan: RunPlan | None = None
    """What a run that goes on keeps of its plan, in place of the setting `plan`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run whose settings have been checked, before anything is written."""

    app: AppRef | Task
    settings: RunSettings
    clients: int
    drops: Sequence[Drop]
    simulated: Simulated
    hand_over: HandOver
    asked: Options

    def run(
        self,
        observe: Callable[[RoundRecord], None] = lambda _record: None,
        watch: Callable[[Link], None] = lambda _link: None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> Result:
        """Run it.

        Args:
            observe: Called with every record.
            watch: Called before every step of the link, where clients have sessions.
            say: Called with lines about what is chosen, and what takes long.
        """
        population = self._population(observe, say)
        if population is None:
            return self._sessions(observe, watch, say, self.asked.home or umbel_home())
        say(str(self.hand_over))
        place = world()
        if place is not None and place.rank:
            raise SettingsError("RANK", "0: the other processes call Plan.follow()", place.rank)
        if place is not None:
            population.ranks = group(place)
        return population.run(init=self.asked.init, resume=self.asked.resume)

    def follow(self, say: Callable[[str], None] = lambda _line: None) -> bool:
        """Train shares for another process's run, where torchrun has started this one for that.

        Returns:
            Whether it was so; it returns when that process has come to its end.

        Raises:
            StateError: Another process is gone.
        """
        place = world()
        if place is None or not place.rank:
            return False
        population = self._population()
        if population is not None:
            ranks = group(place)
            say(f"process {place.rank} of {place.size} trains for process 0; {ranks}")
            population.follow(ranks)
        return True

    def _population(
        self,
        observe: Callable[[RoundRecord], None] = lambda _record: None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> Population | None:
        """Return the run's clients where they are numbers; None where each has a session.

        Raises:
            SettingsError: Each has a session, and there are several processes.
        """
        task = None if self.hand_over.sessions else task_of(self.app)
        place = world()
        if task is None and place is not None:
            raise SettingsError("WORLD_SIZE", "1 for a run with sessions", place.size)
        if task is None:
            return None
        return Population(
            task,
            self.settings,
            self.simulated,
            home=self.asked.home or umbel_home(),
            app=self.app if isinstance(self.app, AppRef) else None,
            way=str(self.hand_over),
            observe=observe,
            say=say,
        )

    def _sessions(
        self,
        observe: Callable[[RoundRecord], None],
        watch: Callable[[Link], None],
        say: Callable[[str], None],
        home: Path,
    ) -> Result:
        """Run it with a session for each client."""
        for key in ("fleet", "buffer"):
            if getattr(self.simulated, key):
                why = f"rows over sessions: {self.hand_over.why}"
                raise SettingsError(key, "a run without sessions", why, "--secure off")
        app, here = self.app, self.asked.in_process
        user_code = InProcess(app) if here or isinstance(app, Task) else Child(app)
        with closing(user_code) as trainer, self._cohort(trainer, say) as (cohort, why):
            federation = Federation(
                trainer if cohort is None else cohort,
                self.settings,
                clients=self.clients,
                home=home,
                init=self.asked.init,
                policy=self.asked.policy,
                drops=self.drops,
                observe=observe,
                say=say,
            )
            federation.link.watch = watch
            federation.test_every = self.simulated.test_every
            return replace(federation.run(), trained_by=why)

    @contextmanager
    def _cohort(
        self, own: Trainer, say: Callable[[str], None]
    ) -> Iterator[tuple[Cohort | None, str]]:
        """Give who trains the clients of sessions together, and why; None where each does alone.

        A small run gains nothing by a trial, and keeps user code in a child of its own: a crash
        costs one client.
        """
        wanted, run = self.simulated.tier, self.settings
        trainings = (run.cohort or self.clients) * run.rounds
        alone = self.asked.in_process or (wanted == AUTO and trainings < MANY)
        task = None if alone else task_of(self.app)
        if task is None:
            yield None, ""
            return
        say(str(self.hand_over))
        app = self.app if isinstance(self.app, AppRef) else None
        model = own.arrays(run.seed)
        found = tier_for(task, model, run, self.simulated, wanted=wanted, app=app, say=say)
        with closing(found.tier) as tier:
            yield Cohort(tier, task, own), found.reason


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
    own, given = _own(known), _given(asked)
    if (counted := _counted(asked, own, given)) is not None:
        given["clients"] = counted
    table, config = tables(own, given)
    run = asked.run or new_run_id(_name(known))
    rule = chosen(table, {*own, *given})
    settings = run_settings(table, config, run=run, secure=asked.secure, rule=rule, plan=asked.plan)
    clients = int(table["clients"])
    check_clients(settings, clients)
    devices = None if isinstance(asked.fleet, Path | str) else asked.fleet
    simulated = Simulated.of(table, clients, _started(known, {**own, **given}), devices)
    simulated.check(settings)
    drops = [parse(t, clients, settings.rounds, secure=asked.secure) for t in asked.drops]
    way = hand_over(
        settings, simulated.hand_over, drops=bool(drops), policy=asked.policy is not None
    )
    return Plan(
        app=known,
        settings=settings,
        clients=clients,
        drops=drops,
        simulated=simulated,
        hand_over=way,
        asked=asked,
    )


def taken_up(record: RunRecord, home: Path) -> Plan:
    """Return the plan of a simulated run that goes on as it was started.

    Raises:
        StateError: It was started from Python, its app is another by now, or the record is damaged.
        SettingsError: Its app has changed so that the run's settings do not fit it.
    """
    said = record.config[SIMULATION]
    app, settings = (said.get(key) for key in ("app", "settings"))
    if not isinstance(app, str) or not isinstance(settings, dict):
        move = "umbel.simulate(task, umbel.Options(run=..., resume=True)) goes on with it"
        raise StateError(f"run {record.run}", "a run of an app", "a run of a task", move)
    _unchanged(Path(app), said.get("sources"))
    kept = RunPlan.kept_by(record)
    options = Options(
        secure=False, settings=settings, run=record.run, home=home, resume=True, plan=kept
    )
    return plan(Path(app), options)


def _unchanged(app: Path, digest: object) -> None:
    """Refuse an app whose code or settings are not those that the run began with."""
    found = AppRef.read(app).digest()
    if digest not in {None, found}:  # none in a run of an earlier release
        raise StateError(
            f"app {app}", f"the sources {str(digest)[:16]} that the run began with", found[:16],
            "restore the app, or start a new run of it",
        )  # fmt: skip


def _started(app: AppRef | Task, said: Mapping[str, Value]) -> dict[str, object]:
    """Return what the ledger keeps so that `umbel runs resume` can start the run again."""
    if not isinstance(app, AppRef):
        return {}
    return {"app": str(app.directory), "settings": dict(said), "sources": app.digest()}


def _given(asked: Options) -> dict[str, Value]:
    """Return what the caller says: the named options over the settings by key."""
    given = dict(asked.settings or {})
    for name in ("clients", "rounds", "seed"):
        value = getattr(asked, name)
        if value is not None:
            given[name] = value
    if isinstance(asked.fleet, Path | str):
        given["fleet"] = str(asked.fleet)
    absolute(given, Path.cwd(), "fleet", "plan")
    return given


def _counted(asked: Options, own: Mapping[str, Value], given: Mapping[str, Value]) -> int | None:
    """Return how many clients the fleet counts, where the caller does not say; None: it does not.

    It stands above what an app says that did not choose the fleet, as in a plan.
    """
    if "clients" in given:
        return None
    if asked.fleet is not None and not isinstance(asked.fleet, Path | str):
        return asked.fleet.clients
    named = given.get("fleet") or ("" if "clients" in own else own.get("fleet"))
    return read(Path(str(named))).clients if named else None


def _own(app: AppRef | Task) -> dict[str, Value]:
    """Return what the app says of itself; files that it names lie in its directory."""
    if not isinstance(app, AppRef):
        return {}
    own = dict(app.settings)
    absolute(own, app.directory, "fleet", "plan")
    return own


def _name(app: AppRef | Task) -> str:
    """Return what the run's id begins with: the app's directory, or the task's class."""
    return app.directory.name if isinstance(app, AppRef) else type(app).__name__
