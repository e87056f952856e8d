"""`umbel.train`: a run over sessions, driven from a Flower ServerApp.

    invitations (Flower messages) ──► nodes join the core's gateway
    core socket ──► events ──► Coordinator ──► commands ──► core socket    (flower_sittings.py)

What Flower's own loop cannot do happens here: streaming sums, secure aggregation, quorum and
deadline, rejoin, resume. The ServerApp holds coordinator and strategy only; vectors stay in
the core service.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord

from .consistency import check_clients, check_rows
from .core.room import available
from .disk_space import SERVER_TEST
from .draining import Drain
from .evaluation import Evaluation, chosen_tester
from .evaluators import AppTest
from .federation_files import ROOT, certificate, organisation
from .flower_app_settings import merged, of_running_app
from .flower_invitations import Invitations
from .flower_programs import FEDERATION, PLAIN, RESUME, RUN, SETTINGS, STARTED
from .flower_sittings import CORE_BACK_S, Learned, Sittings, check_settings, opened
from .initial import INIT, first_model
from .ledger_file import is_blank
from .registry import Registry
from .run_config import Value, new_run_id, run_settings, tables
from .run_directory import RunDirectory
from .run_place import place
from .run_plan import RunPlan
from .run_rule import chosen
from .settings import COMPUTED_BY, FLOWER_RUN, OF_FEDERATION
from .write_behind import WriteBehind
from .. import __version__
from ..host.places import umbel_home
from ..host.reported import computed_by
from ..protocol.documents import read_json
from ..protocol.errors import SettingsError
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..strategies.app_source import source_of
from ..strategies.flower_rules import rule_for, unused
from ..strategies.metrics import fractional_bits, of_app
from ..strategies.task import Task
from ..strategies.trainer import TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from numpy.typing import NDArray

    from .evaluation import Test
    from .ledger import RoundRecord
    from .settings import RunSettings
    from ..strategies.metrics import Count, Sum
    from ..strategies.server_rules import Rule

UNUSED = (
    "umbel.train: of the strategy only the server step is used, and %s say nothing: cohort and "
    "clients are settings of the run, the weight is num-examples, metrics are declared"
)
_log = getLogger("flwr")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run leaves."""

    run: str
    model: dict[str, NDArray[Any]] = field(repr=False)
    """The last model, arrays by name."""
    records: tuple[RoundRecord, ...]
    path: Path
    """The run's directory."""

    @property
    def arrays(self) -> ArrayRecord:
        """The last model, as Flower's strategies return theirs."""
        return ArrayRecord({name: Array(array) for name, array in self.model.items()})


def train(
    grid: Grid,
    strategy: Strategy | Rule,
    *,
    task: Task | type[Task] | None = None,
    initial_arrays: ArrayRecord | Mapping[str, NDArray[Any]] | None = None,
    metrics: Mapping[str, Sum | Count] | None = None,
    evaluate: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None = None,
    config: Mapping[str, Value] | None = None,
) -> Result:
    """Run every round of a run and return its last model.

    Args:
        grid: Flower's, as a ServerApp gets it.
        strategy: Whose server step is taken: one of umbel's, Flower's own class of the same name,
            or a rule of strategies/server_rules.py. Nothing else of it is used.
        task: What is learned, an object or a class without arguments; it gives initial model,
            metrics and the server's test, which processes of their own do. Or:
        initial_arrays: Named arrays of the initial model, for a wrapped Flower app; Flower's
            record of them, or plain arrays by name.
        metrics: What the wrapped app's clients return, with their bounds.
        evaluate: The server's own test of a model, means by name, instead of the task's; a thread
            calls it while the rounds go on (server/evaluation.py).
        config: Settings of the run by key (server/run_config.py), as Flower's run-config; they
            stand over the app's `[tool.umbel]`, unless the app declares the same value.

    Raises:
        SettingsError: A setting is wrong, or neither task nor arrays are given.
        RoundFailed: A round ended without a result and no attempt was left.
        StateError: The core service or the run's directory cannot be used.
    """
    said = {**merged(config or {}, *of_running_app(grid)), **_given()}
    table, rest = tables(said, {})
    initial = None if initial_arrays is None else _plain(initial_arrays)
    learned = _learned(task, initial, metrics, evaluate, table)
    file = os.environ.get(INIT)
    learned = learned._replace(model=first_model(learned.model, Path(file) if file else None))
    run = os.environ.get(RUN) or new_run_id(grid.run.fab_id.rpartition("/")[2])
    secure = os.environ.get(PLAIN, "on") != "off"
    rule = chosen(table, said, rule_for(strategy))
    if without_use := unused(strategy):
        _log.warning(UNUSED, ", ".join(without_use))
    settings = run_settings(table, rest, run=run, secure=secure, rule=rule, plan=_kept_plan(run))
    if settings.plan is not None:
        settings.plan.check_model(Manifest.of(learned.model))
    clients = int(table["clients"])
    check_clients(settings, clients)
    return _run(grid, settings, learned, clients)


def _run(grid: Grid, settings: RunSettings, learned: Learned, clients: int) -> Result:
    """Open the core and the run's directory, start what tests, and go through the rounds."""
    federation = _federation()
    nodes = Registry(federation, _log.warning)
    _check_room(federation, settings, learned, clients)
    # What killed the ServerApp may have killed the core: it comes back, too.
    core = opened(federation, settings, CORE_BACK_S if os.environ.get(RESUME) == "1" else 0.0)
    with (
        core,
        _directory(settings, grid, tests=learned.test is not None) as directory,
        WriteBehind(directory) as disk,
        closing(
            Evaluation(chosen_tester(learned.test, directory, _log.warning), disk)
        ) as evaluation,
        Drain() as drain,
        closing(Invitations(grid, nodes, core, settings.config)) as invitations,
    ):
        sittings = Sittings(
            settings,
            learned,
            app=bytes.fromhex(grid.run.fab_hash) if grid.run.fab_hash else bytes(32),
            clients=clients,
            federation=federation,
            registry=nodes,
            directory=directory,
            disk=disk,
            invitations=invitations,
            drain=drain,
            evaluation=evaluation,
        )
        coordinator, failure = sittings.run(core, resumed=directory.resumed is not None)
        if failure is not None:
            raise failure
        records = directory.ledger.rounds()
        model = {name: array.copy() for name, array in coordinator.model.items()}
        return Result(run=settings.run, model=model, records=records, path=directory.path)


def _kept_plan(run: str) -> RunPlan | None:
    """Return the plan of a run that is resumed, as its record keeps it."""
    home = umbel_home()
    if os.environ.get(RESUME) != "1" or is_blank(place(home, run) / "ledger.sqlite"):
        return None
    with RunDirectory.open(home, run) as directory:
        return RunPlan.kept_by(directory.ledger.run())


def _check_room(federation: Path, settings: RunSettings, learned: Learned, clients: int) -> None:
    """Refuse a robust rule whose updates the core service could keep nowhere."""
    layout = MessageLayout(Manifest.of(learned.model), learned.metrics["train"], "train")
    room = {"in memory": available(), f"in {federation}": disk_usage(federation).free}
    check_rows(settings, clients, layout.total_bytes, room)


def _directory(settings: RunSettings, grid: Grid, *, tests: bool) -> RunDirectory:
    """Return the run's directory: a new one, or that of the run which is resumed."""
    home, run = umbel_home(), settings.run
    if os.environ.get(RESUME) != "1" or is_blank(place(home, run) / "ledger.sqlite"):
        directory = RunDirectory.create(home, run)
        given = {"config": dict(grid.run.override_config), "bundle": grid.run.fab_hash}
        described = settings.described() | {FLOWER_RUN: str(grid.run.run_id), SERVER_TEST: tests}
        described[COMPUTED_BY] = computed_by(__version__)
        name = organisation(certificate(_federation() / ROOT))
        described |= {OF_FEDERATION: name, "started": _object(STARTED) | given}
        directory.ledger.create_run(run, _stamp(), described, settings.security)
        return directory
    directory = RunDirectory.resume(home, run)
    try:
        check_settings(directory.ledger.run().config, settings)
    except BaseException:
        directory.close()
        raise
    return directory


def _learned(
    task: Task | type[Task] | None,
    arrays: Mapping[str, NDArray[Any]] | None,
    metrics: Mapping[str, Sum | Count] | None,
    evaluate: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None,
    table: Mapping[str, Value],
) -> Learned:
    """Return the initial model, the declared metrics of both phases, and the server's test."""
    if task is not None:
        trainer = TaskTrainer(task() if isinstance(task, type) else task)
        declared = {phase: trainer.declared(phase) for phase in ("train", "evaluate")}
        initial = arrays if arrays is not None else trainer.arrays(int(table["seed"]))
        return Learned(
            initial, declared, evaluate or _own_test(task, trainer, int(table["evaluators"]))
        )
    if arrays is None:
        raise SettingsError("umbel.train", "a task, or initial_arrays", None)
    bits = {phase: fractional_bits(of) for phase, of in of_app(metrics or {}).items()}
    return Learned(arrays, bits, evaluate)


def _own_test(task: Task | type[Task], trainer: TaskTrainer, evaluators: int) -> Test | None:
    """Return a task's own test: in processes that find the task by its name, if it has one."""
    if type(trainer.task).test_data is Task.test_data:
        return None
    try:
        return AppTest(source_of(task), trainer.tested, evaluators)
    except SettingsError:
        return trainer.test


def _plain(arrays: ArrayRecord | Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record of Flower's, or of a mapping, by name."""
    return {
        name: array.numpy() if isinstance(array, Array) else np.asarray(array)
        for name, array in arrays.items()
    }


def _given() -> dict[str, Value]:
    """Return the settings that whoever started this ServerApp gives it by its environment."""
    found = _object(SETTINGS)
    if not all(isinstance(value, Value) for value in found.values()):
        raise SettingsError(SETTINGS, "a JSON object of numbers, texts and flags", found)
    return found


def _object(name: str) -> dict[str, Any]:
    """Return the JSON object in an environment variable; an empty one where there is none."""
    text = os.environ.get(name, "{}")
    try:
        found = read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SettingsError(name, "a JSON object", text[:64])
    return found


def _federation() -> Path:
    """Return the directory of the federation that this ServerApp runs in."""
    given = os.environ.get(FEDERATION)
    if not given:
        raise SettingsError(
            FEDERATION, "the federation's directory", given, "start the run with `umbel up`"
        )
    return Path(given)


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
