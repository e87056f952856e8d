"""What soak and chaos learn, and what each of their models must be: by hand, round after round.

`Table` is the user code of every client, run in its training child: the numbers of integers.py.
`Chain` follows a run's ledger and computes each model anew from the recorded survivors, in Python
integers that share no code with the package; what it says of a record is empty where all is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.protocol.digest import model_digest
from umbel.protocol.manifest import Manifest
from umbel.strategies.metrics import Sum
from umbel.strategies.trainer import TrainResult
from umbel.tests.integers import summed, update, weight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.server.ledger import RoundRecord
    from umbel.strategies.task import Site
    from umbel.strategies.trainer import Settings

SHAPE = (3, 5)
MOMENTUM = 0.5
"""Of the server step: a lost moment shows in every later model."""
METRICS = {"eval.loss": Sum(1e6)}
COMPONENT = "soak_app:app"
_APP = '''"""The app of every client: an object that brings a trainer of its own."""

from umbel.tests.soak_task import Table


class App:
    """What the training child imports."""

    def umbel_trainer(self) -> Table:
        """Return what trains."""
        return Table()


app = App()
'''


def write_app(folder: Path) -> Path:
    """Write the app that a training child imports, and return its directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak_app.py").write_text(_APP)
    return folder


class Table:
    """User code whose training is a table of numbers: what a client gives depends on its index."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model: zeros, so that the first model is the mean itself."""
        return {
            "w": np.zeros(SHAPE),
            "steps": np.array(7, np.int64),
            "b": np.zeros(4, np.float32),
            "frozen": np.full(3, 0.25),
        }

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metrics with their fractional bits."""
        counted = {"train.examples": 0} if phase == "train" else {}
        return {**counted, "eval.loss": 24, "eval.examples": 0}

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the numbers of this client in this round."""
        number, count = settings.round, weight(site.index)
        deltas = {n: d.copy() for n, d in update(site.index, number, SHAPE).items()}
        loss = (site.index + 1) / 8 + number
        metrics: dict[str, int | float] = {
            "train.examples": count, "eval.examples": count, "eval.loss": loss
        }  # fmt: skip
        return TrainResult(deltas, count, metrics)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Return a loss, and count the client's examples."""
        return TrainResult({}, 1, {"eval.loss": 0.25, "eval.examples": weight(site.index)})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server has no examples."""
        return {}


class Chain:
    """The models that a run must have, from the first one on."""

    def __init__(self, index: Mapping[str, int]) -> None:
        """Begin with the initial model; `index` gives a node id's number in the table."""
        self._index = index
        self.model = Table().arrays()
        self._manifest = Manifest.of(self.model)
        self._momentum: dict[str, NDArray[Any]] = {
            "w": np.zeros(SHAPE), "b": np.zeros_like(self.model["b"]),
        }  # fmt: skip
        self._earlier = {self.digest: (self.model, self._momentum)}
        self.rounds = 0
        """The newest training round that finished."""

    @property
    def digest(self) -> str:
        """Digest of the model in force, hex."""
        return model_digest(self._manifest.pack(self.model)).hex()

    def take(self, record: RoundRecord) -> list[str]:
        """Go on by one record of the ledger; return what is wrong with it."""
        where = f"{record.phase} round {record.round}, attempt {record.attempt}"
        found: list[str] = []
        if record.outcome == "finished":
            found += self._members(record)
            found += self._train(record) if record.phase == "train" else []
            self._earlier[self.digest] = dict(self.model), dict(self._momentum)
        elif record.outcome == "lost":  # the run goes on from an earlier round
            before = self._earlier.get(record.model, (self.model, self._momentum))
            self.model, self._momentum = map(dict, before)
        if record.model != self.digest:
            found.append(f"model {record.model[:16]}, expected {self.digest[:16]}")
        return [f"{where}: {line}" for line in found]

    def _members(self, record: RoundRecord) -> list[str]:
        """Say whether somebody counts twice, or does not belong there."""
        survivors, roster = record.survivors, record.roster
        once = len(set(survivors)) == len(survivors) and len(set(roster)) == len(roster)
        known = set(survivors) <= set(roster) <= set(self._index)
        examples = sum(weight(self._index[node]) for node in survivors)
        found = [] if once and known else [f"survivors {survivors} of the roster {roster}"]
        if record.metrics.get("eval.examples") != examples:
            found.append(f"{record.metrics.get('eval.examples')} examples, expected {examples}")
        return found

    def _train(self, record: RoundRecord) -> list[str]:
        """Add the exact mean over the survivors, coded for the whole roster, and the momentum.

        In float64, and rounded once: `w` is of float64, `b` of float32, and so is its moment.
        """
        found = [] if record.round > self.rounds else [f"finished again after {self.rounds}"]
        self.rounds = record.round
        indices = sorted(self._index[node] for node in record.survivors)
        total = summed(indices, len(record.roster), record.round, SHAPE)
        w = np.array(total.mean("w")).reshape(SHAPE)
        b = np.array(total.mean("b")).astype(np.float32)
        for name, mean in (("w", w), ("b", b)):
            array, kept = self.model[name], self._momentum[name]
            moved = kept.astype(np.float64) * MOMENTUM + mean
            self._momentum[name] = moved.astype(array.dtype)
            self.model[name] = (array.astype(np.float64) + moved).astype(array.dtype)
        if record.metrics.get("weight.mean") != total.weight / len(indices):
            found.append(f"mean weight {record.metrics.get('weight.mean')}")
        if record.metrics.get("eval.loss") != total.loss / 2**24 / total.examples:
            found.append(f"loss {record.metrics.get('eval.loss')}")
        return found
