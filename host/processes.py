"""One supervisor for every process of a federation on this machine: start, watch, restart, end.

Each program runs in a session of its own, with the environment's `bin` first on its PATH, a log
file, and the supervisor's mark (process_tree.py). Ending goes by tiers: each is asked by SIGTERM
first, and killed when its time is over.

`up.json` (0600) is written before the first program starts and holds the mark, the programs, their
pids and start times. A lock beside it is held as long as the supervisor lives. Where the file is
and nobody holds the lock, a supervisor crashed: the next one ends what it left, and so does
`umbel down`. With `hand_over` and `adopt` a supervisor passes its running programs to another.

Not for a device's own child (clients/child.py), and no service manager.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import psutil  # type: ignore[import-untyped]

from . import disk_room, log_files
from . import process_tree as tree
from .programs import Program, check_state, environment, free_port, last_line, private
from ..protocol.documents import read_json
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAUSE_S, LONGEST_S = 1.0, 8.0
"""Before the second such start, and the most before a later one: each pause is twice the last. The
first is at once."""
_DOWN = "end it, by a signal or `umbel down`"
LEFTOVERS_S = 1.0
"""What a crashed supervisor left has so long to end by itself; nobody waits for its work."""
SETTLED_S = 15.0
"""After so long a program counts as up, and its next end as the first."""


@dataclass(frozen=True, slots=True)
class Happening:
    """What `watch` saw happen to a program."""

    name: str
    what: str
    """`ended`, with the status in words, or `restarted`."""
    status: str = ""


@dataclass(slots=True, eq=False)
class _Run:
    """A program that was started, and the process that runs it or ran it last."""

    program: Program
    process: Any
    """psutil.Process; None when it had ended before it was looked at."""
    pid: int
    started: float
    child: subprocess.Popen[bytes] | None
    """None for a process that another supervisor started."""
    born: float
    down: bool = False
    status: str = ""
    failing_since: float | None = None
    failures: int = 0
    """Ends since then."""
    next_try: float = 0.0

    def has_ended(self) -> bool:
        """Tell whether the process is gone; reap it if it is a child of this one."""
        if self.child is not None:
            return self.child.poll() is not None
        return self.process is None or not tree.alive(self.process)

    def how(self) -> str:
        """Return in words how it ended."""
        code = None if self.child is None else self.child.returncode
        if code is None:
            return "ended"
        return f"exited with status {code}" if code >= 0 else f"was killed by signal {-code}"


class Supervisor:
    """The programs of one federation; leaving its block ends them all."""

    def __init__(
        self, folder: Path, before: Callable[[Program], None] = lambda _program: None
    ) -> None:
        """Take the lock of `folder` and end what a crashed supervisor left there.

        Args:
            folder: Where `up.json`, its lock and `logs/` lie; made 0700 when absent.
            before: Called when a program has ended that will be started again.

        Raises:
            StateError: Another supervisor is at work there.
        """
        self.folder = folder
        self._before = before
        self._runs: dict[str, _Run] = {}
        self._room = disk_room.Room(folder)
        (folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock: int | None = lock(folder)
        try:
            self.leftovers = end_leftovers(folder)
            """Names of the programs that a crashed supervisor had left running."""
            self._mark = secrets.token_hex(8)
            self._write()
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def adopt(cls, folder: Path, before: Callable[[Program], None]) -> Self:
        """Take over the programs that another supervisor handed over.

        Raises:
            StateError: There are none, or a supervisor is still at work.
        """
        found = cls.__new__(cls)
        found.folder, found._before, found.leftovers = folder, before, ()
        found._lock, found._room = lock(folder), disk_room.Room(folder)
        state = read_state(folder)
        if state is None:
            os.close(found._lock)
            raise StateError(str(folder), "running programs", "none", "start with `umbel up`")
        found._mark = state["mark"]
        found._runs = {}
        for item in state["programs"]:
            program = Program(**item["program"])
            process = tree.recorded(item["pid"], item["started"], found._mark)
            found._runs[program.name] = _Run(
                program, process, item["pid"], item["started"], None, time.monotonic()
            )
        found._write()
        return found

    def __enter__(self) -> Self:
        """Return this supervisor."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every program."""
        self.close()

    def start(self, program: Program) -> None:
        """Start a program; its output is appended to its log.

        Raises:
            StateError: It cannot be started.
        """
        self._runs[program.name] = self._spawn(program)
        self._write()

    def log(self, name: str) -> Path:
        """Return the log file of a program."""
        return self.folder / "logs" / f"{name}.log"

    def names(self) -> tuple[str, ...]:
        """Return the names of the programs in the order of their starts."""
        return tuple(self._runs)

    def program(self, name: str) -> Program:
        """Return what runs under a name."""
        return self._runs[name].program

    def alive(self, name: str) -> bool:
        """Tell whether a program's process is running."""
        return not self._runs[name].has_ended()

    def pid(self, name: str) -> int:
        """Return the pid of a program's newest process."""
        return self._runs[name].pid

    def watch(self) -> list[Happening]:
        """Look once at every program and its log, start again what may be; return what happened.

        Raises:
            StateError: A program ended that is not started again, or could not stay up for
                its `patience`; with the last line of its log.
        """
        seen = []
        log_files.bound(self.folder / "logs", log_files.LOG_BYTES)
        self._room.check(time.monotonic())
        for run in self._runs.values():
            now = time.monotonic()
            if not run.down:
                if run.has_ended():
                    seen.append(self._note_end(run, now))
                elif run.failing_since is not None and now - run.born > SETTLED_S:
                    run.failing_since, run.failures = None, 0
            if run.down and now >= run.next_try:
                seen.append(self._again(run, now))
        return seen

    def kill(self, name: str) -> None:
        """End a program and everything it started with SIGKILL, as a power cut would."""
        run = self._runs[name]
        if not run.has_ended():  # its own session first, at one stroke
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
        tree.kill(tree.family(self._mark, [name]))

    def replace(self, program: Program) -> None:
        """End a program and everything it started, and start another under its name.

        Raises:
            StateError: It cannot be started.
        """
        child = self._runs[program.name].child
        self.kill(program.name)
        if child is not None:
            child.wait()
        self.start(program)

    def give_up(self, name: str, status: str) -> NoReturn:
        """Raise StateError: how a program ended that is of no use, and the last line of its log."""
        self._fail(self._runs[name], status)

    def close(self) -> None:
        """End every program and what it started, tier by tier."""
        tree.insist(self._close)

    def _close(self) -> None:
        if self._lock is None:
            return
        _end_by_tiers(
            self._mark,
            [(run.program.tier, run.program.name, run.process) for run in self._runs.values()],
            tree.GRACE_S,
        )
        for run in self._runs.values():
            if run.child is not None:
                with suppress(subprocess.TimeoutExpired):
                    run.child.wait(1.0)
        (self.folder / "up.json").unlink(missing_ok=True)
        self._unlock()

    def hand_over(self) -> None:
        """Leave everything running, for `adopt` in another process."""
        self._write()
        self._unlock()

    def _unlock(self) -> None:
        held, self._lock = self._lock, None
        if held is not None:
            os.close(held)

    def _spawn(self, program: Program) -> _Run:
        command = [text.replace("{port}", str(free_port())) for text in program.command]
        env = environment() | dict(program.env) | {tree.MARK: f"{self._mark}/{program.name}"}
        with open(self.log(program.name), "ab", opener=private) as log:
            try:
                child = subprocess.Popen(  # noqa: S603 - our own programs and Flower's
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
            except OSError as error:
                raise StateError(
                    f"program {program.name}", command[0], error.strerror, "install it again"
                ) from error
        try:
            process = psutil.Process(child.pid)
            started = process.create_time()
        except psutil.Error:  # gone already; the next look finds out
            process, started = None, 0.0
        return _Run(program, process, child.pid, started, child, time.monotonic())

    def _note_end(self, run: _Run, now: float) -> Happening:
        run.down, run.status = True, run.how()
        if not run.program.restart:
            self._fail(run, run.status)
        pause = min(PAUSE_S * 2.0 ** (run.failures - 1), LONGEST_S) if run.failures else 0.0
        run.failures += 1
        run.next_try = now + max(pause, run.program.pause)
        run.failing_since = now if run.failing_since is None else run.failing_since
        tree.kill(tree.family(self._mark, [run.program.name]))  # what it started may outlive it
        self._before(run.program)
        return Happening(run.program.name, "ended", run.status)

    def _again(self, run: _Run, now: float) -> Happening:
        """Start a program again that has ended."""
        name = run.program.name
        patience = run.program.patience
        if run.failing_since is not None and now - run.failing_since > patience:
            self._fail(run, f"{run.status}, again and again for {patience:.0f} s")
        new = self._spawn(run.program)
        new.failing_since, new.failures = run.failing_since, run.failures
        self._runs[name] = new
        self._write()
        return Happening(name, "restarted")

    def _fail(self, run: _Run, what: str) -> NoReturn:
        name = run.program.name
        log = self.log(name)
        raise StateError(f"program {name}", "a running process", what, f"{log}: {last_line(log)}")

    def _write(self) -> None:
        """Write `up.json` whole, or leave it as it was."""
        own = psutil.Process()
        state = {
            "mark": self._mark,
            "supervisor": {"pid": own.pid, "started": own.create_time()},
            "programs": [
                {"program": asdict(run.program), "pid": run.pid, "started": run.started}
                for run in self._runs.values()
            ],
        }
        temporary = self.folder / "up.json.new"
        try:
            with open(temporary, "w", encoding="utf-8", opener=private) as file:
                json.dump(state, file)
            temporary.replace(self.folder / "up.json")
        except OSError as error:
            raise disk_room.no_room(temporary.parent) from error


def end_leftovers(folder: Path) -> tuple[str, ...]:
    """End what a supervisor that is gone left running; the caller holds the lock.

    Returns:
        The names of the programs of which something still ran.

    Raises:
        StateError: `up.json` cannot be read.
    """
    state = read_state(folder)
    if state is None:
        return ()
    items = []
    for item in state["programs"]:
        process = tree.recorded(item["pid"], item["started"], state["mark"])
        items.append((item["program"]["tier"], item["program"]["name"], process))
    left = _end_by_tiers(state["mark"], items, LEFTOVERS_S)
    (folder / "up.json").unlink(missing_ok=True)
    return left


def _end_by_tiers(mark: str, items: list[tuple[int, str, Any]], grace: float) -> tuple[str, ...]:
    """End programs, each (tier, name, process or None); return the names that still ran."""
    left = {name for name, _ in tree.marked(mark)}
    with tree.unhurried() as hurry:
        for tier in sorted({item[0] for item in items}):
            names = {name for number, name, _ in items if number == tier}
            mains = [p for number, _, p in items if number == tier and p and tree.alive(p)]
            left |= {name for number, name, p in items if number == tier and p in mains}
            tree.end(mains, mark, names, grace, hurry)
        tree.kill(tree.family(mark))
    return tuple(sorted(left))


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return what `up.json` says; None where there is none.

    Raises:
        StateError: It cannot be read.
    """
    path = folder / "up.json"
    try:
        state: dict[str, Any] = read_json(path.read_bytes())
        check_state(state)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            str(path), "the state of `umbel up`", error, "end its processes by hand and remove it"
        ) from error
    return state


def lock(folder: Path) -> int:
    """Take the supervisor's lock of a folder and return its descriptor.

    Raises:
        StateError: Another supervisor holds it.
    """
    descriptor = os.open(folder / "up.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            str(folder), "no other `umbel up` or `umbel server up` there", "one that runs", _DOWN
        ) from error
    return descriptor
