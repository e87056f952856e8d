"""The large robust and buffered runs in small, and the bound on memory that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import umbel
from umbel.server.run_directory import RunDirectory
from umbel.strategies.trainer import Settings, load
from umbel.tests import large_rows

if TYPE_CHECKING:
    from pathlib import Path


def test_a_median_of_rows_is_numpys_of_what_devices_train(tmp_path: Path) -> None:
    found = large_rows.play("median", 20, tmp_path, "T3")
    assert (found["clients"], found["rounds"]) == (20, 1)
    with RunDirectory.open(tmp_path, "large") as directory:
        first, model = directory.read_round(0), directory.read_round(1)
    trainer, numbers = load(large_rows.Blobs()), Settings(round=1)
    sites = [umbel.Site(partition=i, partitions=20) for i in range(20)]
    updates = [trainer.train(first, site, numbers).deltas for site in sites]
    for name, array in model.items():
        middle = np.median([deltas[name] for deltas in updates], axis=0)
        assert np.abs(array - (first[name] + middle)).max() < 1e-6
        assert np.abs(array - first[name]).max() > 1e-3


def test_rounds_of_a_buffer_keep_as_many_clients_at_work(tmp_path: Path) -> None:
    found = large_rows.play("buffered", 30, tmp_path, "T3")
    assert found["rounds"] == large_rows.ROUNDS


def test_too_much_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_rows, "MOST", 1 << 20)
    with pytest.raises(SystemExit, match=r"large_rows: buffered: .* MiB of at most 1"):
        large_rows.play("buffered", 30, tmp_path, "T3")
