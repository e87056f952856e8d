"""An app whose test can be watched, held, broken and killed by whoever runs it, and its runs.

In the app's folder `hold` makes a test wait, `boom` makes it raise, `seen` has a line for each
call: process, rows, threads of OpenMP.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from umbel.protocol.digest import model_digest
from umbel.protocol.manifest import Manifest
from umbel.server.evaluation import Evaluation, chosen_tester
from umbel.server.evaluators import AppTest
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.write_behind import WriteBehind
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.trainer import TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CODE = """
import os, time
from pathlib import Path

import numpy as np

import umbel

HERE = Path(__file__).parent
ROWS = {rows}


class Points(umbel.Task):
    watched = True  # a device's own is not

    def train_data(self, site):
        x = np.random.default_rng(site.index).normal(size=(24, 4)).astype(np.float32)
        return x, (x[:, 0] > 0.2).astype(np.int64)

    def model(self):
        {model}

    def test_data(self):
        x = np.random.default_rng(7).normal(size=(ROWS, 4)).astype(np.float32)
        return (x, (x[:, 0] > 0.2).astype(np.int64)) if ROWS else None

    def evaluate(self, model, data):
        if not self.watched:
            return super().evaluate(model, data)
        with open(HERE / "seen", "a") as file:
            file.write(f"{{os.getpid()}} {{len(data[0])}} {{os.environ.get('OMP_NUM_THREADS')}}\\n")
        while (HERE / "hold").exists():
            time.sleep(0.01)
        if (HERE / "boom").exists():
            print("on its way", flush=True)
            raise ValueError("no digit 7\\nin the table")
        return super().evaluate(model, data)
"""
NUMPY = "return umbel.MLP(4, 3, 2)"
TORCH = "from torch import nn; return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))"


def written(folder: Path, name: str, rows: int = 1500, model: str = NUMPY) -> AppRef:
    """Write the app; its module has this name."""
    (folder / f"{name}.py").write_text(CODE.format(rows=rows, model=model))
    return AppRef(folder, f"{name}:Points")


def model_of(n: int, like: dict[str, Any]) -> dict[str, Any]:
    """Return the model of round n: another one for each."""
    rng = np.random.default_rng(n)
    return {k: rng.normal(size=a.shape).astype(a.dtype) for k, a in like.items()}


class Rounds:
    """A run whose rounds finish when the test says so, and whose models are tested."""

    def __init__(self, app: AppRef, processes: int = 0) -> None:
        """Begin the run `r` in the app's folder, or go on with it."""
        home = app.directory
        self.own, self.warnings = TaskTrainer(load_task(app)), list[str]()
        self.like = self.own.arrays()
        self.manifest = Manifest.of(self.like)
        new = not (home / "runs" / "r").exists()
        self.directory = (RunDirectory.create if new else RunDirectory.resume)(home, "r")
        if new:
            self.directory.ledger.create_run("r", "now", {}, "off")
        self.disk = WriteBehind(self.directory)
        test = AppTest(app, self.own.tested, processes)
        tester = chosen_tester(test, self.directory, self.warnings.append)
        self.evaluation = Evaluation(tester, self.disk)
        self.done: list[tuple[int, dict[str, float]]] = []
        self.seen = app.directory / "seen"
        if new:
            self._write(0)

    def __enter__(self) -> Self:
        """Return this run."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End everything."""
        self.evaluation.close()
        self.disk.__exit__(kind)
        self.directory.close()

    def finish(self, n: int) -> None:
        """Let round n finish."""
        digest = self._write(n)
        record = RoundRecord(
            round=n, attempt=0, phase="train", outcome="finished", model=digest.hex()
        )
        self.disk.ledger.commit_round(record)
        self.evaluation.submit(n, digest)
        self.disk.prune(None, *self.evaluation.held)

    def _write(self, n: int) -> bytes:
        arrays = model_of(n, self.like)
        digest = model_digest(self.manifest.pack(arrays))
        self.disk.write_round(n, arrays, self.manifest, digest, {})
        return digest

    def until(self, holds: Callable[[], object]) -> None:
        """Let the tests go on until something holds."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, (self.warnings, self.done)
            found = self.evaluation.step(time.monotonic())
            self.done += [] if found is None else [found]
            time.sleep(0.01)
        self.disk.flush()

    def idle(self) -> None:
        """Let the tests go on until there is none."""
        self.until(lambda: not self.evaluation.held)

    def called(self, count: int) -> None:
        """Let the tests go on until so many calls have begun."""
        self.until(lambda: len(self.calls()) >= count)

    def calls(self) -> list[tuple[int, int]]:
        """Return process and rows of every call of the test in another process so far."""
        lines = self.seen.read_text().splitlines() if self.seen.exists() else []
        found = [line.split() for line in lines if line.split()[0] != str(os.getpid())]
        assert {threads for _, _, threads in found} <= {"1"}
        return [(int(pid), int(rows)) for pid, rows, _ in found]

    def expected(self, n: int) -> dict[str, float]:
        """Return what a test of round n finds in this process."""
        found = self.own.test(model_of(n, self.like))
        return {f"test.{name}": value for name, value in found.items()}

    def events(self) -> list[tuple[str, int]]:
        """Return kind and round of each event about a test, in order."""
        found = self.directory.ledger.events()
        return [(e.kind, e.round) for e in found if "tested" in e.kind]
