"""A simulated run whose clients are numbers: trained by a tier, summed, without sessions.

What federation.py is for runs in which every client is a device with keys, certificate and policy,
this is for runs that need none of it: many clients, no masks. Coordinator, server step, ledger and
rounds on the disk are the same; a client is its number, and costs nothing while it does not train.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .clock.choosing import Pace, clock_for
from .engine.answers import Groups
from .engine.central import CentralTest
from .engine.replicas import follow
from .engine.rounds import CLOCK, VERSIONS, Course, Rounds, Stopwatch, summed
from .engine.row_buffer import RowBuffer
from .federation import TIMELESS, Result, node_id
from .fleet.description import Description
from .fleet.devices import Load
from .tier_choice import tier_for
from .. import __version__
from ..clients.child import boundary
from ..host.reported import computed_by
from ..protocol.errors import StateError
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..server.core.segments import Shelf
from ..server.group_commit import GroupCommit
from ..server.history import take_over
from ..server.initial import first_model
from ..server.ledger import RoundRecord
from ..server.ledger_file import is_blank
from ..server.reduced import ReducedCoordinator
from ..server.run_directory import RunDirectory
from ..server.run_place import check_new, place
from ..server.settings import COMPUTED_BY, SIMULATION
from ..server.surroundings import Surroundings
from ..server.watching import Watching
from ..strategies.app import AppRef, load_trainer
from ..strategies.trainer import Settings, TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .clock.decision import Clock
    from .engine.choosing import Choice
    from .engine.rounds import Collect
    from .engine.torch_group import Group
    from .engine.work import Arrays, Tier
    from .simulated import Simulated
    from ..server.history import History
    from ..server.settings import RunSettings
    from ..strategies.task import Task


class Population:
    """`clients` numbers and a server."""

    def __init__(
        self,
        task: Task,
        settings: RunSettings,
        simulated: Simulated,
        *,
        home: Path,
        app: AppRef | None = None,
        way: str = "",
        observe: Callable[[RoundRecord], None] = lambda _record: None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Build the task's model; nothing is written.

        Args:
            task: Of the run.
            settings: The run.
            simulated: How it is simulated.
            home: Where `runs/` is.
            app: Where other processes find the task; without it they are forks of this one.
            way: What reaches the coordinator, and why, in words.
            observe: Called with every record.
            say: Called with lines about what is chosen, and what takes long.

        Raises:
            Refused: The task raised.
        """
        # No round of its own evaluates the last model on everybody: they may be a million.
        self.settings = replace(settings, final_evaluation=False)
        self.simulated, self._home, self._say, self._app = simulated, home, say, app
        self._way = way
        self.ranks: Group | None = None
        """The processes that train with this one, where there are several and it is the first."""
        self._observe, self.records = observe, list[RoundRecord]()
        self._groups = Groups()
        self.refusals = list[str]()
        with boundary():
            self._trainer = TaskTrainer(task)
        self.names = Names(settings.seed)

    def run(self, *, init: Path | None = None, resume: bool = False) -> Result:
        """Run every round, or those that are left, and return what came of it.

        Args:
            init: A safetensors file with the initial model; None for the task's own.
            resume: Whether the run is there already, and goes on.

        Raises:
            SettingsError: No tier can train the task, `init` is no model of it, or the fleet is not
                the run's.
            StateError: The run's directory cannot be read or written.
        """
        with boundary():
            own = self._trainer.arrays(self.settings.seed)
        model = first_model(own, init)
        if self.settings.plan is not None:
            self.settings.plan.check_model(Manifest.of(model))
        if not resume:
            check_new(place(self._home, self.settings.run))  # before minutes of trials
        clock = self._clock(model)  # a fleet that is not the run's leaves nothing behind
        self._say(f"clock: {clock}")
        ledger = place(self._home, self.settings.run) / "ledger.sqlite"
        resume = resume and not (ledger.exists() and is_blank(ledger))  # else it never began
        wanted = self._recorded() if resume else self.simulated.tier
        with ExitStack() as stack:
            # First the tier: processes that it forks from this one would hold the directory's lock
            # for a moment after a kill.
            tier = self._tier(model, wanted)
            stack.callback(tier.tier.close)
            directory = RunDirectory.resume(self._home, self.settings.run) if resume else None
            directory = stack.enter_context(directory or self._created(tier))
            with GroupCommit(directory) as disk:
                coordinator = self._go(directory, disk, model, tier.tier, clock)
            events = directory.ledger.events()
        return Result(
            run=self.settings.run,
            security=self.settings.security,
            records=tuple(self.records),
            model={name: array.copy() for name, array in coordinator.model.items()},
            path=directory.path,
            names=self.names.numbers,
            failure=coordinator.failure,
            refusals=tuple(self.refusals),
            warnings=tuple(event.code for event in events if event.kind == "warning"),
            trained_by=tier.reason,
        )

    def _tier(self, model: Arrays, wanted: str) -> Choice:
        return tier_for(
            self._trainer.task,
            model,
            self.settings,
            self.simulated,
            wanted=wanted,
            app=self._app,
            say=self._say,
            ranks=self.ranks,
        )

    def follow(self, ranks: Group) -> None:
        """Train shares for the process that has the run, until it ends; nothing is written.

        Raises:
            StateError: It, or another one, is gone.
        """
        with boundary():
            model = self._trainer.arrays(self.settings.seed)
        follow(ranks, lambda name: self._tier(model, name).tier)

    def _created(self, tier: Choice) -> RunDirectory:
        """Make the run's directory."""
        run = self.settings.run
        directory = RunDirectory.create(self._home, run)
        described = {
            "clients": self.simulated.clients,
            COMPUTED_BY: computed_by(__version__),
            **self.settings.described(),
            SIMULATION: {
                "hand-over": self._way,
                "tier": tier.name,
                "reason": tier.reason,
                "workers": self.simulated.workers,
                "fleet": self.simulated.digest,
                **self._groups.sizes(self.simulated.clients),
                **self.simulated.started,
            },
        }
        directory.ledger.create_run(run, _stamp(), described, self.settings.security)
        return directory

    def _recorded(self) -> str:
        """Return the tier of a run that was simulated so."""
        with RunDirectory.open(self._home, self.settings.run) as directory:
            said = directory.ledger.run().config.get(SIMULATION)
        if said is not None and said.get("fleet", "") == self.simulated.digest:
            return str(said["tier"])
        expected = "a run of a simulated population" if said is None else "the fleet of its start"
        move = "start it again as it was started"
        raise StateError(str(directory.path), expected, "another", move)

    def _go(
        self, directory: RunDirectory, disk: GroupCommit, model: Arrays, tier: Tier, clock: Clock
    ) -> ReducedCoordinator:
        """Put the rounds together, where they begin or where they stand, and go through them."""
        watch = Stopwatch()
        history: History | None = None
        models: dict[int, Arrays] = {}
        past = take_over(directory, _stamp()) if directory.resumed is not None else None
        if past is not None:
            found, history = past
            model = found.arrays
            if found.number:
                clock.restore(found.extra[CLOCK])
                models = {v: directory.read_round(v) for v in found.extra[VERSIONS]}
        around = self._around(directory, disk, history)
        coordinator = self._coordinator(model, around, watch, history, tier)
        with self._collecting(tier, directory) as collect:
            Rounds(self._course(clock, watch, collect), coordinator, models).run()
        return coordinator

    @contextmanager
    def _collecting(self, tier: Tier, directory: RunDirectory) -> Iterator[Collect]:
        """Return what trains a cohort: into a sum, or into rows for a robust rule."""
        robust = self.settings.rule.robust
        if robust is None:
            yield summed(tier)
            return
        shelf = Shelf(directory.path, lambda _kind, line: self._say(line))
        with closing(RowBuffer(tier, robust, shelf)) as rows:
            yield rows

    def _coordinator(
        self,
        model: Arrays,
        around: Surroundings,
        watch: Stopwatch,
        history: History | None,
        tier: Tier,
    ) -> ReducedCoordinator:
        trainer, settings = self._trainer, self.settings
        metrics = {phase: trainer.declared(phase) for phase in ("train", "evaluate")}
        every = self.simulated.test_every
        central = CentralTest(trainer, tier, every, settings.rounds, self.refusals.append)

        def test(arrays: Arrays) -> dict[str, float]:
            if not central.due(coordinator.round):
                return {}
            with watch.part("evaluate"):
                return central.test(arrays)

        around = replace(around, test=test)
        coordinator = ReducedCoordinator(settings, model, metrics, around, history)
        return coordinator

    def _around(
        self, directory: RunDirectory, disk: GroupCommit, history: History | None
    ) -> Surroundings:
        fleet, missing = self.simulated.fleet, {} if self.simulated.fleet is not None else TIMELESS
        sites = {c.name: c.site for c in fleet.cohorts} if isinstance(fleet, Description) else {}
        if self.simulated.buffer:  # who is asked in a round answers in another
            sites, missing = {}, {**missing, "site": "no round asks its devices: leave it out"}
        watch = Watching.of(
            self.settings, directory, history, sites=sites, missing=missing, wall=_utc,
            say=self._say,
        )  # fmt: skip
        return Surroundings(
            verifier=None, directory=disk, wall=_utc, observe=self._note, watch=watch
        )

    def _course(self, clock: Clock, watch: Stopwatch, collect: Collect) -> Course:
        """Return what the rounds have in common."""
        simulated, local = self.simulated, Settings.of(self.settings.config)
        return Course(
            settings=self.settings,
            partitions=simulated.clients,
            collect=collect,
            clock=clock,
            nodes=self.names,
            groups=self._groups,
            epochs=local.resolved(self._trainer.task)[1].epochs,
            every=simulated.client_test_every,
            watch=watch,
            said=lambda client, cause: self.refusals.append(f"client {client}: {cause}"),
        )

    def _clock(self, model: Arrays) -> Clock:
        """Return who is there when."""
        run, simulated, trainer = self.settings, self.simulated, self._trainer
        message = MessageLayout(Manifest.of(model), trainer.declared("train"), "train")
        local = Settings.of(run.config).resolved(trainer.task)[1]
        down, up = message.manifest.total_bytes, message.total_bytes
        load = Load(down=down, up=up, epochs=local.epochs)
        pace = Pace(
            cohort=run.cohort,
            seed=run.seed,
            deadline=run.deadline,
            quorum=run.params.min_survivors,
            dropout=run.dropout,
            buffer=simulated.buffer,
            staleness=simulated.staleness,
            load=load,
        )
        fleet = simulated.devices(run.seed)
        self._groups = Groups.in_(fleet)
        return clock_for(fleet, simulated.clients, pace)

    def _note(self, record: RoundRecord) -> None:
        self.records.append(record)
        self._observe(record)


def task_of(app: AppRef | Task) -> Task | None:
    """Return an app's task, imported into this process; None where it brings a trainer instead.

    Raises:
        Refused: It cannot be loaded.
    """
    if not isinstance(app, AppRef):
        return app
    with boundary():
        found = load_trainer(app)
    return found.task if isinstance(found, TaskTrainer) else None


class Names:
    """Node ids of clients, made when they are asked for: a population has a million."""

    def __init__(self, seed: int) -> None:
        """Know none yet."""
        self._seed, self._ids = seed, dict[int, str]()

    def __call__(self, clients: Sequence[int]) -> tuple[str, ...]:
        """Return the ids, hex, of these clients."""
        for index in clients:
            if index not in self._ids:
                self._ids[index] = node_id(self._seed, index).hex()
        return tuple(map(self._ids.__getitem__, clients))

    @property
    def numbers(self) -> dict[str, int]:
        """Return the number of each client that was named, by its id: all that took part."""
        return {node: index for index, node in self._ids.items()}


def _utc() -> datetime:
    return datetime.now(UTC)


def _stamp() -> str:
    return _utc().isoformat(timespec="seconds")
