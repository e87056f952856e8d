"""What bounds the processes that run a bundle's code.

    python -m umbel.clients.bounds JSON PROGRAM ARGUMENTS

    memory    bytes of address space, of each process              RLIMIT_AS
    threads   processors, of all its processes together            affinity
    file      bytes of one file                                    RLIMIT_FSIZE
    reads     paths below which it may read, `writes` also write   Landlock

The program is executed in this very process after the bounds are on it: so they hold from its first
instruction, in every thread, and for whatever it starts. Light to import: nothing of numpy, flwr or
the protocol.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import landlock

if TYPE_CHECKING:
    from collections.abc import Sequence

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/nscd", "/var/lib/sss", "/run/nvidia"),
)
"""What programs read of the system: libraries, configuration, name resolution, devices."""
DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/dev/shm", "/dev/pts", "/dev/nvidia*", "/dev/nvidia-caps", "/dev/dri", "/dev/kfd"),  # noqa: S108 - shared memory
)
"""What programs open of `/dev`, to read and write: no disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Bounds of processes; None is no bound."""

    memory: int | None = None
    threads: int | None = None
    file: int | None = None
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] = ()

    def any(self) -> bool:
        """Say whether there is a bound at all."""
        return self != Bounds()

    def around(self, command: Sequence[str], python: str = sys.executable) -> list[str]:
        """Return the command that runs a command within these bounds."""
        if not self.any():
            return list(command)
        own = json.dumps(asdict(self))
        return [python, "-P", "-m", f"{__package__}.bounds", own, *command]

    def apply(self) -> None:
        """Put the bounds on this process, for good.

        Raises:
            OSError: The kernel refuses one.
            ValueError: A process may not have so much.
        """
        if self.threads is not None:
            mine = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, mine[-self.threads :])
        if self.file is not None:
            lower(resource.RLIMIT_FSIZE, self.file)
        if self.reads is not None and landlock.version():
            devices = (found for pattern in DEVICES for found in glob(pattern))
            landlock.restrict((*SYSTEM, *pythons(), *self.reads), (*devices, *self.writes))
        if self.memory is not None:  # last: the steps before need a little
            lower(resource.RLIMIT_AS, self.memory)


def pythons() -> tuple[str, ...]:
    """Return where this interpreter finds its modules, Umbel's own among them."""
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).resolve().parents[1]))
    return tuple(dict.fromkeys((*own, *filter(os.path.isabs, sys.path))))


def lower(kind: int, bound: int) -> None:
    """Lower a resource limit, hard and soft, to `bound`; never raise one."""
    _, hard = resource.getrlimit(kind)
    least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(kind, (least, least))


def of_json(text: str) -> Bounds:
    """Return what `Bounds.around` wrote."""
    fields: dict[str, Any] = json.loads(text)
    for name in ("reads", "writes"):
        fields[name] = None if fields[name] is None else tuple(fields[name])
    return Bounds(**fields)


def main(words: Sequence[str]) -> int:
    """Bound this process and become the program; returns where that cannot be done."""
    try:
        of_json(words[0]).apply()
        os.execv(words[1], list(words[1:]))  # noqa: S606 - the caller's own program
    except (OSError, ValueError) as error:
        print(f"bounds of the policy: {error}; nothing was run", file=sys.stderr, flush=True)
    return 71


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
