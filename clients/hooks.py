"""A command of the owner's that answers yes or no by its exit status, within a time.

It is the owner's program, named in the owner's policy: an absolute path, no shell, nothing on its
standard input. What it prints goes to the device's console. It may be asked once a minute.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

HOOK_S = 10.0
"""How long a hook may take to answer."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KEPT = ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


def answer(command: Sequence[str], key: str, limit_s: float = HOOK_S) -> tuple[int | None, str]:
    """Return a hook's exit status, None where it did not end by itself, and that in words.

    Args:
        command: Program and arguments.
        key: The policy's key that names it, for messages.
        limit_s: After so many seconds it is killed, with what it started.

    Raises:
        SettingsError: The program cannot be run, or others could have written it.
    """
    _check(Path(command[0]), key)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        process = subprocess.Popen(  # noqa: S603 - the owner's own program
            list(command), stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=kept,
            process_group=0,
        )  # fmt: skip
    except OSError as error:
        raise SettingsError(key, "a program that can be run", error.strerror) from error
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, f"no answer within {limit_s:g} s"
    return (status, f"exit status {status}") if status >= 0 else (None, f"signal {-status}")


def _check(program: Path, key: str) -> None:
    """Refuse a program that somebody else could have put there."""
    try:
        status = program.stat()
    except OSError as error:
        raise SettingsError(key, "a program that is there", error.strerror) from error
    ours = status.st_uid in (0, os.geteuid()) and not status.st_mode & _OTHERS_WRITE
    if not stat.S_ISREG(status.st_mode) or not ours:
        got = f"user {status.st_uid} and mode {stat.S_IMODE(status.st_mode):04o}"
        raise SettingsError(f"{key}: {program}", "a file of this user or root alone", got)
