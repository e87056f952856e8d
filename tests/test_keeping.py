"""Which rounds stay: judged by their own entries, and again by the tests that come later."""

from __future__ import annotations

import numpy as np

from umbel.server.keeping import Keeping

DIGEST = bytes(32)


class Directory:
    """Notes what is pruned."""

    ledger = None

    def __init__(self) -> None:
        self.stay: list[tuple[int | None, ...]] = []

    def prune(self, best: int | None, *held: int) -> None:
        """Note it."""
        self.stay.append((best, *held))


class Queue:
    """Tests that are done when the test says so."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def submit(self, number: int, digest: bytes) -> None:
        """Hold it."""
        assert digest == DIGEST
        self.held.append(number)


def test_without_a_test_the_clients_loss_decides() -> None:
    directory = Directory()
    keeping = Keeping(directory, None)  # type: ignore[arg-type]
    for number, loss in enumerate((0.5, 0.2, 0.3), 1):
        keeping.finished(number, DIGEST, {"train.loss": loss})
    assert directory.stay == [(1,), (2,), (2,)]


def test_a_round_that_is_still_tested_is_held_and_may_become_the_best() -> None:
    directory, queue = Directory(), Queue()
    keeping = Keeping(directory, None, queue)  # type: ignore[arg-type]
    keeping.finished(1, DIGEST, {"train.loss": 0.9})
    keeping.finished(2, DIGEST, {"train.loss": 0.1})
    queue.held.remove(1)
    keeping.tested(1, {"test.accuracy": 0.4})  # the worst of all, and the only one tested
    queue.held.remove(2)
    keeping.tested(2, {"test.accuracy": 0.5})
    assert directory.stay == [(1, 1), (2, 1, 2), (1, 2), (2,)]


def test_a_run_that_goes_on_knows_its_best() -> None:
    directory = Directory()
    keeping = Keeping(directory, ((2.0, 0.75), 4))  # type: ignore[arg-type]
    keeping.tested(9, {"test.accuracy": 0.5})
    keeping.tested(10, {"test.accuracy": float(np.nan)})
    assert directory.stay == [(4,), (4,)]
