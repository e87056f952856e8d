"""Fleets: what a device is and does follows from its own numbers, and from nothing else."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import Refused, SettingsError
from umbel.simulation.fleet import devices
from umbel.simulation.fleet.called import CalledFleet, Profile
from umbel.simulation.fleet.counter import Purpose, uniform
from umbel.simulation.fleet.devices import Fate, Load
from umbel.simulation.fleet.distributions import (
    Choice,
    Clipped,
    Constant,
    Distribution,
    LogNormal,
    LogUniform,
    Normal,
    Recorded,
    Uniform,
)
from umbel.simulation.fleet.profiles import DAY, ArrayFleet, Behaviour, Profiles
from umbel.simulation.fleet.toml import read
from umbel.simulation.fleet.traces import Availability
from umbel.tests.fleets import LOAD, reference, timed

if TYPE_CHECKING:
    from collections.abc import Callable

ROW = {"active": [12, 400], "inactive": [90, 700], "finish_time": 1000}
NORMAL = {0.1: -1.2815515655446004, 0.5: 0.0, 0.9: 1.2815515655446004}
"""Quantiles."""
MANY = np.arange(20_000, dtype=np.uint64)


def test_a_fleet_knows_neither_clock_nor_engine() -> None:
    """A plan that used the simulator's formulas would prove nothing by agreeing with it."""
    folder = Path(devices.__file__).parent
    lines = "\n".join(file.read_text("utf-8") for file in folder.glob("*.py"))
    assert not re.search(r"from \.\.\w|from \.\.\.simulation", lines)


# ---- distributions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "quantile"),
    [
        (Uniform(2, 6), lambda p: 2 + 4 * p),
        (LogUniform(1, 1000), lambda p: 1000**p),
        (LogNormal(0.02, 0.6), lambda p: 0.02 * math.exp(0.6 * NORMAL[p])),
        (Normal(5, 2), lambda p: 5 + 2 * NORMAL[p]),
    ],
)
def test_quantiles(distribution: Distribution, quantile: Callable[[float], float]) -> None:
    drawn = distribution.draw(3, Purpose.SPEED, MANY)
    for p in NORMAL:
        # The share below the true quantile is binomial: deviation sqrt(p (1 - p) / n) < 0.0036.
        share = np.mean(drawn < quantile(p))
        assert abs(share - p) < 4 * 0.0036, p


def test_the_others() -> None:
    values, counts = np.unique(
        Choice((1.0, 5.0, 2.0), (1, 2, 1)).draw(1, Purpose.DUTY, MANY), return_counts=True
    )
    assert values.tolist() == [1, 2, 5]
    assert np.abs(counts - [5000, 5000, 10000]).max() < 4 * 71  # sqrt(20,000 / 4)
    assert Constant(3.0).draw(0, Purpose.DUTY, MANY[:2]).tolist() == [3, 3]
    clipped = Clipped(Normal(0, 1), -0.5, 0.5).draw(1, Purpose.DUTY, MANY)
    assert (clipped.min(), clipped.max()) == (-0.5, 0.5)
    recorded = Recorded(np.array([4.0, 5.0, 6.0]))
    assert recorded.draw(9, Purpose.SPEED, MANY[:5] + np.uint64(7 << 32)).tolist() == [
        4,
        5,
        6,
        4,
        5,
    ]


# ---- arrays --------------------------------------------------------------------------------


def size(profiles: Profiles) -> int:
    """Return the bytes of its arrays, an array behind two quantities once."""
    arrays = [getattr(profiles, field.name) for field in fields(profiles)]
    bases = {id(a if a.base is None else a.base): a for a in arrays}
    return sum((a if a.base is None else a.base).nbytes for a in bases.values())


def test_twenty_bytes_a_client() -> None:
    assert size(reference(1000).profiles) == 20 * 1000
    assert size(Profiles.of(10**6, samples=5)) < 100


def test_the_time_of_one_client_by_hand() -> None:
    profiles = Profiles.of(2, samples=[10, 20], speed=0.5, downlink=[100, 200], uplink=50)
    times = ArrayFleet(profiles).times(np.array([1, 0]), 3, Load(down=1000, up=100, epochs=2))
    assert times.down.tolist() == [5, 10]
    assert times.train.tolist() == [20, 10]
    assert times.up.tolist() == [2, 2]


def test_jitter_is_that_of_client_and_round() -> None:
    fleet = ArrayFleet(Profiles.of(9, samples=1, speed=1.0), 7, [Behaviour(jitter=0.1)])
    expected = [0.9 + 0.2 * float(uniform(7, 4, i, 5)) for i in (3, 8)]
    assert fleet.times(np.array([3, 8]), 5, Load()).train == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0, 3e7))
def test_a_window_is_the_formula_s(client: int, time: float) -> None:
    fleet = reference(50)
    i = client % 50
    phase, duty = float(fleet.profiles.phase[i]), float(fleet.profiles.duty[i])
    begin, end = (float(a[0]) for a in fleet.windows(np.array([i]), time, 0))
    # The reference's own words: the day, the time within it, and what is left of the window.
    day = math.floor((time + phase) / DAY)
    off = time + phase - day * DAY
    start = 0.2 * DAY * float(uniform(7, 1, i, day))
    left = start + 0.8 * DAY * duty - off
    if off >= start and left > 0:
        assert begin <= time
        assert end - time == pytest.approx(left, abs=1e-6)
    elif off < start:
        assert begin == pytest.approx(time + start - off, abs=1e-6)
    else:
        later = 0.2 * DAY * float(uniform(7, 1, i, day + 1))
        assert begin == pytest.approx(time + DAY - off + later, abs=1e-6)
    assert end > time
    again = fleet.windows(np.array([i]), max(begin, time), 0)
    assert (float(again[0][0]), float(again[1][0])) == (begin, end)  # it is online when it comes


def test_the_share_online_is_that_of_the_duties() -> None:
    begin, _ = reference(20_000).windows(np.arange(20_000), 1e6, 0)
    assert np.mean(begin <= 1e6) == pytest.approx(0.8 * 0.35, abs=4 * 0.0032)


def test_fates_have_their_probabilities_and_repeat() -> None:
    fleet = timed([1.0] * 20_000, dropout=0.1, crash=0.2)
    kinds, moments = fleet.fates(np.arange(20_000), 4, 0.0)
    assert np.mean(kinds == Fate.CRASHED) == pytest.approx(0.2, abs=4 * 0.0029)
    assert np.mean(kinds == Fate.LOST) == pytest.approx(0.1 * 0.8, abs=4 * 0.002)
    assert 0 <= moments.min() < moments.max() < 1
    assert np.array_equal(fleet.fates(np.arange(20_000), 4, 0.0).kinds, kinds)
    assert not np.array_equal(fleet.fates(np.arange(20_000), 5, 0.0).kinds, kinds)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"samples": [1, 2]}, r"samples: expected a number, or an array of 3, got"),
        ({"samples": 0}, r"samples: expected 1 to 2\.14748e\+09, got 0"),
        ({"samples": 1, "speed": [1, math.nan, 1]}, r"speed: expected 0 to 1e\+09, got nan"),
        ({"samples": 1, "downlink": [5, -1, 2]}, r"downlink: expected 0\.001 to inf, got -1"),
        ({"samples": 1, "phase": "x"}, r"phase: expected a number, or an array of 3"),
        ({"samples": [[1], [2, 3]]}, r"samples: expected a number, or an array of 3"),
    ],
)
def test_arrays_are_looked_at(given_: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Profiles.of(3, **given_)


# ---- traces --------------------------------------------------------------------------------


def online_by_hand(row: dict[str, list[int]], period: int, time: int) -> bool:
    pairs = zip(row["active"], row["inactive"], strict=True)
    return any(a <= time % period < b for a, b in pairs)


def traced(path: Path, rows: dict[str, object]) -> Availability:
    path.write_text(json.dumps(rows), "utf-8")
    return Availability.read(path)


@example([0, 10, 20, 60], 70)
@example([0, 60], 70)
@example([0, 10, 20, 60], 25)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=12, unique=True), st.integers(0, 400))
def test_a_trace_repeats(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], at: int
) -> None:
    times = sorted(times)[: len(times) // 2 * 2]
    row = {"active": times[::2], "inactive": times[1::2]}
    file = tmp_path_factory.getbasetemp() / "trace.json"
    trace = traced(file, {"x": ROW, "y": {**row, "finish_time": 60}})
    begin, end = (float(a[0]) for a in trace.windows(np.array([1]), at))
    seconds = [t for t in range(at, at + 200) if online_by_hand(row, 60, t)]
    if begin <= at:
        assert seconds[0] == at
        gone = [t for t in range(at, at + 200) if not online_by_hand(row, 60, t)]
        assert end == (gone[0] if gone else math.inf)
    else:
        assert begin == seconds[0]
        gone = [t for t in range(seconds[0], at + 200) if not online_by_hand(row, 60, t)]
        assert end == gone[0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROW, "inactive": [90]}, r"inactive: expected 2 times, as active, got 1"),
        ({**ROW, "inactive": [90, 1001]}, r"expected active and inactive in turn"),
        ({**ROW, "active": [100, 400]}, r"expected active and inactive in turn"),
        ({**ROW, "active": [12, 80]}, r"expected active and inactive in turn"),
        ({**ROW, "finish_time": 0}, r"finish_time: expected 1 to 1e\+09 seconds, got 0"),
        ({**ROW, "finish_time": None}, r"finish_time: expected a number"),
        ({**ROW, "battery": 3}, r"battery: expected one of the keys"),
        ({**ROW, "active": [], "inactive": []}, r"active: expected a list of times"),
        ([], r"expected a table, got 'list'"),
    ],
)
def test_a_trace_is_looked_at(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        traced(tmp_path / "trace.json", {"x": row})


# ---- a function ----------------------------------------------------------------------------


def test_a_function_describes_a_fleet() -> None:
    def profile(client: int, round_: int) -> Profile:
        return Profile(samples=10 * round_, speed=0.5, downlink=100, end=50 if client else math.inf)

    fleet, ids = CalledFleet(profile, 2), np.array([0, 1])
    assert fleet.times(ids, 2, Load(down=200)).train.tolist() == [10, 10]
    assert fleet.times(ids, 2, Load(down=200)).down.tolist() == [2, 2]
    assert fleet.windows(ids, 20, 1)[1].tolist() == [math.inf, 50]
    assert fleet.windows(ids, 50, 1)[0].tolist() == [-math.inf, math.inf]
    assert fleet.times(ids, 2 + (1 << 32), Load()).train.tolist() == [10, 10]  # a second attempt


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (lambda _c, _r: 1 / 0, "the task raised"),
        (lambda _c, _r: {}, r"profile\(3, 1\): expected a Profile, got 'dict'"),
        (lambda _c, _r: Profile(samples=0), r"profile\.samples: expected 1 to"),
        (lambda _c, _r: Profile(samples=1, crash=math.nan), r"profile\.crash: expected 0 to 1"),
    ],
)
@pytest.mark.usefixtures("capsys")
def test_what_the_function_does_wrong_is_named(
    profile: Callable[[int, int], Profile], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        CalledFleet(profile, 9).times(np.array([3]), 1, Load())


# ---- a million -----------------------------------------------------------------------------


def test_a_million_are_the_formulas_own(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f"""
        seed = 7
        [cohorts.all]
        share = 1
        samples = {{ loguniform = [{math.exp(2.5)!r}, {math.exp(4.5)!r}] }}
        speed = {{ lognormal = {{ median = 0.02, sigma = 0.6 }} }}
        bandwidth = {{ loguniform = [2e5, {2e5 * math.exp(3)!r}] }}
        online = {{ hours = {{ uniform = [{0.1 * 19.2!r}, {0.6 * 19.2!r}] }} }}
        """,
        "utf-8",
    )
    made, known = read(file).fleet(10**6, seed=1).profiles, reference(10**6).profiles
    assert size(made) == 20_000_000
    assert np.mean(made.samples == known.samples) > 0.99999  # an exponential may round otherwise
    for name in ("speed", "downlink", "uplink", "duty"):
        assert np.allclose(getattr(made, name), getattr(known, name), rtol=1e-6), name
    assert (
        reference(10).times(np.arange(10), 3, LOAD).up.tolist()
        == reference(1000).times(np.arange(10), 3, LOAD).up.tolist()
    )
