"""The hash of what arrives: hashlib's of the whole, however it is cut and whoever computes it."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.server import running_hash
from umbel.server.running_hash import BEHIND, LARGE, RunningHash

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = bytes(range(256)) * (3 * LARGE // 256)


@given(st.lists(st.sampled_from([1, 7, 4096, LARGE - 1, LARGE, LARGE + 1]), max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_cuts_give_the_hash_of_the_whole(cuts: list[int]) -> None:
    running, low = RunningHash(), 0
    for cut in cuts:
        running.update(memoryview(WHOLE)[low : low + cut])
        low = min(low + cut, len(WHOLE))
    assert running.length == low
    assert running.digest() == sha256(WHOLE[:low]).digest()


class Slow:
    """A thread that is told when to go on."""

    def __init__(self) -> None:
        self.go, self.parts = threading.Event(), 0

    def update(self, _: memoryview) -> None:
        """Take a part when it may."""
        self.go.wait(10)
        self.parts += 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found = Slow()
    monkeypatch.setattr(running_hash, "sha256", lambda: found)
    yield found
    found.go.set()


def test_large_parts_do_not_hold_up_their_giver_until_much_is_behind(slow: Slow) -> None:
    running, part = RunningHash(), memoryview(bytes(LARGE))
    for _ in range(BEHIND // LARGE + 1):
        running.update(part)
    assert slow.parts == 0
    threading.Timer(0.05, slow.go.set).start()
    running.update(part)  # waits
    assert slow.parts >= BEHIND // LARGE + 1


def test_a_small_part_comes_after_the_large_ones_before_it(slow: Slow) -> None:
    running = RunningHash()
    running.update(memoryview(bytes(LARGE)))
    threading.Timer(0.05, slow.go.set).start()
    running.update(memoryview(b"end"))
    assert slow.parts == 2


def test_wait_returns_when_nothing_is_read_any_more(slow: Slow) -> None:
    running = RunningHash()
    running.update(memoryview(bytes(LARGE)))
    threading.Timer(0.05, slow.go.set).start()
    running.wait()
    assert slow.parts == 1
