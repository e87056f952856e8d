"""`umbel.train`: a run over sessions, driven from a Flower ServerApp.

    invitations (Flower messages) ──► nodes join the core's gateway
    core socket ──► events ──► Coordinator ──► commands ──► core socket

Everything that Flower's own loop cannot do happens here: streaming sums, secure aggregation,
quorum and deadline, rejoin. The ServerApp holds coordinator and strategy only; vectors stay in
the core service.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

from . import registry
from .consistency import check_clients
from .coordinator import Coordinator
from .core_client import CoreClient
from .draining import Drain
from .flower_invitations import Invitations
from .gathering import Gathering
from .initial import INIT, first_model
from .rejoin import Rejoin
from .run_config import Value, new_run_id, run_settings, tables
from .run_directory import RunDirectory
from .surroundings import Surroundings
from .write_behind import WriteBehind
from ..protocol.documents import read_json
from ..protocol.errors import RoundFailed, SettingsError, TooFewMembers
from ..strategies.metrics import fractional_bits, of_app
from ..strategies.places import umbel_home
from ..strategies.trainer import TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from .ledger import RoundRecord
    from .settings import RunSettings
    from ..strategies import fedavg
    from ..strategies.flower_fedavg import FedAvg
    from ..strategies.metrics import Count, Sum
    from ..strategies.task import Task

FEDERATION = "UMBEL_FEDERATION"
"""Environment variable: the federation's directory on the server."""
RUN = "UMBEL_RUN"
"""Environment variable: the run's id, given by whoever started it."""
SETTINGS = "UMBEL_SETTINGS"
"""Environment variable: settings that the app does not declare in its run-config, as JSON."""
PLAIN = "UMBEL_SECURE"
"""Environment variable: `off` allows a plain run, which every device must allow too."""
POLL_S = 0.05


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


class Learned(NamedTuple):
    """What is learned, as the coordinator needs it."""

    model: Mapping[str, NDArray[Any]]
    metrics: dict[str, dict[str, int]]
    """Declared metrics of both phases, with their fractional bits."""
    test: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None


def train(
    grid: Grid,
    strategy: FedAvg,
    *,
    task: Task | None = None,
    initial_arrays: ArrayRecord | Mapping[str, NDArray[Any]] | None = None,
    metrics: Mapping[str, Sum | Count] | None = None,
    evaluate: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None = None,
    config: Mapping[str, Value] | None = None,
) -> Result:
    """Run every round of a run and return its last model.

    Args:
        grid: Flower's, as a ServerApp gets it.
        strategy: Whose server step is taken.
        task: What is learned; it gives initial model, metrics and the server's test. Or:
        initial_arrays: Named arrays of the initial model, for a wrapped Flower app; Flower's
            record of them, or plain arrays by name.
        metrics: What the wrapped app's clients return, with their bounds.
        evaluate: The server's own test of a model, means by name.
        config: Settings of the run by key (server/run_config.py), as Flower's run-config.

    Raises:
        SettingsError: A setting is wrong, or neither task nor arrays are given.
        RoundFailed: A round ended without a result and no attempt was left.
        StateError: The core service or the run's directory cannot be used.
    """
    table, rest = tables({**(config or {}), **_given()}, {})
    initial = None if initial_arrays is None else _plain(initial_arrays)
    learned = _learned(task, initial, metrics, evaluate, int(table["seed"]))
    file = os.environ.get(INIT)
    learned = learned._replace(model=first_model(learned.model, Path(file) if file else None))
    run = os.environ.get(RUN) or new_run_id(grid.run.fab_id.rpartition("/")[2])
    secure = os.environ.get(PLAIN, "on") != "off"
    settings = run_settings(table, rest, run=run, secure=secure)
    clients = int(table["clients"])
    check_clients(settings, clients)
    rule = replace(strategy.rule, server_learning_rate=float(table["server-learning-rate"]))
    return _run(grid, rule, settings, learned, clients)


def _run(
    grid: Grid, rule: fedavg.FedAvg, settings: RunSettings, learned: Learned, clients: int
) -> Result:
    """Open the core and the run's directory, and go through the rounds."""
    federation = _federation()
    records: list[RoundRecord] = []
    with (
        CoreClient.open(federation, settings.run, settings.scheme) as core,
        RunDirectory.create(umbel_home(), settings.run) as directory,
        WriteBehind(directory) as disk,
        Drain() as drain,
        closing(Invitations(grid, registry.read(federation), core, settings.config)) as invitations,
    ):
        _describe(directory, settings, str(grid.run.run_id))
        around = Surroundings(
            verifier=core.verifier,
            ca=core.ca,
            app=bytes.fromhex(grid.run.fab_hash) if grid.run.fab_hash else bytes(32),
            directory=disk,
            post=core.post,
            wall=_now,
            test=learned.test,
            observe=lambda record: disk.later(records.append, record),
            ready=drain.gate(Rejoin(settings.rounds, settings.rejoin)),
            publish=core.publish,
            traffic=core.traffic,
            intake=core.intake,
        )
        coordinator = Coordinator(settings, learned.model, learned.metrics, rule, around)
        failure = _drive(coordinator, core, invitations, clients, drain, disk.check)
        disk.flush()
        core.goodbye()
        if failure is not None:
            raise failure
        model = {name: array.copy() for name, array in coordinator.model.items()}
        return Result(run=settings.run, model=model, records=tuple(records), path=directory.path)


def _describe(directory: RunDirectory, settings: RunSettings, flower_run: str) -> None:
    """Write who the run is."""
    created = _now().isoformat(timespec="seconds")
    described = settings.described() | {"flower-run": flower_run}
    directory.ledger.create_run(settings.run, created, described, settings.security)


def _drive(
    coordinator: Coordinator,
    core: CoreClient,
    invitations: Invitations,
    clients: int,
    drain: Drain,
    check: Callable[[], None],
) -> RoundFailed | None:
    """Hand events to the coordinator until the run is over; return why it failed, if it did.

    `check` is asked again and again, and raises where the disk has failed.
    """
    started = False
    gathering = Gathering(clients, coordinator.settings.params.min_members, time.monotonic())
    while not coordinator.done:
        invitations.step(frozenset(coordinator.nodes), time.monotonic())
        for event in core.events(POLL_S):
            event.give(coordinator, time.monotonic())
        check()
        now = time.monotonic()
        if drain.over(now, between=coordinator.attempt is None):
            return _stopped(coordinator, drain)
        if started:
            coordinator.tick(now)
            continue
        verdict = gathering.look(len(coordinator.nodes), invitations, now)
        if isinstance(verdict, TooFewMembers):
            return verdict
        if started := verdict:
            coordinator.begin(now)
    return coordinator.failure


def _stopped(coordinator: Coordinator, drain: Drain) -> RoundFailed:
    """Record that the run was told to end, and return that as its end."""
    coordinator.note("stopped", "", drain.asked)
    running = coordinator.attempt is not None
    what = f"round {coordinator.round} was broken off" if running else "no round was running"
    move = f"`umbel runs resume {coordinator.settings.run}` goes on with it"
    return RoundFailed(f"stopped by {drain.asked}: {what}; {move}")


def _learned(
    task: Task | None,
    arrays: Mapping[str, NDArray[Any]] | None,
    metrics: Mapping[str, Sum | Count] | None,
    evaluate: Callable[[Mapping[str, NDArray[Any]]], Mapping[str, float]] | None,
    seed: int,
) -> Learned:
    """Return the initial model, the declared metrics of both phases, and the server's test."""
    if task is not None:
        trainer = TaskTrainer(task)
        declared = {phase: trainer.declared(phase) for phase in ("train", "evaluate")}
        initial = arrays if arrays is not None else trainer.arrays(seed)
        return Learned(initial, declared, evaluate or trainer.test)
    if arrays is None:
        raise SettingsError("umbel.train", "a task, or initial_arrays", None)
    bits = {phase: fractional_bits(of) for phase, of in of_app(metrics or {}).items()}
    return Learned(arrays, bits, evaluate)


def _plain(arrays: ArrayRecord | Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record of Flower's, or of a mapping, by name."""
    return {
        name: array.numpy() if isinstance(array, Array) else np.asarray(array)
        for name, array in arrays.items()
    }


def _given() -> dict[str, Value]:
    """Return the settings that whoever started this ServerApp gives it by its environment."""
    text = os.environ.get(SETTINGS, "{}")
    try:
        found = read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, Value) for v in found.values()):
        raise SettingsError(SETTINGS, "a JSON object of numbers, texts and flags", text[:64])
    return found


def _federation() -> Path:
    """Return the directory of the federation that this ServerApp runs in."""
    given = os.environ.get(FEDERATION)
    if not given:
        raise SettingsError(
            FEDERATION, "the federation's directory", given, "start the run with `umbel up`"
        )
    return Path(given)


def _now() -> datetime:
    return datetime.now(UTC)
