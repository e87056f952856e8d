"""A run's rounds over one core service after another: each connection to it is a sitting.

    directory (new, or resumed) ──► history, model in force ──► Coordinator ─┐
         ▲                                                                   │ events, commands
         └── the core was lost: what is durable is where the next sitting ◄──┘ goes on

The ServerApp outlives the core service. A sitting that ends with its core is taken up as a run is
whose ServerApp was killed: from the ledger and the rounds on the disk, by the members that join
again. Nothing of the earlier coordinator is used.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from .coordinator import Coordinator
from .core_client import CoreClient, CoreLost
from .gathering import Gathering
from .handover import Handover
from .history import take_over
from .open_round import OpenRounds
from .rejoin import Rejoin
from .surroundings import Surroundings
from .watching import Watching
from ..protocol.errors import RoundFailed, SettingsError, StateError, TooFewMembers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from .draining import Drain
    from .evaluation import Evaluation, Test
    from .flower_invitations import Invitations
    from .history import History
    from .invitation import Joined
    from .registry import Registry
    from .run_directory import RunDirectory
    from .settings import RunSettings
    from .write_behind import WriteBehind

CORE_BACK_S = 60.0
"""How long a core service that was lost may take to come back."""
POLL_S = 0.05
LOOK_S = 0.2

_log = getLogger("flwr")


class Learned(NamedTuple):
    """What is learned, as the coordinator needs it."""

    model: Mapping[str, NDArray[Any]]
    metrics: dict[str, dict[str, int]]
    """Declared metrics of both phases, with their fractional bits."""
    test: Test | None
    """The server's own test of a model, if there is one."""


class Sittings:
    """One run in one ServerApp."""

    def __init__(  # noqa: PLR0913 - each is a part of one run
        self,
        settings: RunSettings,
        learned: Learned,
        *,
        app: bytes,
        clients: int,
        federation: Path,
        registry: Registry,
        directory: RunDirectory,
        disk: WriteBehind,
        invitations: Invitations,
        drain: Drain,
        evaluation: Evaluation,
    ) -> None:
        """Begin nothing yet.

        Args:
            settings: The run.
            learned: Initial model, metrics, test.
            app: SHA-256 of the app bundle.
            clients: Nodes that the run waits for at its start.
            federation: The federation's directory, where the core's socket is.
            registry: Who is enrolled, and under which certificates.
            directory: The run's, locked by this process.
            disk: What writes to it.
            invitations: Asks the nodes to come.
            drain: Knows when the run was told to end.
            evaluation: Tests the models of rounds that have finished.
        """
        self.settings, self._learned = settings, learned
        self._app, self._clients, self._federation = app, clients, federation
        self._directory, self._disk, self._invitations = directory, disk, invitations
        directory.warn = _log.warning
        self._drain, self._evaluation = drain, evaluation
        self._rejoin = Rejoin(settings.rounds, settings.rejoin)
        self._handover = Handover(
            settings.deadline,
            registered=registry.by_id,
            let_go=self._let_go,
            wall=_now,
            note=_log.info,
        )
        self._ready = drain.gate(self._may_begin)

    def run(self, core: CoreClient, *, resumed: bool) -> tuple[Coordinator, RoundFailed | None]:
        """Go through the rounds; return the last coordinator, and why the run failed if it did.

        Raises:
            StateError: The disk, or a core service that does not come back.
        """
        while True:
            try:
                with core:
                    found = self._sit(core, resumed=resumed)
                self._last_test(found[0])
                return found  # noqa: TRY300
            except CoreLost as error:
                _log.warning("the core service is gone (%s): waiting for it", error)
            core = opened(self._federation, self.settings, CORE_BACK_S, self._drain)
            resumed = True
            _log.info("the core service is back; run %s goes on", self.settings.run)

    def _sit(self, core: CoreClient, *, resumed: bool) -> tuple[Coordinator, RoundFailed | None]:
        self._invitations.core = core
        self._disk.flush()
        found = take_over(self._directory, _stamp()) if resumed else None
        model: Mapping[str, NDArray[Any]] = self._learned.model
        history: History | None = None
        if found is not None:
            check_model(found[0].arrays, model)
            model, history = found[0].arrays, found[1]
            self._evaluation.resume(found[0].number, found[0].digest, history.records)
        around = self._around(core, history)
        coordinator = Coordinator(self.settings, model, self._learned.metrics, around, history)
        try:
            failure = self._drive(coordinator, core, again=history is not None)
            self._disk.flush()
            core.goodbye()
        except CoreLost:
            coordinator.abandon("the core service was lost")
            self._disk.flush()
            raise
        return coordinator, failure

    def _may_begin(self, number: int, nodes: Mapping[str, Joined], now: float) -> bool:
        """Tell whether a round may begin with these nodes, or others are about to come."""
        return self._handover(nodes, now) and self._rejoin(number, nodes, now)

    def _let_go(self, node: str) -> None:
        self._invitations.core.goodbye(node)

    def _around(self, core: CoreClient, history: History | None) -> Surroundings:
        rounds = self._directory.path / "rounds"
        return Surroundings(
            verifier=core.verifier,
            ca=core.ca,
            app=self._app,
            directory=self._disk,
            post=core.post,
            wall=_now,
            tests=self._evaluation,
            ready=self._ready,
            watch=Watching.of(self.settings, self._directory, history, wall=_now, say=_log.info),
            core=core,
            traffic=core.traffic,
            open_rounds=OpenRounds(rounds, self._disk.later),
        )

    def _drive(
        self, coordinator: Coordinator, core: CoreClient, *, again: bool
    ) -> RoundFailed | None:
        """Hand events to the coordinator until the run is over; return why it failed, if it did."""
        started, least = False, coordinator.settings.params.min_members
        gathering = Gathering(self._clients, least, time.monotonic())
        while not coordinator.done:
            self._invitations.step(frozenset(coordinator.nodes), time.monotonic())
            self._note_declined(coordinator)
            for event in core.events(POLL_S):
                event.give(coordinator, time.monotonic())
            self._tests(coordinator)
            now = time.monotonic()
            if self._drain.over(now, between=coordinator.attempt is None):
                return _stopped(coordinator, self._drain)
            if started:
                coordinator.tick(now)
                continue
            here, enough = len(coordinator.nodes), again and coordinator.can_go_on
            verdict = gathering.look(here, self._invitations, now, can_go_on=enough)
            if isinstance(verdict, TooFewMembers):
                return verdict
            if started := verdict:
                coordinator.begin(now)
        return coordinator.failure

    def _note_declined(self, coordinator: Coordinator) -> None:
        """Let the record say which nodes answered their invitations with a code."""
        for node, code in self._invitations.declined:
            coordinator.note("declined", node, code)
        self._invitations.declined.clear()

    def _tests(self, coordinator: Coordinator) -> None:
        """Let the tests go on, and the coordinator know what came of one."""
        self._disk.check()
        if (done := self._evaluation.step(time.monotonic())) is not None:
            coordinator.tested(*done)

    def _last_test(self, coordinator: Coordinator) -> None:
        """Wait for the test of the last model, unless told to end."""
        if self._evaluation.held:
            _log.info("every round is done; the test of the last model goes on")
        while self._evaluation.held and not self._drain.asked:
            self._tests(coordinator)
            time.sleep(POLL_S)
        self._disk.flush()


def opened(
    federation: Path, settings: RunSettings, wait: float, drain: Drain | None = None
) -> CoreClient:
    """Return a connection to the core service, which may take `wait` seconds to be there.

    Args:
        federation: The federation's directory, where its socket is.
        settings: The run.
        wait: Seconds; 0 asks once.
        drain: Knows whether the run was told to end; then nothing is waited for.

    Raises:
        StateError: It is not there in time, or refuses the run.
    """
    until = time.monotonic() + wait
    while True:
        try:
            return CoreClient.open(federation, settings.run, settings.scheme)
        except StateError as error:
            if not wait:
                raise
            if time.monotonic() >= until or (drain is not None and drain.asked):
                raise StateError("core service", f"it back within {wait:.0f} s", error) from error
        time.sleep(LOOK_S)


def _stopped(coordinator: Coordinator, drain: Drain) -> RoundFailed:
    """Record that the run was told to end, and return that as its end."""
    coordinator.note("stopped", "", drain.asked)
    running = coordinator.attempt is not None
    what = f"round {coordinator.round} was broken off" if running else "no round was running"
    move = f"`umbel runs resume {coordinator.settings.run}` goes on with it"
    return RoundFailed(f"stopped by {drain.asked}: {what}; {move}")


def check_model(model: Mapping[str, NDArray[Any]], initial: Mapping[str, NDArray[Any]]) -> None:
    """Refuse to go on with an app that has another model than the run.

    Raises:
        SettingsError: A name, shape or dtype differs; the first is named.
    """
    of = [{n: f"{a.dtype}{list(a.shape)}" for n, a in m.items()} for m in (model, initial)]
    for name in sorted({*of[0], *of[1]}):
        if of[0].get(name) != of[1].get(name):
            move = "resume the run with the app that it began with"
            raise SettingsError(f"model: {name}", str(of[0].get(name)), of[1].get(name), move)


def check_settings(recorded: Mapping[str, Any], settings: RunSettings) -> None:
    """Refuse to go on with other settings than those in the ledger; more rounds are none.

    Raises:
        SettingsError: A setting differs; the first is named.
    """
    move = "resume the run with the settings that it began with"
    for name, now in settings.described().items():
        before = recorded.get(name)
        if name == "rounds" and isinstance(before, int) and settings.rounds >= before:
            continue
        if isinstance(now, dict) and isinstance(before, dict):
            for key in sorted({*now, *before}):
                if now.get(key) != before.get(key):
                    raise SettingsError(f"{name}: {key}", str(before.get(key)), now.get(key), move)
        elif before != now:
            raise SettingsError(name, str(before), now, move)


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp() -> str:
    return _now().isoformat(timespec="seconds")
