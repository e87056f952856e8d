"""The model that a run is at: what its members fetch, what the next server step starts from.

A round that is whole moves it on, in this order:

    step in the core (its digest) -> published -> checkpoint durable -> ledger entry

The coordinator writes the last, and that finishes the round. A step starts when everything before
it is durable: so what it replaces in the core is on the disk, and what a step that failed has
spoilt is restored from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .stepping import StepOrder, in_words
from ..protocol.digest import model_digest
from ..protocol.errors import TooFewMembers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .attempt import Attempt
    from .ingest import AggregationCore
    from .stepping import Stepped
    from .surroundings import Rounds
    from ..protocol.manifest import Manifest
    from ..strategies.server_rules import Rule


class ModelInForce:
    """Its bytes, its arrays and its digest."""

    def __init__(
        self,
        core: AggregationCore,
        rounds: Rounds,
        manifest: Manifest,
        rule: Rule,
        packed: bytearray,
        note: Callable[[str, str, str], None],
        *,
        new: bool,
    ) -> None:
        """Put a model in force; that of a new run is written down first, as round 0.

        `note` records an event `(kind, node, code)`: once, what memory the run takes.
        """
        self._note, self._noted = note, False
        self._core, self._rounds, self._manifest, self._rule = core, rounds, manifest, rule
        digest = model_digest(packed)
        self._take(digest, memoryview(packed).toreadonly())
        if new:
            rounds.write_round(0, self.arrays, manifest, digest, {})
        core.put(manifest, digest, packed)

    def step(self, attempt: Attempt) -> Stepped:
        """Let the core make the next model out of an attempt's opened sum.

        Raises:
            VoidRound: It cannot; the model in force is what it was.
            StateError: An earlier round cannot be made durable.
        """
        if (sums := attempt.sums) is None or (codec := attempt.codec) is None:
            raise TooFewMembers("the attempt has no sum")
        self._rounds.flush()
        restored = bool(self._rule.moments) and not self._core.clean
        state = self._rounds.state() if restored else None
        plan, survivors = attempt.plan, len(attempt.survivors)
        order = StepOrder(
            self._rule, plan.terms.round, plan.layout, codec, survivors, sums.weight, state
        )
        stepped = attempt.step(order)
        if not self._noted:
            self._noted = True
            self._note("memory", "", in_words(stepped.memory))
        return stepped

    def move_on(self, number: int, stepped: Stepped, extra: Mapping[str, Any]) -> None:
        """Publish what round `number` made, and write it down; it is not committed yet."""
        self._core.publish(stepped.digest)
        self._take(stepped.digest, stepped.packed)
        self._rounds.write_round(
            number, self.arrays, self._manifest, stepped.digest, extra, stepped.moments
        )

    def _take(self, digest: bytes, packed: memoryview) -> None:
        self.digest, self.packed = digest, packed
        self.arrays: Mapping[str, NDArray[Any]] = self._manifest.views(packed)
