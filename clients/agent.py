"""The agent of a device, `umbel client up`: it keeps one SuperNode running, for months.

It starts the SuperNode (flower_supernode.py) under `Supervisor`, which starts it again when it
dies, and looks every `LOOK_S` at what the owner said: `paused` ends the SuperNode, when the round
in progress is over, or broken off, and the server has heard why (finishing.py), and its removal
starts it; so do the hours of the policy (hours.py). After `leave` the agent ends. A SuperNode that
does not stay up, or a disk without room, is tried again after a pause that grows to `LONGEST_S`:
the server may be away for weeks. Then the CA is asked whether this is a node still; one that was
removed tries once an hour. Certificates are renewed beside all that (renewals.py). `agent.json` and
systemd hear what it does.

Nothing of flwr, grpc, numpy or cryptography is imported here; what needs them is a process of its
own. An agent that was killed leaves its SuperNode running; the next one ends it first.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from .finishing import Finishing
from .hours import Hours, Rest
from .pause import has_left, paused
from .policy_file import read_owned
from .renewals import Renewals, drawn
from .sd_notify import Notifier
from .status_file import SAID_EVERY_S, AgentStatus, write_agent
from ..host.processes import Supervisor
from ..host.programs import Program
from ..host.spawned import module_command
from ..protocol.documents import read_toml
from ..protocol.errors import StateError, UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOME, NODE = "agent", "supernode"
"""Folder of the agent below the device's, and the name of its program."""
LOOK_S = 0.5
"""Between two looks at the SuperNode and at what the owner said."""
FIRST_S, LONGEST_S = 15.0, 600.0
"""Pause after a SuperNode that did not stay up for `PATIENCE_S`, doubled up to the second."""
PATIENCE_S = 30.0
STABLE_S = 300.0
"""A SuperNode that ran for so long begins the pauses anew."""
GONE_S = 3600.0
"""Pause, at most, of a device whose CA says that it is no node: it was removed."""
TASK = "flower_launcher"
"""In the command line of a ClientApp."""
TERMINATED, INTERRUPTED = 0, 130
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RESTS = ("paused", "resting")
"""No SuperNode runs: the owner has paused it, or its policy's hours are others."""


class Agent:
    """One device's agent."""

    def __init__(self, directory: Path, notifier: Notifier, say: Callable[[str], None]) -> None:
        """Take the device's lock.

        Raises:
            StateError: Another agent of this device runs, or its files cannot be read.
        """
        self._directory, self._notifier, self._say = directory, notifier, say
        self._home = directory / HOME
        (self._home / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(directory)
        self._hours = Hours(directory)
        self._signal, self._left = 0, False
        self._finishing = Finishing()
        self._ears = _ears(self._hear)
        log = self._home / "logs" / "renew.log"
        self._renewals = Renewals(directory, log, time.monotonic())
        self._status = AgentStatus(state="starting")
        self._said = self._beat = self._next = 0.0
        self._pause = FIRST_S

    def run(self) -> int:
        """Keep the SuperNode running until a signal or the owner ends that; return the status."""
        self._say(f"{_who(self._directory)}; logs in {self._home / 'logs'}")
        self._notifier.ready()
        try:
            while not self._ending():
                self._look()
                if self._rests() or time.monotonic() < self._next:
                    self._wait()
                else:
                    self._up()
        finally:
            self._notifier.stopping()
            self._renewals.close()
            self._tell(state="ending", program=0, until=0.0, detail="")
            os.close(self._lock)
        return INTERRUPTED if self._signal == signal.SIGINT else TERMINATED

    def _up(self) -> None:
        """Run a SuperNode until something is to end it, or it cannot be kept up."""
        began = time.monotonic()
        try:
            with Supervisor(self._home) as supervisor:
                for name in supervisor.leftovers:
                    self._say(f"ended what an agent before this one left running: {name}")
                supervisor.start(self._program())
                self._keep(supervisor)
        except (UmbelError, OSError) as error:
            if time.monotonic() - began > STABLE_S:
                self._pause = FIRST_S
            self._fault(str(error))
            self._later(self._pause)
            self._pause = min(2 * self._pause, LONGEST_S)
            self._renewals.soon(time.monotonic())  # its answer may say why

    def _later(self, pause: float) -> None:
        """Have no SuperNode for a time."""
        self._next = time.monotonic() + pause
        self._tell(state="waiting", detail="", program=0, until=time.time() + pause)

    def _keep(self, supervisor: Supervisor) -> None:
        """Watch the SuperNode while it may run."""
        files = self._written()
        self._tell(state="up", detail="", program=supervisor.pid(NODE), until=0.0)
        self._say(f"SuperNode runs as process {supervisor.pid(NODE)}")
        while not self._ending():
            for seen in supervisor.watch():
                if seen.what == "ended":
                    self._say(f"SuperNode {seen.status}; it is started again")
                else:
                    count = self._status.restarts + 1
                    self._tell(program=supervisor.pid(NODE), restarts=count)
            self._look()
            node = supervisor.pid(NODE)
            if self._rests(node) or time.monotonic() < self._next:
                return
            if self._written() != files and not _works(node):
                return
            self._wait()

    def _program(self) -> Program:
        package = str(__package__)
        command = module_command(
            sys.executable, package, "flower_supernode", str(self._directory), "{port}"
        )
        return Program(name=NODE, command=tuple(command), restart=True, patience=PATIENCE_S)

    def _rests(self, node: int = 0) -> bool:
        """Tell whether no SuperNode is to run now.

        Args:
            node: Process of the one that runs; a round in progress lets it run on.
        """
        pause = paused(self._directory) or self._hours.rest()
        if pause is None:
            self._finishing.anew()
            if self._status.state in RESTS:
                self._say("the pause is over")
                self._tell(state="starting", detail="", until=0.0)
            return False
        at, works = time.monotonic(), bool(node) and _works(node)
        waits = bool(node) and self._finishing.lets(at, works=works, now=pause.now)
        detail = "the round in progress ends first" if works and waits and not pause.now else ""
        known, state = self._status, RESTS[isinstance(pause, Rest)]
        if (known.state, known.detail, known.until) != (state, detail, pause.until):
            self._say(f"{pause}{'; ' if detail else ''}{detail}")
            program = node if waits else 0
            self._tell(state=state, detail=detail, until=pause.until, program=program)
        return not waits

    def _ending(self) -> bool:
        if self._signal or self._left:
            return True
        self._left = has_left(self._directory)
        if self._left:
            self._say("this device has left its federation; nothing more is to be done")
        return self._left

    def _look(self) -> None:
        """Do what is due: a renewal, a sign of life."""
        now = time.monotonic()
        renewal = self._renewals.look(now)
        if renewal is not None and renewal.error:
            self._fault(renewal.error)
            if renewal.gone:
                self._later(drawn(GONE_S))
        elif renewal is not None:
            self._tell(renewed=time.time())
        if now - self._said > SAID_EVERY_S:
            self._tell()
        if self._notifier.watchdog and now - self._beat > self._notifier.watchdog / 4:
            self._beat = now
            self._notifier.alive()

    def _fault(self, line: str) -> None:
        if line != self._status.error:
            self._say(line)
        _, more, move = line.rpartition("; ")
        self._tell(error=line, error_at=time.time(), move=move if more else "")

    def _tell(self, **changes: Any) -> None:
        """Write `agent.json`; a disk that does not take it is no reason to stop."""
        before = self._status
        self._status = replace(before, said=time.time(), **changes)
        self._said = time.monotonic()
        if (before.state, before.detail) != (self._status.state, self._status.detail) or changes:
            self._notifier.status(_line(self._status))
        with suppress(OSError, StateError):
            write_agent(self._directory, self._status)

    def _written(self) -> int:
        """Return what changes when a renewal brings other addresses."""
        try:
            return (self._directory / "device.toml").stat().st_mtime_ns
        except OSError:
            return 0

    def _wait(self) -> None:
        """Sleep for a tick, or until a signal comes."""
        if select.select([self._ears], [], [], LOOK_S)[0]:
            with suppress(BlockingIOError):
                for number in os.read(self._ears, 64):  # also what came while others listened
                    self._signal = self._signal or (number if number in STOPS else 0)

    def _hear(self, number: int, _frame: object) -> None:
        self._signal = self._signal or number


def _locked(directory: Path) -> int:
    """Take the lock of a device's agent and return its descriptor."""
    path = directory / HOME / "agent.lock"
    found = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(found)
        move = "`umbel client status` says what it does"
        raise StateError(str(directory), "no other agent", "one that runs", move) from error
    return found


def _ears(hear: Callable[[int, object], None]) -> int:
    """Let signals wake up whoever waits for the descriptor that is returned."""
    ears, mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    for number in STOPS:
        signal.signal(number, hear)
    return ears


def _works(node: int) -> bool:
    """Tell whether a SuperNode has a ClientApp, which is in a session or handles a message."""
    return any(TASK in " ".join(words) for words in _commands(node))


def _commands(node: int) -> Iterator[list[str]]:
    with suppress(psutil.Error):
        for process in psutil.Process(node).children(recursive=True):
            with suppress(psutil.Error):
                yield process.cmdline()


def _line(status: AgentStatus) -> str:
    """Return what `systemctl status` shows."""
    words = [status.state, status.detail, f"last error: {status.error}" if status.error else ""]
    return "; ".join(word for word in words if word)


def _who(directory: Path) -> str:
    """Return which node of which federation this is, as device.toml says."""
    file = directory / "device.toml"
    try:
        values = read_toml(read_owned(file))
    except ValueError as error:
        raise StateError(str(file), "what enrolment wrote", str(error), "enrol anew") from error
    return f"node {values.get('id')} of {values.get('federation')}"


def main(directory: Path) -> int:
    """Be the agent of a device; returns the exit status."""

    def say(line: str) -> None:
        print(f"umbel client up: {line}", file=sys.stderr, flush=True)

    try:
        return Agent(directory, Notifier(), say).run()
    except (UmbelError, OSError) as error:
        print(f"umbel: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
