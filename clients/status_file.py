"""What a device's programs say of themselves, each in a file of its own that nobody else writes.

    agent.json      the agent, `umbel client up`: at each change, and every `SAID_EVERY_S`
    session.json    the process that holds a session: at each change

For `umbel client status` alone: nothing is decided by them, so they are replaced and never synced.
Strict JSON of exactly the fields below, 64 KiB at most, mode 0600. Times are seconds since 1970 by
the device's own clock, 0 where there is none; texts are one line.

A file outlives the program that wrote it. So it names its process, and what started it: `alive`
tells whether that very process still runs, also after the number was given to another.

Nothing here imports flwr, grpc, numpy or cryptography: the agent keeps it in memory for months.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ..host.whole_file import write_whole
from ..protocol.documents import read_json
from ..protocol.errors import LONGEST, StateError, one_line

AGENT, SESSION = "agent.json", "session.json"
SAID_EVERY_S = 60.0
"""How often the agent says at least that it is there."""
AGENT_STATES = ("starting", "up", "waiting", "paused", "resting", "ending")
"""`up`: its SuperNode runs. `waiting`: it ended, and is started again at `until`. `paused`: by the
owner. `resting`: by the policy, outside its hours for instance; until `until` if that is known."""
SESSION_STATES = ("joining", "idle", "loading", "computing", "exchanging", "away")
"""`idle`: between two rounds. `loading`: the model comes. `computing`: the app trains or tests.
`exchanging`: the trips of the secure sum, and the vector. `away`: the gateway does not answer."""
_LIMIT = 1 << 16
_MOST = 2**53


def process_mark(pid: int) -> str:
    """Return what tells this process from any other that ever had its number; empty if it is gone.

    The boot, and the ticks after it at which the process began: no clock that can be set.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        after = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2]
        state, ticks = after.split()[0], after.split()[19]
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" else f"{boot}/{ticks}"


def _own_mark() -> str:
    return process_mark(os.getpid())


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus:
    """What the agent is doing."""

    state: str
    detail: str = ""
    """More about the state, for people."""
    program: int = 0
    """Process of the SuperNode; 0 where none runs."""
    restarts: int = 0
    """How often the SuperNode was started again since the agent began."""
    until: float = 0.0
    """When the next thing happens: the next start, or the end of a pause."""
    error: str = ""
    """What went wrong last, and `move`, what the owner can do about it."""
    error_at: float = 0.0
    move: str = ""
    renewed: float = 0.0
    """When certificates were last renewed, or the last try succeeded."""
    began: float = field(default_factory=time.time)
    said: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    mark: str = field(default_factory=_own_mark)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionStatus:
    """What the process that holds a session is doing."""

    state: str
    run: str
    gateway: str
    up: bool
    """Whether a server is there: the line is up, and the run has a ServerApp."""
    since: float
    """When it came, or went."""
    word: str = ""
    """The session's newest line on the device's console."""
    round: int = 0
    phase: str = ""
    attempt: int = 0
    members: int = 0
    """Members of the attempt's roster; 0 before it is known."""
    doing: float = 0.0
    """When the state began."""
    rounds: int = 0
    """Rounds of this session in which the device sent a vector."""
    bytes_up: int = 0
    bytes_down: int = 0
    began: float = field(default_factory=time.time)
    said: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    mark: str = field(default_factory=_own_mark)


Said = TypeVar("Said", AgentStatus, SessionStatus)
_STATES = {AGENT: AGENT_STATES, SESSION: SESSION_STATES}


def alive(status: AgentStatus | SessionStatus) -> bool:
    """Tell whether the process that wrote this still runs."""
    return bool(status.mark) and process_mark(status.pid) == status.mark


def write_agent(directory: Path, status: AgentStatus) -> None:
    """Say what the agent is doing.

    Raises:
        OSError: The disk does not take it; whoever writes goes on without.
        StateError: A value that no reader takes.
    """
    _write(directory / AGENT, status)


def write_session(directory: Path, status: SessionStatus) -> None:
    """Say what a session is doing; raises as `write_agent` does."""
    _write(directory / SESSION, status)


def read_agent(directory: Path) -> AgentStatus | None:
    """Return what the agent said last; None where none ever ran.

    Raises:
        StateError: The file cannot be read, or is none of ours.
    """
    return _read(directory / AGENT, AgentStatus)


def read_session(directory: Path) -> SessionStatus | None:
    """Return what a session's process said last; None where none ever ran; raises likewise."""
    return _read(directory / SESSION, SessionStatus)


def read_small(path: Path) -> bytes | None:
    """Return the content of a regular file of at most 64 KiB; None where there is none.

    Raises:
        StateError: It cannot be read, is a link, a pipe, a directory, or larger.
    """
    try:
        with open(path, "rb", opener=_open_itself) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StateError(str(path), "a regular file", "something else", "remove it")
            data = file.read(_LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(str(path), "a readable file", error.strerror) from error
    if len(data) > _LIMIT:
        raise StateError(str(path), f"at most {_LIMIT} bytes", "more", "remove it")
    return data


def _open_itself(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _write(path: Path, status: AgentStatus | SessionStatus) -> None:
    values = {
        name: one_line(value[:LONGEST])[:LONGEST] if isinstance(value, str) else value
        for name, value in asdict(status).items()
    }
    _check(path, type(status), values)
    write_whole(path, json.dumps(values).encode(), lasting=False)


def _read(path: Path, kind: type[Said]) -> Said | None:
    data = read_small(path)
    if data is None:
        return None
    try:
        values = read_json(data)
    except ValueError as error:
        raise StateError(str(path), "JSON", str(error), "remove it") from None
    _check(path, kind, values)
    return kind(**values)


def _check(path: Path, kind: type[Any], values: Any) -> None:
    """Refuse what has not exactly the fields of `kind`, each of its type and within bounds."""
    names = {item.name: item.type for item in fields(kind)}
    if not isinstance(values, dict) or values.keys() != names.keys():
        raise StateError(str(path), f"the fields {', '.join(names)}", "others", "remove it")
    for name, value in values.items():
        if not _fits(str(names[name]), value):
            raise StateError(f"{path}: {name}", f"a {names[name]}", value, "remove it")
    if values["state"] not in _STATES[path.name]:
        states = ", ".join(_STATES[path.name])
        raise StateError(f"{path}: state", f"one of {states}", values["state"], "remove it")


def _fits(kind: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str) and len(value) <= LONGEST and value.isprintable()
    whole = type(value) is int and 0 <= value <= _MOST
    if kind == "int":
        return whole
    return whole or (type(value) is float and math.isfinite(value) and 0 <= value <= _MOST)
