"""A process that is told to end: once it ends its round, twice itself."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from umbel.server.draining import DRAIN_S, Drain

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ended(Exception):
    """What the handler of before does."""


@pytest.fixture
def before() -> Iterator[None]:
    """Handlers that were there before."""

    def end(_number: int, _frame: object) -> None:
        raise Ended

    numbers = (signal.SIGTERM, signal.SIGINT)
    found = [signal.signal(number, end) for number in numbers]
    yield
    for number, handler in zip(numbers, found, strict=True):
        signal.signal(number, handler)


def _always(_number: int, _nodes: object, _now: float) -> bool:
    return True


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_keeps_the_next_round_from_beginning(number: signal.Signals) -> None:
    with Drain() as drain:
        ready = drain.gate(_always)
        assert ready(1, (), 0.0)
        assert not drain.over(0.0, between=True)
        os.kill(os.getpid(), number)
        assert drain.asked == number.name
        assert not ready(2, (), 0.0)
        assert not drain.over(5.0, between=False)  # the round that runs has its time
        assert not drain.over(5.0 + DRAIN_S, between=False)
        assert drain.over(5.1 + DRAIN_S, between=False)
        assert drain.over(5.0, between=True)
    with pytest.raises(Ended):
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("before")
def test_the_second_signal_does_what_it_did_before() -> None:
    with Drain() as drain:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Ended):
            os.kill(os.getpid(), signal.SIGINT)
        assert drain.asked == "SIGTERM"


def test_what_was_not_ready_is_not_made_so() -> None:
    assert not Drain().gate(lambda *_: False)(1, (), 0.0)


def test_in_another_thread_signals_are_left_alone() -> None:
    found = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with Drain() as drain:
            seen.extend([signal.getsignal(signal.SIGTERM), drain.asked])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [found, ""]
