"""What a program of a federation is started with: command, environment, port, log file."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TAIL_BYTES = 16384
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What is to run."""

    name: str
    command: tuple[str, ...]
    """The arguments; `{port}` stands for a free port, another at each start."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables over those of this process."""
    tier: int = 0
    """Ended in ascending order."""
    restart: bool = False
    """Whether it is started again when it ends; else its end is the supervisor's."""
    pause: float = 0.0
    """Seconds between its end and its next start."""
    patience: float = 90.0
    """For how many seconds it is started again and again while it does not stay up."""


def check_state(state: Any) -> None:
    """Refuse what is not the state of `umbel up`, as it stands in `up.json`.

    Raises:
        KeyError, TypeError, ValueError: A part is missing, or of another type.
    """
    programs = state["programs"]
    if not isinstance(state["mark"], str) or not isinstance(programs, list):
        raise TypeError("mark and programs: expected a text and a list")
    for item in (state["supervisor"], *programs):
        if type(item["pid"]) is not int or not 0 <= item["pid"] < 2**31:
            raise ValueError("pid: expected the number of a process")
        if type(item["started"]) not in (int, float):
            raise TypeError("started: expected a number of seconds")
    for program in (item["program"] for item in programs):
        made = Program(**program)
        texts = (made.name, *made.command, *made.env, *dict(made.env).values())
        numbers = (made.tier, made.restart, made.pause)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("program: expected texts as name, command and environment")
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError("program: expected numbers as tier, restart and pause")


def environment() -> dict[str, str]:
    """Return this process's environment with its Python's own commands first on the PATH."""
    own = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    path = [*own, *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    return os.environ | {"PATH": os.pathsep.join(dict.fromkeys(path))} | direct()


def direct() -> dict[str, str]:
    """Return the variables by which HTTP and gRPC reach this machine without a proxy."""
    names = ("NO_PROXY", "no_proxy")
    given = {name: os.environ.get(name, "").split(",") for name in names}
    return {
        name: ",".join(dict.fromkeys(filter(None, [*hosts, *_OWN_HOSTS])))
        for name, hosts in given.items()
    }


def command_path(name: str) -> str:
    """Return the absolute path of a command of this Python's environment.

    Raises:
        StateError: It is not installed.
    """
    found = shutil.which(name, path=environment()["PATH"])
    if found is None:
        raise StateError(name, "an installed command", "none", "install flwr in this environment")
    return found


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, without colours."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "no output"
    lines = [line.strip() for line in without_colours(text).splitlines()]
    return next((line for line in reversed(lines) if line), "no output")


def without_colours(text: str) -> str:
    """Return a text without the codes that colour it on a terminal."""
    return _COLOUR.sub("", text)


def private(path: str, flags: int) -> int:
    """Open a file that this user alone may read; an `opener` for `open`."""
    return os.open(path, flags, 0o600)
