"""Where a run goes on: its newest round that is whole, and what becomes of newer ones.

A round counts when the ledger says `finished` and no later row says `lost`. The newest that counts
is read, every byte hashed and compared with the digest of its row. Where it is damaged, missing or
another run's, the one before it is tried, down to the initial model. Every round that is passed
over stays finished in the ledger and gets a further row:

    outcome `lost`, of the same round and phase, with the next free attempt number
    cause   the file and what was wrong with it
    model   the digest in force from here: that of the round the run goes on from

The row comes first, newest round first; then what lies in the round's place is renamed to
`NNNNNN.lost` and left for whoever wants to look at it. A crash in between is made good by the next
resume. The next round has the next number. Nothing is recorded where no round is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ledger import RoundRecord
from .run_place import check_name
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .round_folder import About, Round
    from .run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """From where a run goes on."""

    newest: Round | None
    """The newest committed round that is whole, with its arrays, manifest and digest: the model
    in force. None where no round has finished and the initial model is not whole: nothing was
    built on it, and the run starts with a new one."""
    lost: tuple[tuple[int, str], ...] = ()
    """Rounds that the ledger calls finished and that were found lost now, newest first, each
    with what was wrong; their rows are written."""


def find(run: RunDirectory) -> Resumed:
    """Return the newest round that is whole, and mark what is newer as lost.

    Raises:
        StateError: The directory has another run's name, or no round is whole.
    """
    check_name(run.path, run.ledger.run().run)
    models, lost = run.ledger.models(), list[tuple[int, str]]()
    for n in sorted({0, *models}, reverse=True):
        try:
            newest = run.read(n)
        except StateError as error:
            lost.append((n, str(error).partition(";")[0]))
            continue
        for number, cause in lost:
            _mark(run, number, cause, newest.digest)
        return Resumed(newest=newest, lost=tuple(lost))
    if models:
        raise StateError(
            str(run.path / "rounds"), f"a whole round up to {max(models)}", f"none; {lost[0][1]}",
            "restore a backup, or start a new run",
        )  # fmt: skip
    run.set_aside(0)
    return Resumed(newest=None)


def check_end(run: RunDirectory, found: About, chain: Sequence[str]) -> None:
    """Refuse a ledger without the row that a round names as the last one before it.

    So is a ledger found that was copied without its -wal file, or is an older one.

    Args:
        run: The run.
        found: What the round's manifest says.
        chain: The hashes of the ledger's rows, hex; it may have grown since.

    Raises:
        StateError: The row is not there, or is another.
    """
    seq, head = found.ledger
    if not seq or list(chain[seq - 1 : seq]) == [head]:
        return
    if run.ledger.chain()[seq - 1 : seq] != [head]:
        raise StateError(
            str(run.ledger.path), f"row {seq} as it was when round {found.number} was written",
            f"only {len(chain)} rows" if seq > len(chain) else "another row",
            f"copy its -wal file too; if that is gone, remove {run.round_path(found.number)}",
        )  # fmt: skip


def check_uncommitted(run: RunDirectory, chain: Sequence[str]) -> None:
    """Refuse a ledger that has lost its end, by the rounds that it does not know.

    Raises:
        StateError: As `check_end`.
    """
    for n in sorted(set(run.kept()) - run.ledger.finished("train") - {0}):
        try:
            found = run.about(n)
        except StateError:
            continue  # no whole manifest: nobody relies on it
        check_end(run, found, chain)


def _mark(run: RunDirectory, n: int, cause: str, model: bytes) -> None:
    attempt = 1 + max(record.attempt for record in run.ledger.rounds() if record.round == n)
    record = RoundRecord(
        round=n, attempt=attempt, phase="train", outcome="lost", cause=cause, model=model.hex()
    )
    run.ledger.commit_round(record)
    run.set_aside(n)
