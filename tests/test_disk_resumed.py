"""A real ServerApp whose disk fills, or whose newest round is damaged while it is down: resumed."""

from __future__ import annotations

import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory
from umbel.tests.damage import flip
from umbel.tests.small_disk import fill, mounted
from umbel.tests.soak_field import RUN, Field, Ledger, waited
from umbel.tests.soak_task import Chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from umbel.server.ledger import RoundRecord

CLIENTS, ROUNDS = 4, 60
PATIENCE_S = 90.0


@contextmanager
def field(rounds: int) -> Iterator[Field]:
    """Give core, driver and clients that run; a socket's name must be short."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:
        config = {"rounds": rounds, "deadline": 20.0}
        with Field(Path(folder), CLIENTS, config) as made:
            yield made


def begin(made: Field) -> Ledger:
    made.start_core()
    made.start_driver()
    for index in range(CLIENTS):
        made.start_client(index)
    return Ledger(made)


def rounds_on(made: Field, ledger: Ledger, count: int) -> int:
    """Wait until so many more rounds have finished; return the newest."""
    first = newest(ledger)

    def gone_on() -> bool:
        ledger.poll()
        return newest(ledger) >= first + count

    waited(gone_on, PATIENCE_S, lambda: made.log("driver"))
    return newest(ledger)


def newest(ledger: Ledger) -> int:
    return max((r.round for r in ledger.records if r.outcome == "finished"), default=0)


def test_a_disk_that_fills_and_is_freed(tmp_path: Path) -> None:
    with field(ROUNDS) as made, mounted(made.home, "size=16m"):
        ledger = begin(made)
        rounds_on(made, ledger, 5)
        fill(made.home / "ballast", 1 << 20)
        assert made.driver is not None
        assert made.driver.wait(PATIENCE_S) == 1
        (line,) = [said for said in made.log("driver").splitlines() if said.startswith("failed: ")]
        assert f"runs/{RUN}" in line
        assert "bytes free" in line
        assert line.endswith(f"then `umbel runs resume {RUN}`")
        (made.home / "ballast").unlink()
        with RunDirectory.open(made.home, RUN) as run:
            assert verify(run).wrong == ()
        made.start_driver(resume=True)
        assert made.driver.wait(PATIENCE_S) == 0, made.log("driver")
        ledger.poll()
        assert ledger.wrong == []  # every model is that of the rounds before it
        done = [r.round for r in ledger.records if (r.phase, r.outcome) == ("train", "finished")]
        assert done == list(range(1, ROUNDS + 1))
        assert {r.outcome for r in ledger.records} <= {"finished", "aborted"}
        ledger.close()


class Rewound(Chain):
    """The models that a run must have, of which the newest may be lost."""

    def __init__(self, index: dict[str, int]) -> None:
        """Begin with the initial model."""
        super().__init__(index)
        self.models = {0: dict(self.model)}

    def take(self, record: RoundRecord) -> list[str]:
        """Go on by one record, or back by one that says that a round is lost."""
        if record.outcome == "lost":
            del self.models[record.round]
            self.model = dict(self.models[max(self.models)])
        found = super().take(record)
        if (record.phase, record.outcome) == ("train", "finished"):
            self.models[record.round] = dict(self.model)
        return found


def _flipped(folder: Path) -> None:
    flip(folder / MODEL_FILE)


def _cut(folder: Path) -> None:
    (folder / MODEL_FILE).write_bytes((folder / MODEL_FILE).read_bytes()[:-9])


def _manifest(folder: Path) -> None:
    flip(folder / "manifest.json", 40)


def _another(folder: Path) -> None:
    """The round before, under this one's name."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name(f"{int(folder.name) - 1:06d}"), folder)


def _gone(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.timeout(240)
def test_the_newest_round_is_damaged_again_and_again() -> None:
    """Each time the round is lost, by name, and the next one is built on the one before."""
    damages: list[Callable[[Path], None]] = [_flipped, _cut, _manifest, _another, _gone]
    with field(100_000) as made:
        ledger = begin(made)
        ledger.chain = Rewound(made.index)
        lost = []
        for damage in damages:
            rounds_on(made, ledger, 2)
            assert made.driver is not None
            made.driver.send_signal(signal.SIGKILL)
            made.driver.wait(20)
            with RunDirectory.open(made.home, RUN) as run:
                number = max(run.committed())
                damage(run.round_path(number))
            lost.append(number)
            made.start_driver(resume=True)
        rounds_on(made, ledger, 2)
        assert ledger.wrong == []
        rows = [r for r in ledger.records if r.outcome == "lost"]
        assert [r.round for r in rows] == lost
        assert all(f"rounds/{n:06d}/" in r.cause for n, r in zip(lost, rows, strict=True))
        done = [r.round for r in ledger.records if (r.phase, r.outcome) == ("train", "finished")]
        assert done == list(range(1, done[-1] + 1))
        ledger.close()
