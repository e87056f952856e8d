"""How much memory this machine can still give, before it is asked for: a refusal beats a kill."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_GROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Return the bytes that this process may still take without another one's memory.

    The kernel's estimate, or what the control group leaves where that is less.
    """
    return min(int(psutil.virtual_memory().available), of_group(_GROUP))


def of_group(folder: Path) -> int:
    """Return what the limit of a control group leaves; files that nobody uses are given up."""
    try:
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no group, or "max": none of its own
        return sys.maxsize
    return max(0, limit - used + int(told.get("inactive_file", 0)))
