"""`umbel bench ranks`: a whole run in small, and what must not be timed."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.benchmarks import ranks
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.server.core.world import World


@pytest.mark.slow
def test_a_small_run_has_every_case_beside_its_peer() -> None:
    lines = [m.line() for m in ranks.run(params=5000, masks=2, runs=1)]
    assert sorted(str(line["case"]) for line in lines) == sorted(ranks.CASES)
    for line in lines:
        assert line["umbel"]
        peers = {"1": "the world of one", "2": "one rank", "d": None}
        assert line["peer_name"] == peers[str(line["case"])[-1]]


def test_without_torch_every_case_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "find_spec", lambda _name: None)
    found = list(ranks.run())
    assert [m.case for m in found] == ranks.CASES
    assert {m.absent for m in found} == {"torch is not installed; `pip install umbel[torch]`"}


def test_worlds_that_differ_are_not_timed() -> None:
    worlds: dict[Any, Any] = {1: World(ranks.SLOTS)}
    worlds[1].open = _forgetful(worlds[1])
    with pytest.raises(VoidRound, match="other sums or models"):
        next(ranks._cases(worlds, 1000, 1, 1))


def _forgetful(world: World) -> Any:
    """Return an `open` whose sums take no masks off."""
    real = world.open

    def opened(total: int, split: int) -> Any:
        made: Any = real(total, split)
        made.unmask = lambda _streams: None
        return made

    return opened


@pytest.mark.parametrize(("option", "value"), [("params", 999), ("masks", 0), ("runs", 0)])
def test_sizes_are_checked_first(option: str, value: int) -> None:
    numbers: dict[str, Any] = {option: value}
    with pytest.raises(SettingsError, match=f"--{option}"):
        next(ranks.run(**numbers))
