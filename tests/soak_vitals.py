"""What processes hold while a soak runs: memory, descriptors, threads, children, zombies.

Read from /proc alone. A slope is that of the least squares through the samples after round
`SETTLED`; what is to stay flat is compared by medians, of the rounds after it and of the last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTLED = 50
"""Round after which memory may not grow any more."""
SLOPE = 0.1
"""Most MB a round."""
ENOUGH = 5
"""Samples from which something is said."""
_MB = 1e6
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Vital:
    """One process at one moment."""

    round: int
    rss: float
    """MB, resident."""
    files: int
    threads: int
    children: int
    zombies: int


def look(pid: int, number: int) -> Vital | None:
    """Return what a process holds in round `number`, or None when it is gone."""
    place = Path(f"/proc/{pid}")
    try:
        rss = int((place / "statm").read_text().split()[1]) * _PAGE / _MB
        files = len(os.listdir(place / "fd"))
        threads = len(os.listdir(place / "task"))
        below = children(pid)
        zombies = sum(state(child) == "Z" for child in below)
    except (OSError, IndexError):
        return None
    return Vital(number, rss, files, threads, len(below), zombies)


def children(pid: int) -> list[int]:
    """Return the children of every thread of a process."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue
    return found


def state(pid: int) -> str:
    """Return the letter of a process's state, `Z` for a zombie, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of one process from round `SETTLED` to the end."""

    name: str
    first: Vital
    last: Vital
    slope: float
    """MB a round."""

    @property
    def broken(self) -> list[str]:
        """Say which bound is broken, in words."""
        found = []
        if self.slope >= SLOPE:
            found.append(f"{self.name}: memory grows {self.slope:.3f} MB a round")
        for what, room in (("files", 4), ("threads", 4), ("children", 1), ("zombies", 0)):
            before, after = getattr(self.first, what), getattr(self.last, what)
            if after > before + room:
                found.append(f"{self.name}: {before} {what} became {after}")
        return found


class Record:
    """What was seen of each process; one that takes another's place begins anew."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self._seen: dict[str, tuple[int, list[Vital]]] = {}

    def look(self, name: str, pid: int, number: int) -> None:
        """Keep what a process holds in round `number`."""
        found = look(pid, number)
        if found is None:
            return
        if name not in self._seen or self._seen[name][0] != pid:
            self._seen[name] = pid, []
        self._seen[name][1].append(found)

    def growths(self, settled: int = SETTLED) -> list[Growth]:
        """Return what became of each process that was there long enough.

        A process settles in the rounds before `settled`, or in as many of its own.
        """
        found = []
        for name, (_, seen) in self._seen.items():
            begin = max(settled, seen[0].round + settled)
            after = [v for v in seen if v.round >= begin]
            if len(after) >= ENOUGH:
                found.append(growth(name, after))
        return found


def growth(name: str, found: Sequence[Vital]) -> Growth:
    """Return what became of a process; the two ends are medians of a fifth of the samples each."""
    fifth = max(1, len(found) // 5)
    slope = _slope([(v.round, v.rss) for v in found])
    return Growth(name, _middle(found[:fifth]), _middle(found[-fifth:]), slope)


def _middle(seen: Sequence[Vital]) -> Vital:
    def of(what: str) -> float:
        return float(median(getattr(v, what) for v in seen))

    counts = (int(of(what)) for what in ("files", "threads", "children", "zombies"))
    return Vital(int(of("round")), of("rss"), *counts)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least squares through the points, 0 for fewer than two places."""
    n = len(points)
    x, y = (sum(p[i] for p in points) / max(n, 1) for i in (0, 1))
    spread = sum((place - x) * (place - x) for place, _ in points)
    together = sum((place - x) * (value - y) for place, value in points)
    return together / spread if spread else 0.0
