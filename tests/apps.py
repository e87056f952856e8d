"""An app for tests of `umbel simulate`: small, quick, and naughty for one client on demand.

The file `what` beside the module says what client 2 does: nothing where it is absent.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import os, pathlib, signal, sys, time
import numpy as np
import umbel

HERE = pathlib.Path(__file__).parent
WHAT = (HERE / "what").read_text() if (HERE / "what").exists() else ""
if WHAT == "import":
    raise RuntimeError("no module today")


def points(count, seed):
    rng = np.random.default_rng([3, seed])
    labels = rng.integers(2, size=count)
    return (rng.normal(size=(count, 3)) + 2 * labels[:, None] - 1).astype(np.float32), labels


class Task(umbel.Task):
    optimizer = umbel.SGD(lr=0.3)

    def model(self):
        if WHAT == "model":
            raise RuntimeError("no model today")
        return umbel.MLP(3, 4, 2)

    def train_data(self, site):
        print("user prints")
        if WHAT == "slow":
            (HERE / "pid").write_text(str(os.getpid()))
            time.sleep(60)
        inputs, labels = points(30 + site.partition, site.partition)
        if site.partition == 2:
            if WHAT == "raise":
                raise ValueError("patient 4711")
            if WHAT == "nan":
                inputs[4, 1] = np.nan
            if WHAT == "empty":
                return inputs[:0], labels[:0]
            if WHAT == "dtype":
                return inputs.astype(str), labels
            if WHAT == "labels":
                return inputs, labels + 5
            if WHAT == "lengths":
                return inputs, labels[1:]
            if WHAT == "pair":
                return inputs
            if WHAT == "exit":
                sys.exit(3)
            if WHAT == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if WHAT == "huge":
                return inputs * np.float32(1e30), labels
        return inputs, labels

    def test_data(self):
        if WHAT == "test":
            raise OSError("no test data today")
        return points(200, 99)
"""
PYPROJECT = """
[tool.flwr.app.config]
rounds = 3

[tool.umbel]
task = "{name}:Task"
"""
_NUMBERS = itertools.count()


def naughty(folder: Path, what: str = "") -> Path:
    """Make the app's directory and return it; one process imports each module name once."""
    name = f"naughty_{next(_NUMBERS)}"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    (folder / f"{name}.py").write_text(CODE)
    if what:
        (folder / "what").write_text(what)
    return folder
