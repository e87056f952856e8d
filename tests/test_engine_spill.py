"""What is kept of many clients in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.simulation.engine import spill
from umbel.simulation.engine.spill import Spill

if TYPE_CHECKING:
    import pytest


def test_the_last_value_of_each_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SLACK", 1000)
    kept, expected = Spill(), {}
    for turn in range(200):
        number = turn * 7 % 13
        expected[number] = [bytes([turn]) * (turn % 90), b"", str(turn).encode()]
        kept.put(number, expected[number])
        for known, blobs in expected.items():
            assert kept.get(known) == blobs
        live = sum(len(blob) for blobs in expected.values() for blob in blobs)
        assert kept._live == live
        assert kept._end <= 2 * live + 1100
    assert len(kept) == 13
    kept.put(0, [])
    assert kept.get(0) == kept.get(99) == []
    assert len(kept) == 12
    kept.close()
