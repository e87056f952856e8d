"""When a device may take part, and how much: the operating limits of its policy, in force.

    checked when        hours, bytes_per_day, metered_*, ready_hook, disk
    a session begins    each of them
    an attempt begins   each of them, the bytes of its model both ways included
    between attempts    all but disk, again and again: the session then ends, and says `limits`

A hook is asked when a session begins and then once in `ASK_S` at most. What a round in progress
needs is never taken from it: its bytes were put on the account when it began (usage.py).

The server learns `limits` and the key; hours, numbers and what a hook said stay on the device.
What bounds the training itself is in bounds.py.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from . import hooks
from .hours import within
from .links import interface_to, listed
from .usage import AHEAD, FILE, Usage, Used
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from .device_files import DeviceFiles
    from .policy import Policy
    from .session import Device

TASKS = "tasks"
"""Folder of a device's directory in which each task has a home."""
ASK_S = 60.0
"""How old what a hook, or the route to the gateway, said may be."""


DAY_S = 86_400.0
"""How long a round that was begun counts."""


class Place(NamedTuple):
    """What of the machine the limits look at."""

    gateway: str = ""
    """`host:port`; empty where there is no network."""
    tasks: Path | None = None
    """The directory of what tasks write."""


class Limits:
    """The operating limits of one session."""

    def __init__(
        self,
        policy: Policy,
        usage: Usage,
        now: Callable[[], datetime],
        place: Place | None = None,
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at nothing yet.

        Args:
            policy: The device's own.
            usage: Its account; closed with `close`.
            now: Wall time, aware.
            place: What of the machine is looked at; None for a client of a simulation.
            passed: Monotonic seconds.
        """
        self._policy, self._usage, self._now = policy, usage, now
        self._place, self._passed = place or Place(), passed
        self._ready: tuple[float, str] | None = None
        self._link: tuple[float, bool] | None = None
        self._moved = 0
        self._begun: list[float] = []

    def rounds(self) -> int:
        """Return the rounds that were begun in the last 24 hours, by earlier processes too."""
        now = self._passed()
        self._begun = [at for at in self._begun if now - at < DAY_S]
        return len(self._begun) + self._usage.earlier().rounds

    def check(self, model_bytes: int = 0) -> None:
        """Refuse to begin a session or, with its model's bytes, an attempt.

        Raises:
            Refused: `limits`, with the key.
            SettingsError: A hook cannot be run.
        """
        self.look(2 * model_bytes)
        self._check_disk(model_bytes)

    def look(self, moves: int = 0) -> None:
        """Refuse to go on between attempts: what can change while nothing is done.

        Raises:
            Refused: `limits`, with the key.
            SettingsError: A hook cannot be run.
        """
        self._check_hours()
        self._check_bytes(moves)
        self._check_hook()

    def begin(self, model_bytes: int) -> None:
        """Put a round on the account, with the bytes that it is going to move.

        Raises:
            StateError: The account cannot be written.
        """
        moves = 2 * model_bytes
        self._usage.about_to_use(Used(moves, moves if self._metered() else 0, 1))
        self._usage.add(Used(rounds=1))
        self._begun.append(self._passed())

    def moved(self, total: int) -> None:
        """Note the bytes, both ways, that the session has moved since it began.

        Raises:
            StateError: The account cannot be written.
        """
        more, self._moved = total - self._moved, total
        if more > 0:
            self._usage.add(Used(more, more if self._metered() else 0))

    def close(self) -> None:
        """Write down what was used.

        Raises:
            StateError: The account cannot be written.
        """
        self._usage.close()

    # -- each key ---------------------------------------------------------------------------

    def _check_hours(self) -> None:
        hours = self._policy.hours
        now = self._now().astimezone().strftime("%H:%M")
        if hours is not None and not any(within(now, window) for window in hours):
            raise _refused("hours", f"it is {now}, limits.hours is {', '.join(hours) or 'never'}")

    def _check_bytes(self, wanted: int) -> None:
        policy = self._policy
        if policy.bytes_per_day is None and policy.metered_bytes_per_day is None:
            return
        used = self._usage.day()
        bound = policy.bytes_per_day
        if bound is not None and used.bytes + max(wanted, 1) > bound:
            detail = f"{used.bytes} bytes in 24 hours, {wanted} to come"
            raise _refused("bytes_per_day", f"{detail}, limits.bytes_per_day is {bound}")
        bound = policy.metered_bytes_per_day
        if bound is not None and self._metered() and used.metered + max(wanted, 1) > bound:
            detail = f"the link is metered: {used.metered} bytes in 24 hours, {wanted} to come"
            key = "metered_bytes_per_day"
            raise _refused(key, f"{detail}, limits.metered_bytes_per_day is {bound}")

    def _check_hook(self) -> None:
        command = self._policy.ready_hook
        if command is None:
            return
        if self._ready is None or self._passed() - self._ready[0] >= ASK_S:
            status, words = hooks.answer(command, "limits.ready_hook")
            self._ready = self._passed(), "" if status == 0 else words
        if self._ready[1]:
            raise _refused("ready_hook", f"limits.ready_hook says no: {self._ready[1]}")

    def _check_disk(self, model_bytes: int) -> None:
        bound, tasks = self._policy.disk, self._place.tasks
        if bound is None or tasks is None:
            return
        used = taken(tasks)
        if used + model_bytes > bound:
            detail = f"{used} bytes in {tasks}, a model of {model_bytes}"
            raise _refused("disk", f"{detail}, limits.disk is {bound}")

    def _metered(self) -> bool:
        """Say whether the link is metered; what cannot be found out counts as metered."""
        policy = self._policy
        if policy.metered_bytes_per_day is None:
            return False
        if self._link is None or self._passed() - self._link[0] >= ASK_S:
            self._link = self._passed(), self._looked(policy.metered_hook)
        return self._link[1]

    def _looked(self, hook: Sequence[str] | None) -> bool:
        patterns = self._policy.metered_interfaces
        if patterns is not None and listed(interface_to(self._place.gateway), patterns):
            return True
        return hook is not None and hooks.answer(hook, "limits.metered_hook")[0] != 1


def own_limits(device: Device) -> Limits:
    """Return the limits of a client whose account ends with it: of a simulation."""
    now = device.clock
    return Limits(device.policy, Usage(None, now), now, passed=device.passed)


def limits_of(files: DeviceFiles) -> Limits:
    """Return a device's operating limits, with its account; who adds to it has the journal open.

    Raises:
        StateError: The account is damaged.
    """
    usage = Usage(files.directory / FILE, files.clock, _ahead(files.policy))
    return Limits(files.policy, usage, files.clock, Place(files.gateway, files.directory / TASKS))


def _ahead(policy: Policy) -> Used:
    """Return how far the file may be ahead: what a kill may cost is a hundredth of the bounds."""
    bounds = [policy.bytes_per_day, policy.metered_bytes_per_day]
    least = min([AHEAD.bytes, *(bound // 100 for bound in bounds if bound is not None)])
    return Used(least, least, min(AHEAD.rounds, policy.rounds_per_day // 100))


def taken(folder: Path) -> int:
    """Return the bytes of the disk that the files below a folder take; links are not followed."""
    total, left = 0, [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:  # removed meanwhile
            continue
    return total


def _refused(key: str, detail: str) -> Refused:
    return Refused(pb.REASON_LIMITS, detail, f"limits.{key}")
