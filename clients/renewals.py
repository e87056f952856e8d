"""The agent's side of renewal: a short-lived child does it, this starts the child when it is due.

The child (renew.py) imports cryptography and httpx, 40 MB that nobody needs between two renewals.
It looks whether the certificates need it, and prints `next SECONDS`, when to look again. Told to
(`soon`), it asks the CA whether they need it or not: an answer says that this is a node still.

A child that fails, because the server is away, is followed by another after a pause that doubles,
up to `LONGEST_S`; none takes longer than `MOST_S`. Pauses are drawn at random, so that the devices
of a site that had no power do not come all at once.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..host.programs import last_line, private
from ..host.spawned import module_command, reap

if TYPE_CHECKING:
    from pathlib import Path

FIRST_S, LONGEST_S = 60.0, 3600.0
"""Pause after a renewal that failed, doubled up to the second."""
MOST_S = 120.0
"""How long a child may take; then it is killed, and counts as failed."""
START_S = 5.0
"""The first look comes within so much of the agent's start."""
CAUSE_SAID, GONE = 2, 3
"""Status of a child whose last line says what is wrong, and of one that is no node any more."""
_NEXT = re.compile(rb"next ([0-9]{1,9})\n")
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """How one look ended."""

    error: str
    """One line; empty where all is well."""
    gone: bool = False
    """Whether the CA says that this is no node of its federation, or no longer."""


class Renewals:
    """Looks at a device's certificates again and again."""

    def __init__(self, directory: Path, log: Path, now: float) -> None:
        """Take the device's directory, a file for what children say, and a monotonic time."""
        self._directory, self._log = directory, log
        self._child: subprocess.Popen[bytes] | None = None
        self._until = 0.0
        self._pause = FIRST_S
        self._next, self._ask = now + drawn(START_S), False

    def soon(self, now: float) -> None:
        """Ask the CA at once: it seems that this node is not welcome."""
        self._next, self._ask = min(self._next, now), True

    def look(self, now: float) -> Renewal | None:
        """Start a child that is due; return how one ended, if one did since the last call.

        Args:
            now: Seconds of a clock that nobody sets.
        """
        if self._child is None:
            if now >= self._next:
                return self._start(now)
            return None
        if self._child.poll() is None:
            if now < self._until:
                return None
            self._child.kill()
        return self._ended(self._child, now)

    def close(self) -> None:
        """End a child that is at work; its files are written whole or not at all."""
        if self._child is not None:
            self._child.kill()
            reap(self._child, 1.0)
            self._child = None

    def _start(self, now: float) -> Renewal | None:
        flag, self._ask = "--ask" if self._ask else "--due", False
        command = module_command(
            sys.executable, str(__package__), "renew_cli", flag, str(self._directory)
        )
        try:
            with open(self._log, "ab", opener=private) as log:
                self._child = subprocess.Popen(  # noqa: S603 - our own module
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
                )
        except OSError as error:
            return self._failed(now, f"renewal: {error.strerror}")
        self._until = now + MOST_S
        return None

    def _ended(self, child: subprocess.Popen[bytes], now: float) -> Renewal:
        said = b""
        if child.stdout is not None:
            with suppress(OSError):
                said = child.stdout.read(64)
        how = reap(child, 1.0)
        self._child = None
        match = _NEXT.fullmatch(said)
        if child.returncode or match is None:
            named = child.returncode in {CAUSE_SAID, GONE}
            what = last_line(self._log).removeprefix("umbel: ") if named else f"renewal: {how}"
            return self._failed(now, what, gone=child.returncode == GONE)
        self._pause = FIRST_S
        self._next = now + drawn(min(float(match[1]), _DAY_S))
        return Renewal("")

    def _failed(self, now: float, what: str, *, gone: bool = False) -> Renewal:
        self._next = now + drawn(self._pause)
        self._pause = min(2 * self._pause, LONGEST_S)
        return Renewal(what, gone)


def drawn(seconds: float) -> float:
    """Return a pause between half of `seconds` and all of it."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
