"""A run outlives its ServerApps: when one was killed, and how the next one goes on.

A ServerApp that ends by itself, or by an error of its own, tells the SuperLink so before it goes.
One that was killed tells nobody, and Flower would call its run `running` for another minute:
so a run that runs, and of which no ServerApp is left, has lost it. Its task cannot be taken up
again, so the same app is submitted anew, under the same run id of ours: `UMBEL_RUN` and
`UMBEL_RESUME=1` are variables of a SuperExec that takes the place of the one before.

That happens `LIVES` times in a row at most without a round finished in between. Whatever kills a
ServerApp from outside lets it finish one sooner or later; what kills it in the same round again and
again, such as too little memory, would go on for ever.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil  # type: ignore[import-untyped]

from .flower_programs import SUPEREXEC
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .flower_control import Control, RunState
    from .run_config import Value
    from ..host.processes import Supervisor

LIVES = 5
PAUSE_S, LONGEST_S = 1.0, 8.0
"""Before the second ServerApp in a row, doubled for each one more up to the most."""
LOST = "No heartbeat received from the task"
"""How Flower words, a minute later, that a ServerApp is gone."""
KILLED = "was killed"
_PROGRAM = "flwr-serverapp"
_EXIT_CODE = 49
"""Place of the exit status in /proc/PID/stat, after the command's name and the state."""


class Up(Protocol):
    """The federation on which a run goes on: of `umbel up`, its keeper, or `umbel server up`."""

    supervisor: Supervisor
    control: Control

    def resume(self, run: str) -> None:
        """Let the ServerApps that start from now on go on with a run of ours."""

    def submit(self, config: Mapping[str, Value]) -> int:
        """Start the app's run and return the id that Flower gives it."""


class Lives:
    """The ServerApps of one run, one after another."""

    def __init__(self, up: Up, config: Mapping[str, Value], flower_run: int) -> None:
        """Begin with the one of Flower's run `flower_run`, which overrides the app's `config`."""
        self._up, self._config = up, config
        self.flower_run = flower_run
        self._in_a_row, self._rounds = 0, 0
        self._next_try = float("inf")

    def look(self) -> tuple[RunState, str]:
        """Return what Flower says about the run, and in words how its ServerApp was killed, if so.

        Raises:
            StateError: The SuperLink does not answer.
        """
        there, ended = serverapps(self._up.supervisor)  # first: it says its end before it goes
        state = self._up.control.run(self.flower_run)
        if state.over:
            return state, KILLED * (state.details == LOST)
        lost = state.status == "running" and not there
        return state, (ended or KILLED) * lost

    def note(self, rounds: int, now: float) -> None:
        """Plan the next one.

        Args:
            rounds: How many are finished.
            now: Monotonic seconds.

        Raises:
            StateError: `LIVES` were killed since the last round that finished.
        """
        if rounds > self._rounds:
            self._in_a_row, self._rounds = 0, rounds
        if self._in_a_row >= LIVES:
            raise StateError(
                "ServerApp", f"one of {LIVES + 1} to finish a round", "each was killed",
                "look for what kills it: the kernel's log names a lack of memory",
            )  # fmt: skip
        pause = min(PAUSE_S * 2.0 ** (self._in_a_row - 1), LONGEST_S) if self._in_a_row else 0.0
        self._in_a_row += 1
        self._next_try = now + pause

    @property
    def waiting(self) -> bool:
        """Whether a ServerApp was lost and has no successor yet."""
        return self._next_try < float("inf")

    def again(self, run: str, now: float) -> bool:
        """Submit the app for the run `run` of ours, or for a new one; tell whether that was done.

        It is not while the SuperLink is away, or before its time.
        """
        if now < self._next_try:
            return False
        try:
            with suppress(SettingsError):  # it is over
                self._up.control.stop_run(self.flower_run)
            self._up.resume(run)
            self.flower_run = self._up.submit(self._config)
        except StateError:
            return False
        self._next_try = float("inf")
        return True


def serverapps(supervisor: Supervisor) -> tuple[list[Any], str]:
    """Return the ServerApps that run, and in words how the last one ended that does not."""
    living, ended = [], ""
    try:
        children = psutil.Process(supervisor.pid(SUPEREXEC)).children()
    except psutil.Error:
        return [], ""
    for child in children:
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                ended = _how(child.pid)
            elif not (words := child.cmdline()) or any(_PROGRAM in part for part in words):
                living.append(child)  # one without words is in the instant after its exec
        except psutil.Error:
            continue
    return living, ended


def _how(pid: int) -> str:
    """Return how a process ended that nobody has waited for: SuperExec does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        status = int(stat.rpartition(")")[2].split()[_EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return ""
    signal = status & 0x7F
    return f"was killed by signal {signal}" if signal else f"exited with status {status >> 8}"
