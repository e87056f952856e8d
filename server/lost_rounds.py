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
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from .round_folder import Round
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
    named = run.ledger.run().run
    if named != run.path.name:
        raise StateError(str(run.path), f"the name of its run, {named}", "another", "rename it")
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


def _mark(run: RunDirectory, n: int, cause: str, model: bytes) -> None:
    attempt = 1 + max(record.attempt for record in run.ledger.rounds() if record.round == n)
    record = RoundRecord(
        round=n, attempt=attempt, phase="train", outcome="lost", cause=cause, model=model.hex()
    )
    run.ledger.commit_round(record)
    run.set_aside(n)
