"""`umbel runs verify`: everything about a run on the disk that can be checked without its devices.

| checked | against |
|---|---|
| every page of the ledger, and its tables | SQLite's own check, and the schema of this version |
| every row of the ledger | the chain of hashes |
| every byte of each kept round that counts | its manifest and the ledger's row |
| the ledger's end | the row that each kept round names as the last one before it |
| the newest round that counts | that it is there |
| every test of a model | the ledger's row of its round, which names the model |

A round is named by file and cause. What cannot be seen here: rows cut off the end after the newest
round on the disk was written, and a record that was false from the start. Nothing is changed, and
the run may be written meanwhile: a round that was pruned while this looked is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .ledger import TESTED
from .lost_rounds import check_end, check_uncommitted
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from .run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What `verify` found."""

    run: str
    rows: int
    """Rows of the ledger; 0 where its chain is broken."""
    head: str
    """Hash, hex, of the last row."""
    rounds: dict[int, str]
    """Digest, hex, of each kept round that counts and is whole."""
    wrong: tuple[str, ...]
    """What is damaged, each in one line, the first found first."""
    lost: tuple[int, ...]
    """Rounds that the ledger calls lost."""
    passed: tuple[str, ...]
    """What lies in `rounds` and is not checked: not committed, open, set aside."""


def verify(run: RunDirectory) -> Checked:
    """Check a run; what is damaged is in the answer, not raised.

    Raises:
        StateError: The ledger or the directory cannot be read at all.
    """
    try:
        chain = run.ledger.chain()
    except StateError as error:
        return _broken(run, str(error))
    models, rounds, wrong = run.ledger.models(), dict[int, str](), list[str]()
    counted = {0, *models}
    for n in sorted(counted.intersection(run.kept())):
        try:
            found = run.read(n)
            check_end(run, found, chain)
        except StateError as error:
            if not _pruned(run, n):
                wrong.append(str(error))
        else:
            rounds[n] = found.digest.hex()
    wrong += _end_there(run, chain) + _newest_there(run, max(counted)) + _tests_right(run)
    return Checked(
        run=run.path.name,
        rows=len(chain),
        head=chain[-1] if chain else bytes(32).hex(),
        rounds=rounds,
        wrong=tuple(wrong),
        lost=tuple(sorted(run.ledger.finished("train") - models.keys())),
        passed=_passed(run, counted),
    )


def _broken(run: RunDirectory, what: str) -> Checked:
    """Return the answer about a ledger that nothing can be compared with."""
    return Checked(
        run=run.path.name, rows=0, head="", rounds={}, wrong=(what,), lost=(), passed=()
    )  # fmt: skip


def _end_there(run: RunDirectory, chain: list[str]) -> list[str]:
    """Return a line where a round that is not committed names rows that the ledger has lost."""
    try:
        check_uncommitted(run, chain)
    except StateError as error:
        return [str(error)]
    return []


def _newest_there(run: RunDirectory, newest: int) -> list[str]:
    """Return a line where the newest round that counts is not on the disk."""
    if newest in run.kept() or _pruned(run, newest) or (not newest and not run.ledger.initial()):
        return []
    path, move = run.round_path(newest), "resume the run, or restore a backup"
    return [str(StateError(str(path), "the newest finished round", "nothing", move))]


def _tests_right(run: RunDirectory) -> list[str]:
    """Return a line for each test of a model that the ledger has for no round of that number."""
    tests = [event for event in run.ledger.events() if event.kind == TESTED]  # first: rows come
    known = {(r.round, r.model) for r in run.ledger.rounds() if r.outcome == "finished"}
    path, move = str(run.ledger.path), "restore the file from a backup"
    return [
        str(StateError(path, f"round {of.round} with the tested model {of.code}", "none", move))
        for of in tests
        if (of.round, of.code) not in known
    ]


def _pruned(run: RunDirectory, n: int) -> bool:
    """Tell whether a round went while this looked, as a run that goes on may remove it."""
    return n not in run.kept() and n < max({0, *run.ledger.models()})


def _passed(run: RunDirectory, counted: set[int]) -> tuple[str, ...]:
    names = {f"{n:06d}" for n in counted}
    return tuple(sorted(p.name for p in run.folders() if p.name not in names))
