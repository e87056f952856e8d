"""How much of the disk a run will still take, and what is said and done when it is not there.

    still needed = (KEPT + 1 - kept) * (round + ROUND_BYTES)    rounds that stay, and one in writing
                 (one more where the server tests models after their rounds: it is still read)
                 + OPEN * model                                 the sum of a round that is open
                 + rows to come * bytes a row                   the ledger, by its rows so far
                 + SPARE_BYTES

A round is a model, and as much for each moment of the server step.

| free bytes | what happens |
|---|---|
| below the first three terms, before round 0 | the run does not start |
| below one round and SPARE_BYTES, before any round | the run ends, before a byte is written |
| below what is still needed | event `warning`, again whenever half of what was free is gone |

A run never takes more than this: older rounds are pruned, and SQLite puts its log back into the
ledger every 4 MB. Earlier runs are never removed; that is for whoever keeps them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..host.disk_room import free_bytes
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from .run_directory import RunDirectory
    from ..protocol.manifest import Manifest

KEEP_LAST = 3
KEPT = KEEP_LAST + 1
"""Rounds that stay: the newest ones, and the best."""
SERVER_TEST = "server-test"
"""Key of a run's recorded configuration: whether its models are tested after their rounds."""
ROUND_BYTES = 1 << 16
"""Of a round's folder beside its arrays: manifest, header, blocks that are not full."""
OPEN = 2
"""A sum has 8 bytes for each value, which has 4 in most models."""
ROW_BYTES = 2048
"""Of a round in the ledger, before there are any to measure."""
SPARE_BYTES = 4 << 20
"""Room for the ledger's log and its next pages."""


class DiskSpace:
    """The free space under one run."""

    def __init__(self, run: RunDirectory) -> None:
        """Look at nothing yet."""
        self._run = run
        self._warned: int | None = None

    def check(self, n: int, manifest: Manifest, models: int) -> None:
        """Refuse or warn before round `n` is written, as the table of this module says.

        Args:
            n: The round.
            manifest: Of its model.
            models: How many times the model's bytes it has.

        Raises:
            StateError: There is too little space; both numbers are said.
        """
        run, free = self._run, free_bytes(self._run.path)
        rounds, ledger = self._to_come(n, manifest, models)
        if n == 0 and free < rounds + SPARE_BYTES:
            raise StateError(
                str(run.path), f"{rounds + SPARE_BYTES} bytes free for a run of this model",
                f"{free} bytes", "free the disk, or point UMBEL_HOME at another one",
            )  # fmt: skip
        if free < (one := needed(manifest, models)):
            raise StateError(
                str(run.path), f"{one} bytes free for this round", f"{free} bytes",
                move(run.path.name),
            )  # fmt: skip
        wanted = rounds + ledger + SPARE_BYTES
        if free < wanted and (self._warned is None or free < self._warned // 2):
            self._warned = free
            line = _warning(run.path, free, wanted)
            run.ledger.event("warning", round=n, attempt=0, code=line)
            run.warn(line)

    def _to_come(self, n: int, manifest: Manifest, models: int) -> tuple[int, int]:
        """Return the bytes that rounds and ledger will still take."""
        record = self._run.ledger.begun()
        total = record.config.get("rounds", 0) if record is not None else 0
        left = max(0, total - n) if isinstance(total, int) else 0
        kept = KEPT + (record is not None and bool(record.config.get(SERVER_TEST)))
        rounds = (kept + 1 - min(kept, len(self._run.kept()))) * (
            models * manifest.total_bytes + ROUND_BYTES
        ) + OPEN * manifest.total_bytes
        size = self._run.ledger.path.stat().st_size
        return rounds, left * (max(ROW_BYTES, size // n) if n else ROW_BYTES)


def needed(manifest: Manifest, models: int = 1) -> int:
    """Return the bytes that one more round, of so many models' size, takes while it is written."""
    return models * manifest.total_bytes + ROUND_BYTES + SPARE_BYTES


def move(run: str) -> str:
    """Return what to do about a disk that is full for a run, by its id."""
    return f"free the disk, then `umbel runs resume {run}`"


def full(path: Path, manifest: Manifest, models: int, why: str) -> StateError:
    """Return the error of a round, `path` its folder, whose writing failed, with the numbers."""
    expected = f"{needed(manifest, models)} bytes free for this round"
    got = f"{free_bytes(path.parent)} bytes, and {why}"
    return StateError(str(path), expected, got, move(path.parents[1].name))


def _warning(path: Path, free: int, wanted: int) -> str:
    return (
        f"{path}: {free} bytes are free, and this run may take {wanted} more until its end; "
        "free the disk"
    )
