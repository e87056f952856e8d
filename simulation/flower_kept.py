"""The runs of a federation that `umbel up --keep` left: one whose ServerApp was killed goes on.

Whoever says `flwr run` starts them, so their ids and apps are known from Flower and from the runs'
own ledgers only. A ServerApp gets what run it goes on with from its SuperExec's variables
(server/flower_lives.py), so one run goes on at a time, and while no other ServerApp lives: a
SuperExec that is replaced ends them all. Then a SuperExec without them takes its place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from .up_plan import recorded
from ..protocol.errors import StateError, UmbelError
from ..server.flower_control import Control, same_bundle
from ..server.flower_lives import Lives, serverapps
from ..server.flower_programs import RESUME, RUN, SUPEREXEC
from ..server.run_feed import RunFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .up_plan import UpPlan
    from ..host.processes import Supervisor
    from ..server.ledger import RunRecord
    from ..server.run_config import Value

_ADDRESS = "--runtime-api-address"


class _Lost(NamedTuple):
    """A run that goes on."""

    run: str
    lives: Lives
    feed: RunFeed


class Kept:
    """What a keeper knows of the runs on its federation."""

    def __init__(self, supervisor: Supervisor, folder: Path, say: Callable[[str], None]) -> None:
        """Look at the runs of the federation in `folder`, whose programs `supervisor` watches."""
        command = supervisor.program(SUPEREXEC).command
        address = command[command.index(_ADDRESS) + 1]
        self.supervisor, self.control = supervisor, Control(address, folder / "ca.pem")
        self._home, self._say = folder.parent.parent, say
        self._bundle, self._given_up = b"", set[int]()
        self._lost: _Lost | None = None
        self._seen = True
        """Whether a ServerApp was there since Flower was asked; else there is nothing to ask."""

    def look(self, now: float) -> None:
        """Look once; start the next ServerApp of a run that has lost its own.

        Args:
            now: Monotonic seconds.
        """
        if self._lost is None:
            with suppress(StateError):  # the SuperLink is away for a moment
                self._lost = self._find(now)
            return
        try:
            self._go_on(self._lost, now)
        except UmbelError as error:
            self._say(f"{self._lost.run}: {error}")
            self._end(self._lost)

    # -- as FlowerUp is to it --------------------------------------------------

    def resume(self, run: str) -> None:
        """Let the ServerApps that start from now on go on with a run; empty for new ones."""
        program = self.supervisor.program(SUPEREXEC)
        env = {key: value for key, value in program.env.items() if key not in {RUN, RESUME}}
        env |= {RUN: run, RESUME: "1"} if run else {}
        self.supervisor.replace(replace(program, env=env))

    def submit(self, config: Mapping[str, Value]) -> int:
        """Start the app's run."""
        return self.control.start_run(self._bundle, sha256(self._bundle).hexdigest(), config)

    # -- one run ----------------------------------------------------------------------------

    def _find(self, now: float) -> _Lost | None:
        """Return a run that has lost its ServerApp, its next one planned."""
        if serverapps(self.supervisor)[0]:  # looked at first: one says its end before it goes
            self._seen = True
        elif self._seen:
            found = self._first(now)
            self._seen = False
            return found
        return None

    def _first(self, now: float) -> _Lost | None:
        states = self.control.runs()
        running = [r for r, s in states.items() if s.status == "running"]
        for flower_run in running:
            if flower_run not in self._given_up and (found := self._begin(flower_run, now)):
                return found
        return None

    def _begin(self, flower_run: int, now: float) -> _Lost | None:
        feed = RunFeed(self._home, flower_run)
        feed.poll()
        if feed.run is None or feed.over:
            feed.close()
            return None
        try:
            plan = self._planned(feed.run)
        except UmbelError as error:
            self._given_up.add(flower_run)
            self._say(f"{feed.run.run}: {error}")
            return None
        self._say(f"serverapp was killed; {feed.run.run} is to go on")
        lives = Lives(self, plan.config, flower_run)
        lives.note(sum(r.outcome == "finished" for r in feed.records), now)
        return _Lost(feed.run.run, lives, feed)

    def _planned(self, run: RunRecord) -> UpPlan:
        """Return what the run was started with; its bundle is built again."""
        plan, _, digest = recorded(run)
        self._bundle = same_bundle(plan.app, digest)
        return plan

    def _go_on(self, lost: _Lost, now: float) -> None:
        lost.feed.poll()
        if lost.lives.waiting:
            if lost.lives.again(lost.run, now):
                self._say(f"serverapp restarted: {lost.run} goes on")
            return
        try:
            state, killed = lost.lives.look()
        except StateError:  # the SuperLink is away for a moment
            return
        if killed and not lost.feed.over:
            self._say(f"serverapp {killed}")
            lost.lives.note(sum(r.outcome == "finished" for r in lost.feed.records), now)
        elif state.over or killed:
            self._say(f"{lost.run} is over")
            self._end(lost)

    def _end(self, lost: _Lost) -> None:
        """Let the next runs be new ones."""
        lost.feed.close()
        self._given_up.add(lost.lives.flower_run)
        self.resume("")
        self._lost = None
