"""Memory of a process as Linux counts it, in bytes."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
_RESET = "5"
"""What clear_refs takes to set the peak back to what is resident (proc(5))."""


def resident(process: int | str = "self") -> int:
    """Return what is in memory now (`VmRSS`)."""
    return _field(Path("/proc", str(process), "status"), "VmRSS")


def peak(process: int | str = "self") -> int:
    """Return the most that was in memory since the start or the last reset (`VmHWM`)."""
    return _field(Path("/proc", str(process), "status"), "VmHWM")


def reset_peak() -> None:
    """Set this process's peak back to what is resident; nothing where the kernel forbids it."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET, encoding="ascii")
    except OSError:
        return  # the peaks are then those since the start: never too small


def proportional(process: int | str = "self") -> int:
    """Return resident memory with shared pages divided among those who share them (`Pss`)."""
    return _field(Path("/proc", str(process), "smaps_rollup"), "Pss")


def session_members(leader: int) -> list[int]:
    """Return the processes of a session, the leader's own and all that it started.

    `setsid` makes the leader's process id the session's; a stat file names it after the command,
    which stands in brackets and may hold anything.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, _, _, session = fields.rpartition(")")[2].split()[:4]
        if int(session) == leader and state != "Z":
            found.append(int(folder.name))
    return found


def _field(path: Path, name: str) -> int:
    """Return a field of a /proc file, which says kB and means KiB."""
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path}: no field {name}")
