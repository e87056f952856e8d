"""The wait of a run's last training round: for whom, and how long."""

from __future__ import annotations

from umbel.server.rejoin import Rejoin

ALL = ("a", "b", "c")


def test_no_other_round_waits() -> None:
    ready = Rejoin(rounds=5, seconds=30.0)
    assert ready(1, ALL, 0.0)
    assert all(ready(number, ("a",), float(number)) for number in (2, 3, 4))


def test_the_last_one_waits_until_the_lost_are_back() -> None:
    ready = Rejoin(rounds=3, seconds=30.0)
    ready(1, ALL, 0.0)
    ready(2, ("a", "b"), 1.0)
    assert not ready(3, ("a", "b"), 2.0)
    assert not ready(3, ("a", "b", "d"), 31.9)  # another one makes up for nobody
    assert ready(3, (*ALL, "d"), 31.95)


def test_it_waits_no_longer_than_it_may_and_only_once() -> None:
    ready = Rejoin(rounds=2, seconds=30.0)
    ready(1, ALL, 0.0)
    assert not ready(2, ("a",), 10.0)
    assert ready(2, ("a",), 40.0)
    assert ready(2, ("b",), 41.0)  # and the evaluation after it not at all


def test_without_a_loss_or_without_seconds_there_is_no_wait() -> None:
    ready = Rejoin(rounds=2, seconds=30.0)
    assert ready(1, ALL, 0.0)
    assert ready(2, ALL, 1.0)
    none = Rejoin(rounds=2, seconds=0.0)
    assert none(1, ALL, 0.0)
    assert none(2, ("a",), 1.0)
