"""One run on a real core with a process for each device, its ServerApp in the hands of a test.

The numbers are those of rounds.py; integers.py says what the mean over some of them must be.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from umbel.server.ledger import RoundRecord
from umbel.tests.federations import Run
from umbel.tests.integers import summed
from umbel.tests.rounds import Fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation
    from umbel.tests.process_host import Child, Host

FIVE = (0, 1, 2, 3, 4)
"""One of five may be lost (rounds.LOSSES_TOLERATED)."""


class CoreStage:
    """A run, its devices and what was told of them."""

    def __init__(
        self,
        federation: DevFederation,
        host: Host,
        home: Path,
        name: str,
        *,
        members: Sequence[int] = FIVE,
        how: Mapping[int, Mapping[str, Any]] | None = None,
        shape: tuple[int, ...] = (3, 5),
        **settings: Any,
    ) -> None:
        """Start every member's process and wait until all have joined.

        Args:
            federation: With a core that runs.
            host: Starts the processes.
            home: Where `runs/` is.
            name: The run's id.
            members: Which of the federation's devices take part.
            how: Orders for single devices (process_host.py).
            shape: Of the array `w`.
            settings: Of the run.
        """
        self.hold = float("inf")
        """Number of the round before which the run waits."""
        around = {
            "ready": lambda number, _nodes, _now: number < self.hold,
            "observe": self._note,
        }
        self.trainer = Fixed(shape)
        given = {"final_evaluation": False, "deadline": 30.0, "trip": 5.0, **settings}
        self.run = Run(federation, home, name, trainer=self.trainer, around=around, **given)
        self.directory, self.records = self.run.directory, list[RoundRecord]()
        self.models = [self.trainer.arrays()]
        """The models of rounds 0, 1, 2, and so on."""
        self.index = {node.id: i for i, node in enumerate(federation.nodes)}
        self.joins: Counter[int] = Counter()
        self.posts: list[tuple[int, bytes]] = []
        self._tap()
        self._host, self._shape, self._begun = host, shape, False
        self.children = {i: self.start(i, **(how or {}).get(i, {})) for i in members}
        try:
            self.run.joined(len(members))
        except AssertionError as error:  # the next test is not to find what this one left
            logs = [child.log.read_text() for child in self.children.values()]
            self.close()
            raise AssertionError(f"{error}: {logs}") from error

    def _note(self, record: RoundRecord) -> None:
        self.records.append(record)
        if (record.phase, record.outcome) == ("train", "finished"):
            self.models.append({n: a.copy() for n, a in self.run.coordinator.model.items()})

    def _tap(self) -> None:
        """Count joins, and keep what is posted."""
        coordinator, core = self.run.coordinator, self.run.core
        join, post = coordinator.join, core.post

        def joined(der: bytes, now: float, version: str = "") -> str:
            node = join(der, now, version)
            self.joins[self.index[node]] += 1
            return node

        def posted(node: str, data: bytes) -> None:
            self.posts.append((self.index[node], data))
            post(node, data)

        coordinator.join = joined  # type: ignore[method-assign]
        coordinator._around = replace(coordinator._around, post=posted)

    def node(self, index: int) -> str:
        """Return a device's id."""
        return next(node for node, i in self.index.items() if i == index)

    def start(self, index: int, **how: Any) -> Child:
        """Start a device's process, the first or another."""
        directory = self.run.federation.device(f"edge-{index}")
        ticket = self.run.ticket(index)
        return self._host.device(directory, self.run.name, ticket, index, shape=self._shape, **how)

    def play(self, until: Callable[[], bool] | None = None, wait: float = 60.0) -> float:
        """Go on until something holds, or to the end; return the seconds that it took."""
        began = time.monotonic()
        if not self._begun:
            self._begun = True
            self.run.coordinator.begin(began)
        self.run.pump(until or (lambda: self.run.coordinator.done), wait)
        return time.monotonic() - began

    def rounds(self, count: int) -> float:
        """Go on until so many records are there; return the seconds that it took."""
        return self.play(lambda: len(self.records) >= count)

    def back(self, index: int) -> float:
        """Start a device anew and go on until it has joined; return the seconds."""
        before = self.joins[index]
        self.children[index] = self.start(index)
        return self.play(lambda: self.joins[index] > before)

    def survivors(self, number: int) -> tuple[int, ...]:
        """Return who is in the model of a round, by index."""
        (record,) = self._finished(number)
        return tuple(sorted(self.index[node] for node in record.survivors))

    def _finished(self, number: int) -> list[RoundRecord]:
        wanted = (number, "train", "finished")
        return [r for r in self.records if (r.round, r.phase, r.outcome) == wanted]

    def told(self, kind: str = "") -> list[tuple[str, int, str]]:
        """Return kind, device and code of the ledger's events that name a device.

        But for `waiting`: on a busy machine everybody is quiet for a while.
        """
        events = [e for e in self.directory.ledger.events() if e.node and e.kind != "waiting"]
        return [(e.kind, self.index[e.node], e.code) for e in events if kind in {"", e.kind}]

    def over(self) -> list[list[Any]]:
        """Say goodbye; return how each device's session ended: code, rounds, words."""
        self.run.core.goodbye()
        return [child.said("outcome") for child in self.children.values()]

    def exact(self, number: int, indices: Sequence[int], members: int) -> None:
        """Check that a round added the exact mean over these devices, coded for so many members."""
        expected = summed(indices, members, number, self.trainer.shape)
        before, after = (self.models[n]["w"].reshape(-1) for n in (number - 1, number))
        assert after.tolist() == (before + expected.mean("w")).tolist()
        (record,) = self._finished(number)
        assert record.metrics["eval.examples"] == expected.examples
        assert record.metrics["eval.loss"] == expected.loss / 2**24 / expected.examples

    def close(self) -> None:
        """Kill what is left."""
        self._host.end()
        self.run.close()
