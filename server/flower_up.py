"""A federation's server on this machine: its five programs, and what happens to them.

    issuer ─► core service, SuperLink ─► front ─► all answer ─► SuperExec

The issuer comes first: it renews the servers' certificates, which may have ended while nothing ran.
Ports are those of server.toml and stay; so do the SuperLink's database, the registry and the runs.
What a killed server left running is ended, and a run of Flower's that has lost its ServerApp is
told to end: Flower itself would call it `running` for another minute.

Waiting looks at what is waited for, and at the programs (flower_programs.py), so that one that ends
is named at once. No node is started here: they are devices elsewhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from . import flower_programs as programs
from .draining import DRAIN_S
from .federation_files import ROOT
from .flower_control import ONLINE, Control, answers
from .flower_lives import serverapps
from .issuer_wire import is_served
from .run_directory import sweep
from ..host import process_tree
from ..host.processes import Supervisor
from ..host.waiting import wait_until
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .flower_programs import Place
    from .server_toml import ServerSettings
    from ..host.programs import Program

START_S = 90.0
"""How long each program may take to answer."""
LAST_S = 10.0
"""How long a ServerApp may take to go when its round has ended."""
LOOK_S = 2.0
_NAMES = 8
_LEAF = "superlink.pem"
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "127.0.0.1"}  # noqa: S104 - what they listen on


class ServerUp:
    """The running server; leaving its block ends everything that it started."""

    def __init__(
        self, place: Place, settings: ServerSettings, say: Callable[[str], None], ranks: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """End what a crashed server left, and make what the programs need.

        Args:
            place: Of the federation.
            settings: What its server.toml says.
            say: Called with a line about each thing that happens.
            ranks: Processes of the core service that add up.
            env: Variables of the ServerApps (flower_programs.py).

        Raises:
            StateError: Another supervisor runs this federation, or its files are damaged.
        """
        self.place, self._settings, self._say = place, settings, say
        self._ranks, self._env = ranks, dict(env or {})
        self._online: set[str] | None = None
        self._next_look, self._leaf = 0.0, _made(place.folder / _LEAF)
        self._end_by: float | None = None
        self.supervisor = Supervisor(place.folder)
        try:
            if self.supervisor.leftovers:
                say(f"ended what an earlier server left: {', '.join(self.supervisor.leftovers)}")
            for name in (programs.SUPERLINK, programs.SUPEREXEC):
                home = programs.flwr_home(place.folder, name)
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
            (place.folder / "tickets").mkdir(mode=0o700, exist_ok=True)
            (place.folder / "core.json").unlink(missing_ok=True)
            sweep(place.home)
            self.control = Control(settings.superlink, place.folder / ROOT)
        except BaseException:
            self.supervisor.close()
            raise

    def __enter__(self) -> Self:
        """Return this server."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        process_tree.insist(self._close)

    def _close(self) -> None:
        self.control.close()
        self.supervisor.close()
        sweep(self.place.home)

    def start_issuer(self) -> None:
        """Start the issuer and wait until it can be asked.

        Raises:
            StateError: It did not come up, with the last line of its log.
        """
        self.supervisor.start(programs.issuer(self.place))
        self._wait("the issuer to answer", lambda: is_served(self.place.folder))

    def start(self) -> None:
        """Start the others, and return when all of them answer.

        Raises:
            StateError: One did not come up; it is named, with the last line of its log.
        """
        place, superlink = self.place, self._settings.superlink
        start, ca = self.supervisor.start, self.place.folder / ROOT
        start(programs.core(place, self._settings.listen_core, self._ranks))
        start(programs.superlink(place, superlink))
        start(programs.front(place, self._settings.listen_front, superlink))
        programs.write_connection(place, self._settings.name, superlink)
        self._wait("the SuperLink to answer", self.control.healthy)
        self._end_lost_runs()
        start(self._superexec(self._env))
        self._wait("the core service to listen", (place.folder / "core.json").exists)
        host, _, port = self._settings.listen_front.rpartition(":")
        front = f"{_ANY.get(host, host)}:{port}"
        self._wait("the front to answer", lambda: answers(front, ca, "/readyz"))

    def watch(self, now: float) -> None:
        """Look at every program, and at who is online; say what changed.

        Args:
            now: Monotonic seconds.

        Raises:
            StateError: A program cannot be kept up.
        """
        for item in self.supervisor.watch():
            self._say(f"{item.name} {item.status or item.what}")
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        leaf = _made(self.place.folder / _LEAF)
        if leaf != self._leaf:  # Flower reads it at its start only, and this may be in 60 days
            self._leaf = leaf
            self._say("the SuperLink starts anew, with a new certificate")
            self.supervisor.kill(programs.SUPERLINK)
        with suppress(StateError):  # the SuperLink is away for a moment
            states = self.control.nodes()
            online = {name for name, state in states.items() if state.status == ONLINE}
            for line in changes(self._online or set(), online, set(states)):
                self._say(line)
            self._online = online

    def connect(self) -> Control:
        """Return another connection with the SuperLink, for whoever reads in a thread."""
        return Control(self._settings.superlink, self.place.folder / ROOT)

    def ends(self, now: float) -> bool:
        """Let every ServerApp end after its round; tell whether all have, or had their time.

        Args:
            now: Monotonic seconds.
        """
        apps = serverapps(self.supervisor)[0]
        if self._end_by is None:
            self._end_by = now + DRAIN_S + LAST_S
            if apps:
                self._say("ending after this round; ask again to end at once")
            for app in apps:
                app.terminate()
        return not apps or now > self._end_by

    @property
    def online(self) -> int:
        """How many nodes were online at the last look."""
        return len(self._online or ())

    def resume(self, run: str) -> None:
        """Let the ServerApps that start from now on go on with a run; empty for new ones.

        Whichever runs is ended.
        """
        env = {k: v for k, v in self._env.items() if k not in {programs.RUN, programs.RESUME}}
        env |= {programs.RUN: run, programs.RESUME: "1"} if run else {}
        self.supervisor.replace(self._superexec(env))

    def _superexec(self, env: Mapping[str, str]) -> Program:
        return programs.superexec(self.place, self._settings.superlink, env)

    def _end_lost_runs(self) -> None:
        """Stop the runs that an earlier server left: no ServerApp of this one has begun."""
        for run, state in self.control.runs().items():
            if not state.over:
                with suppress(SettingsError):  # it has just ended
                    self.control.stop_run(run)
                    self._say(f"Flower's run {run} had lost its ServerApp: stopped")

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        wait_until(
            holds, what, self.supervisor, watch=self.supervisor.watch, say=self._say,
            vital=programs.SERVERS, seconds=START_S,
        )  # fmt: skip


def changes(before: set[str], online: set[str], known: set[str]) -> list[str]:
    """Return lines about the nodes that came and went.

    Args:
        before: Who was online.
        online: Who is.
        known: Whom the SuperLink knows.
    """
    count = f"({len(online)} of {len(known)} online)"
    went = before - online
    found = (online - before, "online"), (went & known, "offline"), (went - known, "removed")
    return [f"{_named(who)} {how} {count}" for who, how in found if who]


def _named(who: set[str]) -> str:
    """Return names with their verb, the first few of many."""
    shown = ", ".join(sorted(who)[:_NAMES])
    more = f" and {len(who) - _NAMES} more" if len(who) > _NAMES else ""
    return f"{shown}{more} {'is' if len(who) == 1 else 'are'}"


def _made(file: Path) -> int:
    """Return when a file was written; one that is not there is another one when it comes."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
