"""A device's journal on a disk that is full: nothing leaves, and a new process goes on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from umbel.clients.journal import FileJournal
from umbel.protocol.errors import Refused, StateError
from umbel.protocol.journal import Closed, Keyed, Masked, Released, Voted, encode
from umbel.tests.small_disk import fill, limited, mounted

if TYPE_CHECKING:
    from pathlib import Path


def ctx(n: int) -> bytes:
    return n.to_bytes(32, "big")


def until_it_fails(journal: FileJournal) -> tuple[str, int]:
    """Write records until the disk takes no more; return what was said, and how many it took."""
    number = 0
    while True:
        try:
            journal.write(Keyed(ctx(number)))
        except StateError as error:
            return str(error), number
        number += 1


def goes_on(path: Path, taken: int) -> None:
    """Check that a new process knows what was written, that alone, and writes on."""
    journal = FileJournal(path)
    try:
        assert journal.history.open_attempts() == tuple(ctx(n) for n in range(taken))
        journal.write(Keyed(ctx(taken)))
        with pytest.raises(Refused, match="new process"):
            journal.write(Keyed(ctx(0)))
    finally:
        journal.close()
    assert path.read_bytes() == b"".join(encode(Keyed(ctx(n))) for n in range(taken + 1))


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m") as place:
        path = place / "node" / "journal"
        journal = FileJournal(path)
        journal.write(Keyed(ctx(0)))
        fill(place / "ballast")
        journal.close()
        path.unlink()
        journal = FileJournal(path)
        line, taken = until_it_fails(journal)
        assert "got No space left on device; this node joins no secure round until it can" in line
        (place / "ballast").unlink()
        with pytest.raises(StateError, match="one that failed or is closed"):
            journal.write(Keyed(ctx(taken)))  # what is on the disk is not known
        journal.close()
        goes_on(path, taken)


def test_a_write_that_ends_in_the_middle_of_a_record(tmp_path: Path) -> None:
    """The kernel takes 40 bytes of the fourth record, and refuses the rest."""
    path = tmp_path / "node" / "journal"
    size = len(encode(Keyed(ctx(0))))

    def work() -> tuple[str, int]:
        journal = FileJournal(path)
        try:
            return until_it_fails(journal)
        finally:
            journal.close()

    said = limited(3 * size + 40, work)
    assert "File too large" in said
    assert path.stat().st_size == 3 * size + 40
    goes_on(path, 3)


def test_what_a_round_takes_of_the_disk(tmp_path: Path) -> None:
    """The figures of docs/operations.md."""
    for survivors in (3, 20, 32):
        path = tmp_path / f"{survivors}" / "journal"
        journal = FileJournal(path)
        ids = tuple(n.to_bytes(16, "big") for n in range(survivors))
        records = (
            Keyed(ctx(1)), Masked(ctx(2), "digits-20261130a", ctx(3), ctx(4)),
            Voted(ctx(2), ctx(5), ids), Released(ctx(2)), Closed(ctx(2)), Closed(ctx(1)),
        )  # fmt: skip
        for write in [partial(journal.write, record) for record in records]:
            write()
        journal.close()
        assert path.stat().st_size == 731 + len("digits-20261130a") + 32 * survivors
