"""One app on a running server: it is submitted when enough nodes are online, and followed.

A run of the same app and settings that has not done its last round is gone on with, whatever ended
it: this server's stop, a power cut, or somebody's SIGKILL. A ServerApp that is killed has a
successor (flower_lives.py). When the run is over the server stays.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from . import registry, run_lines
from .disk_space import SERVER_TEST
from .flower_lives import Lives
from .flower_output import SERVERAPP, Output
from .run_directory import list_runs
from .run_feed import RunFeed
from .watching import introduced
from ..protocol.errors import StateError, UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .app_plan import AppPlan
    from .flower_control import Control
    from .flower_programs import Place
    from .flower_up import ServerUp
    from .run_config import Value
    from ..host.processes import Supervisor

SERVER = "server"
"""Key of what the ledger says about a run's start: the directory of the federation."""


def started(plan: AppPlan, place: Place) -> dict[str, object]:
    """Return what the ledger of a run of `umbel server up` keeps about its start."""
    return {
        SERVER: str(place.folder), "secure": plan.secure, "settings": dict(plan.settings)
    }  # fmt: skip


def unfinished(
    home: Path, said: Mapping[str, object], config: Mapping[str, Value], digest: str
) -> str:
    """Return the newest run that was started like this and has not done its last; "" for none.

    A copy of a run's directory is no run.

    Args:
        home: Umbel's state directory.
        said: What `started` returns.
        config: Overrides of the app's run-config.
        digest: SHA-256 of the app's bundle, hex.
    """
    wanted: dict[str, Any] = {**said, "config": dict(config), "bundle": digest}
    found = []
    for run in list_runs(home):
        with suppress(StateError), RunFeed.of(home, run) as feed:
            record = feed.run
            if record is None or record.run != run or feed.over:
                continue
            if record.config.get("started") == wanted:
                found.append((record.created, run))
    return max(found)[1] if found else ""


class AppRun:
    """The app's run, from waiting for its nodes to its end."""

    def __init__(
        self, up: ServerUp, plan: AppPlan, bundle: bytes, say: Callable[[str], None], *, fresh: bool
    ) -> None:
        """Wait for the nodes.

        Args:
            up: The server.
            plan: What is to run.
            bundle: The app's bundle.
            say: Called with a line about each thing that happens.
            fresh: Whether a run that could go on is left alone.
        """
        self.supervisor: Supervisor = up.supervisor
        self.control: Control = up.control
        self._up, self._plan, self._bundle, self._say = up, plan, bundle, say
        self._fresh = fresh
        self._lives: Lives | None = None
        self._feed: RunFeed | None = None
        self._output: Output | None = None
        self._told = -1
        self.over = False

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle, hex."""
        return sha256(self._bundle).hexdigest()

    def look(self, now: float) -> None:
        """Look once, and do what is next; say what came of it.

        Args:
            now: Monotonic seconds.
        """
        if self.over:
            return
        try:
            if self._lives is None:
                self._begin()
            else:
                self.show()
                self._go_on(self._lives, now)
        except UmbelError as error:
            self._say(str(error))
            self.end()

    def show(self) -> None:
        """Say what has been recorded, and what the ServerApp warned of, since the last call."""
        feed, known = self._feed, self._feed is not None and self._feed.run is not None
        if feed is None or self._output is None:
            return
        records = feed.poll()
        if feed.run is not None:
            rounds, tests = int(feed.run.config["rounds"]), bool(feed.run.config.get(SERVER_TEST))
            if not known:
                self._introduce(feed)
            for record in records:
                self._say(run_lines.describe(record, rounds, tests=tests))
            for record in feed.tested:
                self._say(run_lines.tested(record, rounds))
        for line in feed.said:
            self._say(line)
        for number, why in feed.untested:
            self._say(run_lines.untested(number, why))
        for number, phase, nodes in feed.waiting:
            self._say(run_lines.waits_for(number, phase, [self._names().get(n, n) for n in nodes]))
        self._output.show(self._say, None)

    def end(self) -> None:
        """Leave the run as it is; later runs are new ones."""
        self.over = True
        if self._output is not None:
            self._output.end()
        if self._feed is not None:
            self._feed.close()

    # -- as a server is to flower_lives.py --------------------------------------------------

    def resume(self, run: str) -> None:
        """Let the ServerApps that start from now on go on with a run; empty for new ones."""
        self._up.resume(run)

    def submit(self, config: Mapping[str, Value]) -> int:
        """Start the app's run and return the id that Flower gives it."""
        return self.control.start_run(self._bundle, self.digest, config)

    # -- inside -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Submit the app if enough nodes are online."""
        here, wanted, config = self._up.online, self._plan.clients, self._plan.config
        if here < wanted:
            if here != self._told:
                self._told = here
                self._say(f"the app waits for its nodes: {here} of {wanted} are online")
            return
        home = self._up.place.home
        said = started(self._plan, self._up.place)
        run = "" if self._fresh else unfinished(home, said, config, self.digest)
        with suppress(StateError):  # the SuperLink is away for a moment
            if run:
                self.resume(run)
            flower_run = self.submit(config)
            self._say(f"submitted the app {self._plan.app.name}" + f": {run} goes on" * bool(run))
            self._lives = Lives(self, config, flower_run)
            self._follow(flower_run, run)

    def _follow(self, flower_run: int, run: str) -> None:
        """Read the record and the output of a run from now on."""
        home = self._up.place.home
        if run:
            self._feed = RunFeed.of(home, run)
            self._introduce(self._feed)
        else:
            self._feed = RunFeed(home, flower_run)
        control = self._up.connect()
        self._output = Output(self.supervisor.log(SERVERAPP), control, flower_run)

    def _introduce(self, feed: RunFeed) -> None:
        if feed.run is not None:
            size = f"{self._plan.clients} clients, {feed.run.config['rounds']} rounds"
            self._say(f"{feed.run.run}: {size}, secure aggregation {feed.run.security}")
            if line := introduced(feed.run):
                self._say(line)

    def _go_on(self, lives: Lives, now: float) -> None:
        feed = self._feed
        if feed is None:
            return
        run = feed.run.run if feed.run is not None else ""
        if lives.waiting:
            if lives.again(run, now):
                self._say(f"{SERVERAPP} restarted: {run or 'the run'} goes on")
                self._listen_again(lives.flower_run, run)
            return
        try:
            state, killed = lives.look()
        except StateError:  # the SuperLink is away for a moment
            return
        if killed and not feed.over:
            self._say(f"{SERVERAPP} {killed}")
            lives.note(sum(record.outcome == "finished" for record in feed.records), now)
        elif state.over or killed:
            self._close_up(state.outcome, state.details, run)

    def _listen_again(self, flower_run: int, run: str) -> None:
        """Follow the next ServerApp of the same run."""
        if self._output is not None:
            self._output.end()
        if self._feed is not None:
            self._feed.close()
        self._follow(flower_run, run)

    def _close_up(self, outcome: str, details: str, run: str) -> None:
        """Say how the run ended; the server goes on, and its next runs are new ones."""
        self.show()
        last = self._output.end() if self._output is not None else ""
        failed = outcome not in {"completed", ""}
        self._say(f"{run or 'the run'} is over" + f": {outcome}: {details or last}" * failed)
        self.end()
        self.resume("")

    def _names(self) -> dict[str, str]:
        """Return the names of the nodes by their ids."""
        with suppress(StateError):
            return {node.id: node.name for node in registry.read(self._up.place.folder).values()}
        return {}
