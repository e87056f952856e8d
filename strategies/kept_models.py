"""The models of a round, each kept, where a robust rule looks at single ones (landing.py sums).

A row is what one client changed: its model minus the global one, in float64, rounded to float32.
Weights are much larger than what a round changes; on differences distances keep their digits, and
a rule sees what it sees in a run over sessions, where updates are deltas. The aggregate of the rows
is added to the global model in float64 and rounded once into each array's dtype.

**Memory** is the rows, 4 bytes a parameter and client, a slot and the result. Rows are made for as
many clients as were asked; what no client fills is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .fedavg import tiles
from .landing import Landing
from .robust_rules import RULES, decide, kernels, write
from ..protocol.errors import BadUpdate, SettingsError, TooFewMembers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .landing import Incoming
    from .robust_rules import Robust

    Arrays = Mapping[str, NDArray[Any]]


class KeptModels(Landing):
    """The rows of a round, and what a robust rule makes of them."""

    def __init__(self, model: Arrays, robust: Robust, clients: int) -> None:
        """Allocate for models like this one, of about so many clients."""
        super().__init__(model)
        self._robust = robust
        self._spans: dict[str, slice] = {}
        end = 0
        for name in self._places:
            self._spans[name] = slice(end, end := end + model[name].size)
        self._own = 1 if robust.rule == "fltrust" else 0  # the server's own row
        self._changes = np.empty((max(clients, 1) + self._own, end), np.float32)
        self._kept: list[float] = []
        self.picked: tuple[int, ...] = ()
        """Which of the models taken the last `mean` was made of, by their order."""

    def take(self, node: str, arrays: Mapping[str, Incoming], weight: float) -> None:
        """Land one model and keep it.

        Raises:
            BadUpdate: Something of it is not as the model's, or a change is beyond float32; the
                rows are as they were.
        """
        super().take(node, arrays, weight)
        self._weights.clear()
        slot, place = self._rows[0], self._own + len(self._kept)
        if place == len(self._changes):
            self._changes = np.concatenate([self._changes, np.empty_like(self._changes)])

        def landed(name: str) -> NDArray[Any]:
            values: NDArray[Any] = slot[self._places[name]].view(self.model[name].dtype)
            return values

        self._write(self._changes[place], landed, node)
        self._kept.append(float(weight))

    def trust(self, arrays: Arrays) -> None:
        """Take the server's own model of this round, for fltrust.

        Raises:
            SettingsError: It is not like the global one, or a change is not finite.
        """
        for name in self._spans:
            want, got = self.model[name], arrays.get(name)
            if got is None or (got.shape, got.dtype) != (want.shape, want.dtype):
                said = "none" if got is None else f"{got.dtype} {got.shape}"
                raise SettingsError(f"fltrust: {name}", f"{want.dtype} {want.shape}", said)
        try:
            self._write(self._changes[0], lambda name: arrays[name].reshape(-1), "server")
        except BadUpdate as error:
            raise SettingsError("fltrust", "finite arrays of the root function", error) from error

    def fold(self) -> None:
        """Do nothing: every model is kept as it comes."""

    def mean(self) -> dict[str, NDArray[Any]]:
        """Return the float arrays of the model that the rule makes, each in its own dtype.

        Raises:
            TooFewMembers: Fewer clients than the rule can work with.
            RoundFailed: The rule finds nothing to stand on.
        """
        clients = len(self._kept) + self._own
        rows = self._changes[:clients]
        try:
            self._robust.check(clients)
        except SettingsError as error:
            raise TooFewMembers(str(error)) from error
        work, decided = kernels(clients)[0], None
        self.picked = tuple(range(len(self._kept)))
        if RULES[self._robust.rule].inner_products:
            products = np.zeros((clients, clients))
            work.gram(rows, None, products)
            decided = decide(self._robust, products, self._kept if not self._own else None)
            self.picked = tuple(row - self._own for row in decided.rows)
        out = np.empty(rows.shape[1], np.float32)
        write(self._robust, decided, rows, out, work)
        return {name: self._added(name, out[span]) for name, span in self._spans.items()}

    def again(self, model: Arrays) -> Landing:
        """Return rows for the next round: these, emptied, where the arrays are alike."""
        if not self.fits(model):
            return KeptModels(model, self._robust, len(self._changes) - self._own)
        self.model = dict(model)
        self._kept.clear()
        return self

    def _write(
        self, row: NDArray[np.float32], values: Callable[[str], NDArray[Any]], node: str
    ) -> None:
        """Write a model's change into a row."""
        for name, span in self._spans.items():
            old, new, change = self.model[name].reshape(-1), values(name), row[span]
            for tile in tiles(old.size):
                wide = new[tile].astype(np.float64)
                wide -= old[tile]
                with np.errstate(over="ignore"):
                    change[tile] = wide
            if not np.isfinite(change).all():
                raise BadUpdate(node, f"array {name!r}", "changes within float32", "a larger one")

    def _added(self, name: str, change: NDArray[np.float32]) -> NDArray[Any]:
        old = self.model[name]
        new = np.empty(old.shape, old.dtype)
        flat, before = new.reshape(-1), old.reshape(-1)
        for tile in tiles(old.size):
            flat[tile] = before[tile].astype(np.float64) + change[tile]
        return new
