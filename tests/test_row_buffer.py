"""Rows of a cohort for a robust rule: in their order, without who does not count, in one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.protocol.errors import RoundFailed, SettingsError, StateError, TooFewMembers
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.segments import Shelf
from umbel.server.reduced_rows import FlatMean, RobustRows, room_for
from umbel.simulation.engine import row_buffer
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.row_buffer import RowBuffer
from umbel.simulation.engine.work import Verdict, Work
from umbel.strategies.robust_rules import Robust
from umbel.strategies.trainer import Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MEDIAN = Robust(rule="median", byzantine=1)


class Points(umbel.Task):
    """Eight numbers an example; client 2 has none, client 4 diverges."""

    optimizer = umbel.SGD(lr=0.3)

    def model(self) -> Any:
        """Return a small network."""
        return umbel.MLP(8, 6, 3)

    def train_data(self, site: umbel.Site) -> Any:
        """Return 10 points and one more for each index."""
        count = 0 if site.index == 2 else 10 + site.index
        x = np.random.default_rng(site.index).normal(size=(count, 8)).astype(np.float32)
        if site.index == 4:
            x[3, 1] = np.nan
        return x, (x[:, 0] > 0).astype(np.int64)


def work(clients: list[int], model: dict[str, NDArray[Any]]) -> Work:
    numbers = Settings(round=1, seed=2)
    return Work(clients=np.array(clients), partitions=9, models=[model], settings=numbers)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    """A shelf whose memory is a directory of the test."""
    (tmp_path / "m").mkdir()
    made = Shelf(tmp_path, lambda _kind, _line: None, tmp_path / "m")
    yield made
    made.close()


def alone(clients: list[int], model: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return what devices would train, row by row."""
    trainer = load(Points())
    numbers = Settings(round=1, seed=2)
    rows = []
    for client in clients:
        site = umbel.Site(partition=client, partitions=9)
        found = trainer.train(model, site, numbers).deltas
        rows.append(np.concatenate([delta.reshape(-1) for delta in found.values()]))
    return np.stack(rows)


def test_rows_are_the_devices_updates_and_the_rule_is_made_of_them(shelf: Shelf) -> None:
    buffer = RowBuffer(Loop(Points()), MEDIAN, shelf)
    model = load(Points()).arrays(5)
    gathered, report = buffer(work([5, 2, 0, 4, 3, 1], model))
    assert [Verdict(v).name for v in report.verdicts] == [
        "COUNTED", "FAILED", "COUNTED", "NOT_FINITE", "COUNTED", "COUNTED",
    ]  # fmt: skip
    rows = alone([5, 0, 3, 1], model)
    assert gathered.rows.tobytes() == rows.tobytes()
    assert (gathered.weights.tolist(), gathered.weight) == ([15, 10, 13, 11], 49)
    layout = MessageLayout(Manifest.of(model), {}, "train")
    mean, end = gathered.mean(layout), 0
    expected = np.median(rows, axis=0)
    for name, place in layout.places.items():
        found = np.empty(model[name].size, model[name].dtype)
        half = found.size // 2
        mean.decode(place.start, place.start + half, found[:half])
        mean.decode(place.start + half, place.stop, found[half:])
        assert found.tobytes() == expected[end : end + found.size].tobytes()
        end += found.size
    buffer.close()


def test_one_buffer_serves_all_rounds_and_its_file_goes(shelf: Shelf, tmp_path: Path) -> None:
    buffer, model = RowBuffer(Loop(Points()), MEDIAN, shelf), load(Points()).arrays(5)
    folders = (tmp_path, tmp_path / "m")
    for clients in ([0, 1, 3], [5, 1], [3, 0, 1]):
        gathered, _ = buffer(work(clients, model))
        assert gathered.rows.tobytes() == alone(clients, model).tobytes()
        assert sum(len(list(folder.glob("umbel-rows-*"))) for folder in folders) == 1
    buffer.close()
    buffer.close()
    assert not [path for folder in folders for path in folder.glob("umbel-rows-*")]


def test_too_few_rows_are_no_round() -> None:
    layout = MessageLayout(Manifest.of({"w": np.zeros(3, np.float32)}), {}, "train")
    one = np.ones((1, 3), np.float32)
    weights = np.ones(1, np.int64)
    with pytest.raises(TooFewMembers, match="median with 1 byzantine clients: expected 3 or more"):
        RobustRows(MEDIAN, one, weights).mean(layout)
    apart = np.full((5, 3), np.float32(1e30))
    with pytest.raises(RoundFailed, match="krum"):
        RobustRows(Robust(rule="krum", byzantine=1), apart, weights.repeat(5)).mean(layout)


def test_many_rows_and_float64_rows_take_the_same_rule() -> None:
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(300, 40)), np.ones(300, np.int64)
    model = {"w": np.zeros((4, 10)), "n": np.zeros(2, np.int64)}
    layout = MessageLayout(Manifest.of(model), {}, "train")
    out = np.empty(40)
    RobustRows(MEDIAN, rows, weights, 2).mean(layout).decode(0, 40, out)
    narrow = np.median(rows.astype(np.float32), axis=0)
    assert out.tolist() == narrow.astype(np.float64).tolist()


def test_a_row_of_another_length_is_named() -> None:
    layout = MessageLayout(Manifest.of({"w": np.zeros(3, np.float32)}), {}, "train")
    with pytest.raises(StateError, match=r"robust rows: expected 3 values a row, got \(4,\)"):
        FlatMean(np.zeros(4, np.float32), layout)


def test_a_cohort_without_room_is_refused_with_the_arithmetic(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room_for(MEDIAN, 10_000, 60_000, 4) == 2_400_000_000
    assert room_for(Robust(rule="krum"), 10_000, 60_000, 4) == 3_200_000_000
    monkeypatch.setattr(row_buffer, "available", lambda: 1 << 20)
    model = {"w": np.zeros(1 << 20, np.float32)}
    with pytest.raises(SettingsError, match=r"room for 8 MiB, 2 rows of 4\.0 MiB for median, got"):
        RowBuffer(Loop(Points()), MEDIAN, shelf)(work([0, 1], model))
