"""Which processes belong to a federation, and how they are ended.

Every program of a federation carries a mark in its environment, `UMBEL_UP=<mark>/<name>`. Whatever
it starts inherits the mark, so it finds processes in other sessions, too, and after their parent
died: Flower's SuperLink keeps its SuperExec and ServerApp that way. A process of which only pid and
start time were noted is known by both together, and by its mark where that can be read; one that
merely got an old pid is never touched.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    Process = Any  # psutil.Process: the library has no types

MARK = "UMBEL_UP"
GRACE_S = 4.0
"""From SIGTERM to SIGKILL."""
ORPHANS_S = 1.5
"""What a process started has so long after it to end by itself; Flower's looks every 0.2 s."""
_POLL_S = 0.02
_EXEC_S = 2.0
_SAME_START_S = 1.0


def marked(mark: str) -> list[tuple[str, Process]]:
    """Return (name of the program, process) of each living process that carries the mark."""
    found = []
    for process in psutil.process_iter():
        owner, _, name = (_carried(process) or "").partition("/")
        if owner == mark and process.pid != os.getpid() and alive(process):
            found.append((name, process))
    return found


def family(mark: str, names: Collection[str] | None = None) -> list[Process]:
    """Return the living processes that carry the mark, and all their descendants.

    Args:
        mark: Of one supervisor.
        names: Of its programs; None for all.
    """
    found: dict[int, Process] = {}
    for name, process in marked(mark):
        if names is None or name in names:
            found[process.pid] = process
            with suppress(psutil.Error):
                found |= {child.pid: child for child in process.children(recursive=True)}
    return [process for process in found.values() if alive(process)]


def recorded(pid: int, started: float, mark: str | None = None) -> Process | None:
    """Return the process that had this pid and start time, if it still runs.

    Args:
        pid: As noted.
        started: As noted, seconds since the epoch.
        mark: Which mark it must carry, where its environment can be read.
    """
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started) > _SAME_START_S or not alive(process):
            return None
    except psutil.Error:
        return None
    carried = _carried(process)
    if mark is not None and carried is not None and not carried.startswith(f"{mark}/"):
        return None
    return process


def alive(process: Process) -> bool:
    """Tell whether this very process runs; one that only waits to be reaped does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill(processes: Iterable[Process]) -> None:
    """End processes with SIGKILL and wait until they are gone."""
    doomed = list(processes)
    for process in doomed:
        with suppress(psutil.Error):
            process.kill()
    wait_gone(doomed, GRACE_S)


def end(
    mains: Sequence[Process], mark: str, names: Collection[str], grace: float, hurry: Hurry
) -> None:
    """Ask the main processes of some programs to end, kill what is left after a time.

    Args:
        mains: Get SIGTERM; what they started should end with them.
        mark: Of their supervisor.
        names: Of their programs.
        grace: Seconds that the main processes have.
        hurry: Ends the waiting.
    """
    noted = [*mains, *family(mark, names)]
    for process in mains:
        with suppress(psutil.Error):
            process.terminate()
    wait_gone(mains, grace, hurry)
    wait_gone(noted, ORPHANS_S, hurry)
    kill([*(process for process in noted if alive(process)), *family(mark, names)])


def wait_gone(processes: Iterable[Process], seconds: float, hurry: Hurry | None = None) -> bool:
    """Wait until all of these are gone; tell whether they are."""
    left, until = list(processes), time.monotonic() + seconds
    while left := [process for process in left if alive(process)]:
        if time.monotonic() > until or (hurry is not None and hurry.asked):
            return False
        time.sleep(_POLL_S)
    return True


class Hurry:
    """Whether somebody asked a second time that everything ends."""

    asked = False


@contextmanager
def unhurried() -> Iterator[Hurry]:
    """Take signals for the length of a block: they hurry it and do not break it off."""
    hurry = Hurry()

    def ask(_number: int, _frame: object) -> None:
        hurry.asked = True

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):  # not the main thread: signals do not come here
            before[number] = signal.signal(number, ask)
    try:
        yield hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def insist(work: Callable[[], None]) -> None:
    """Do work that must not be left half-done: who interrupts it waits for its end.

    Args:
        work: May be begun again after it was broken off anywhere.

    Raises:
        KeyboardInterrupt: When it is done, if one came meanwhile.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            work()
        except KeyboardInterrupt as error:
            interrupt = error
        else:
            break
    if interrupt is not None:
        raise interrupt


def _carried(process: Process) -> str | None:
    """Return the mark in a process's environment, empty for none; None if it is not readable.

    In the instant after its exec a process has no environment: a new one is looked at again.
    """
    try:
        found = process.environ()
        for _ in range(5):
            young = time.time() - process.create_time() <= _EXEC_S
            if found or not young or not alive(process):
                break
            time.sleep(_POLL_S)
            found = process.environ()
        return str(found.get(MARK, ""))
    except psutil.AccessDenied:
        return None
    except (psutil.Error, OSError):
        return ""
