"""What memory the core service takes: by its named terms, whatever the clients and the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.tests.large_model import play

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def test_a_round_takes_accumulator_model_and_the_next_one(tmp_path: Path) -> None:
    size = 64 * MIB
    found, _ = play(tmp_path, "A", size)
    # Slot and next model are never there together. gRPC has up to 50 MiB on its way.
    assert 2.9 * size < found["VmHWM"] - found["before"] < 3.9 * size
    assert found["took part"] == 3


@pytest.mark.parametrize("rounds", [24, pytest.param(500, marks=pytest.mark.slow)])
def test_rounds_leave_no_slope(tmp_path: Path, rounds: int) -> None:
    size = 4 * MIB if rounds < 100 else MIB
    _, resident = play(tmp_path, "plain", size, rounds=rounds)
    warm, half = resident[rounds // 4 : rounds // 2], resident[rounds // 2 :]
    # A model that was kept each round, or a slot, would be 12 of them at the least, and more than
    # threads and connections take on a busy machine.
    assert max(half) - max(warm) < max(4 * size, 4 * MIB)


@pytest.mark.slow
def test_memory_is_flat_in_the_number_of_clients(tmp_path: Path) -> None:
    peaks = []
    for count in (8, 64):
        home = tmp_path / str(count)
        home.mkdir()
        found, _ = play(home, "plain", 384 * MIB, count=count)
        peaks.append(found["VmHWM"])
    # A connection and its session are up to 2 MiB, whatever the model.
    assert 0.9 * peaks[0] < peaks[1] < 1.1 * peaks[0], peaks
