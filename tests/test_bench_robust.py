"""`umbel bench robust`: its cases, its peers by hand, and results that are compared first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.benchmarks import flower_robust, robust
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.strategies.numpy_tiles import NumpyTiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMED = {
    *("median/n=16", "median/n=32", "trimmed/n=16", "trimmed/n=32"),
    *("trimmed-stream/n=32", "multikrum/n=32", "geomedian/n=32"),
}


@pytest.mark.slow
def test_every_case_in_gigabytes_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [one.line() for one in robust.run(params=5000, clients=32, runs=1)]
    assert {line["case"] for line in lines} == NAMED
    for line in lines:
        assert (line["bench"], line["unit"], line["runs"]) == ("robust", "GB/s", 1)
        assert line["ratio"]
        assert line["limit_name"] == "read-only sum of the payload"
    told = capsys.readouterr().err
    assert "krum at an update of 1e-05 of the weights: float64 picks client" in told


def test_flowers_krum_picks_another_client_where_updates_are_small(
    capsys: pytest.CaptureFixture[str],
) -> None:
    robust._picks(NumpyTiles(32), 1 << 18)  # raises where ours is not float64's
    said = capsys.readouterr().err
    ours = said.split("umbel ")[2].split(",")[0]
    theirs = said.split(f"{flower_robust.FLOWER} ")[1].split(" ")[0]
    assert ours != theirs
    assert "(0 negative" not in said


def test_a_rule_with_another_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(_: NumpyTiles, rows: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        np.copyto(out, rows[0])

    monkeypatch.setattr(robust, "kernels", lambda clients: (NumpyTiles(clients), "numpy"))
    monkeypatch.setattr(NumpyTiles, "median", shifted)
    with pytest.raises(VoidRound, match="median/n=16 is"):
        list(robust.run(params=1000, clients=32, runs=1))


@pytest.mark.parametrize("option", ["params", "clients", "runs"])
def test_sizes_are_checked_before_anything_is_measured(option: str) -> None:
    sizes: dict[str, Any] = {"params": 10, "clients": 32, "runs": 1}
    with pytest.raises(SettingsError, match=f"--{option}: expected"):
        next(robust.run(**(sizes | {option: 0})))


def test_the_peers_by_hand() -> None:
    updates = [np.array([value, -value], np.float32) for value in (1.0, 2.0, 3.0, 4.0, 100.0)]
    assert flower_robust.median(updates).tolist() == [3.0, -3.0]
    assert flower_robust.trimmed_mean(updates, 0.2).tolist() == [3.0, -3.0]
    replies = flower_robust.records(updates)
    assert flower_robust.squared_distances(replies)[0].tolist() == [0, 2, 8, 18, 2 * 99**2]
    assert flower_robust.krum_pick(replies, 1) == 1
    assert flower_robust.multi_krum(replies, 1, 3).tolist() == pytest.approx([2.0, -2.0])


def test_the_peers_geometric_median_comes_near_the_minimum() -> None:
    # On a line the geometric median of an odd number of points is the middle one.
    updates = [np.array([value], np.float32) for value in (0.0, 1.0, 2.0, 3.0, 20.0)]
    mean = np.mean(updates)
    got = flower_robust.geometric_median(updates)
    assert abs(got[0] - 2.0) < abs(mean - 2.0) / 4
