"""What bounds the processes of one task, from a device's policy: the launcher, and its children.

    launcher    the bundle is imported there, beside the keys     data_roots
    children    the bundle trains there                           data_roots, memory, threads, disk

With `data_roots` the launcher may read the system, this Python, the roots, the device's own
directory and the owner's hooks, and write the device's directory; a child, the system, this Python
and the roots, and write what belongs to the task: no key, no journal. The kernel sees to it
(landlock.py); where it cannot, one line says so.

`disk` bounds each file by the kernel, and all files of a task by looking every `LOOK_S` while it
works.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import landlock
from .bounds import DEVICES, SYSTEM, Bounds, pythons
from .child import Around
from .limits import taken
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .device_files import DeviceFiles
    from .policy import Policy

LOOK_S = 2.0
LOGS = 32 << 20
"""No file is bounded below this: the log that a task writes to is one, and not the task's."""
_CONFINED = "UMBEL_CONFINED"
"""Set by a launcher for itself, when it begins again within its bounds."""


def confine(files: DeviceFiles, environment: Mapping[str, str] = os.environ) -> None:
    """Begin this program again within the bounds of a launcher, if the policy has any for it.

    A process can bound itself, but not the threads that it has already: a new program has none.

    Raises:
        SettingsError: A root cannot be opened to a task, or the kernel refuses.
    """
    policy = files.policy
    if policy.data_roots is None or not landlock.version():
        return
    if environment.get(_CONFINED) == str(os.getpid()):
        return
    _check_roots(policy, files.directory)
    hooks = [command[0] for command in (policy.metered_hook, policy.ready_hook) if command]
    own = str(files.directory.absolute())
    reads = (*policy.data_roots, *hooks, str(policy.ca))
    try:
        Bounds(reads=reads, writes=(own,)).apply()
        os.execve(  # noqa: S606 - this very program
            sys.executable, [sys.executable, *sys.orig_argv[1:]],
            {**environment, _CONFINED: str(os.getpid())},
        )  # fmt: skip
    except OSError as error:
        raise SettingsError("limits.data_roots", "what the kernel enforces", error) from error


def around(policy: Policy, home: Path | None) -> Around:
    """Return what bounds the children of a task; `home` is where it may write."""
    own = () if home is None or policy.data_roots is None else (str(home),)
    bounds = Bounds(
        memory=policy.memory,
        threads=policy.threads,
        file=None if policy.disk is None else max(policy.disk, LOGS),
        reads=policy.data_roots,
        writes=own,
    )
    if home is None or policy.disk is None:
        return Around(bounds)
    return Around(bounds, disk_watch(home, policy.disk))


def roots(policy: Policy) -> tuple[Path, ...]:
    """Return what a task is told of, as `site.data`."""
    return tuple(map(Path, policy.data_roots or ()))


def remark(policy: Policy) -> str:
    """Return what is to be said where the kernel does not enforce the data roots."""
    if policy.data_roots is None or landlock.version():
        return ""
    return "data roots: not enforced, this kernel has no Landlock; tasks are told them only"


def disk_watch(
    home: Path, bound: int, passed: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Return what ends a child whose task has written more than `bound` bytes below `home`."""
    looked = passed()

    def watch() -> None:
        nonlocal looked
        if passed() - looked < LOOK_S:
            return
        looked = passed()
        used = taken(home)
        if used > bound:
            detail = f"the task has written {used} bytes, limits.disk is {bound}"
            raise Refused(pb.REASON_LIMITS, detail, "limits.disk")

    return watch


def _check_roots(policy: Policy, device: Path) -> None:
    """Refuse a root under which this device's keys lie, and keys where every task reads."""
    for root in roots(policy):
        if device.resolve().is_relative_to(root.resolve()):
            expected = "roots without this device's own directory, where its keys are"
            raise SettingsError("limits.data_roots", expected, str(root))
    for place in (*SYSTEM, *DEVICES, *pythons()):
        if device.resolve().is_relative_to(Path(place).resolve()):
            expected = f"a device's directory outside of {place}, which every task reads"
            raise SettingsError("limits.data_roots", expected, str(device), "move the device")
