"""fleet.toml: the page's own example, what may not stand in one, who belongs to which cohort."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.declared import Expect, Pool, Prices, Server, Site
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.test_docs import blocks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "simulation.md"
SMALL = """
[cohorts.a]
count = 3
samples = 5
speed = { uniform = [1, 2] }
bandwidth = 10
[cohorts.b]
count = 2
samples = { normal = { mean = 50, deviation = 20 } }
speed = 3
downlink = 100
uplink = { loguniform = [1, 10] }
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "fleet.toml"
    file.write_text(text, "utf-8")
    return file


def test_the_page_s_own_example(tmp_path: Path) -> None:
    example = next(b for b in blocks(PAGE.read_text("utf-8"), "toml") if "[cohorts." in b)
    described = read(written(tmp_path, example))
    fleet = described.fleet(20_000, seed=1)
    shares = [cohort.share for cohort in described.cohorts]
    assert sum(share for share in shares if share is not None) == pytest.approx(1)
    assert [cohort.site for cohort in described.cohorts] == ["mobile", "north"]
    terms = Terms(cohort=50, invited=65, deadline=600, load=Load(down=240_000, up=240_000))
    clock = Synchronous(fleet, terms)
    decisions = [clock.decide(r) for r in range(1, 51)]
    assert sum(len(d.used) for d in decisions) > 0.9 * 50 * 50
    assert sum(len(d.crashed) for d in decisions) > 0


def test_cohorts_by_count(tmp_path: Path) -> None:
    described = read(written(tmp_path, SMALL))
    fleet = described.fleet(5, seed=4)
    times = fleet.times(np.arange(5), 1, Load(down=100, up=10))
    assert times.down.tolist() == [10, 10, 10, 1, 1]
    assert times.up[:3].tolist() == [1, 1, 1]
    assert np.all((times.up[3:] >= 1) & (times.up[3:] <= 10))
    assert np.all((times.train[:3] >= 5) & (times.train[:3] <= 10))
    assert np.all(times.train[3:] % 3 == 0)  # whole samples
    with pytest.raises(SettingsError, match=r"cohorts of 6 clients together, got 5; ask for 5"):
        described.fleet(6, seed=4)


def test_one_more_changes_no_other(tmp_path: Path) -> None:
    more = SMALL.replace("count = 3", "count = 4")
    few, many = (read(written(tmp_path, text)).fleet(n, 4) for text, n in ((SMALL, 5), (more, 6)))
    old, new = np.arange(5), np.array([0, 1, 2, 4, 5])
    for round_ in (1, 2):
        a, b = (f.times(i, round_, Load(up=1)) for f, i in ((few, old), (many, new)))
        assert a.train.tolist() == b.train.tolist()
        assert a.up.tolist() == b.up.tolist()


def test_shares_are_drawn_and_stay(tmp_path: Path) -> None:
    text = SMALL.replace("count = 3", "share = 3").replace("count = 2", "share = 1")
    described = read(written(tmp_path, text))
    large, small = described.fleet(40_000, 4), described.fleet(100, 4)
    ids = np.arange(40_000)
    fast = large.times(ids, 1, Load(down=100)).down == 10
    assert np.mean(fast) == pytest.approx(0.75, abs=4 * 0.0022)  # binomial
    assert np.array_equal(small.times(ids[:100], 1, Load(down=100)).down == 10, fast[:100])
    assert np.array_equal(small.profiles.speed, large.profiles.speed[:100])


def test_the_file_s_seed_goes_before_the_run_s(tmp_path: Path) -> None:
    own = read(written(tmp_path, "seed = 9\n" + SMALL))
    assert own.fleet(5, 1).profiles.speed.tolist() == own.fleet(5, 2).profiles.speed.tolist()
    free = read(written(tmp_path, SMALL))
    assert free.fleet(5, 1).profiles.speed.tolist() != free.fleet(5, 2).profiles.speed.tolist()
    assert free.fleet(5, 9).profiles.speed.tolist() == own.fleet(5, 1).profiles.speed.tolist()


def test_recorded_devices(tmp_path: Path) -> None:
    rows = [("a", 100, 10), ("b", 200, 20)]
    (tmp_path / "capacity.json").write_text(
        json.dumps({n: {"computation": c, "communication": k} for n, c, k in rows}), "utf-8"
    )
    row = {"active": [10], "inactive": [20], "finish_time": 100}
    (tmp_path / "online.json").write_text(json.dumps({"a": row}), "utf-8")
    fleet = read(written(tmp_path, """
        [cohorts.x]
        count = 3
        samples = 10
        capacity = "capacity.json"
        online = { trace = "online.json" }
    """)).fleet(3, 0)  # fmt: skip
    times = fleet.times(np.arange(3), 1, Load(down=1280))
    # Three times the inference of ten samples; 10 and 20 kbit/s are 1,280 and 2,560 bytes/s.
    assert times.train.tolist() == pytest.approx([3, 6, 3])
    assert times.down.tolist() == pytest.approx([1, 0.5, 1])
    begin, end = fleet.windows(np.arange(3), 50, 1)
    assert (begin.tolist(), end.tolist()) == ([110] * 3, [120] * 3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("speed = 3", "sped = 3", r"cohorts\.b\.sped: expected one of the keys .*; perhaps speed"),
        ("count = 3", "count = 0", r"cohorts\.a\.count: expected an integer, 1 to"),
        ("count = 3", "count = true", r"cohorts\.a\.count: expected an integer"),
        (
            "count = 3",
            "share = 1",
            r"cohorts\.b: expected share, as cohort a, got 'count'; count in",
        ),
        ("count = 3", "", r"cohorts\.a: expected count or share, got 'neither'; count in"),
        ("samples = 5", "samples = 0", r"cohorts\.a\.samples: expected 1 to 2\.14748e\+09 samples"),
        ("samples = 5", "", r"cohorts\.a\.samples: expected a number, 1 to .* got 'nothing'"),
        ("uniform = [1, 2]", "uniform = [2, 1]", r"speed\.uniform: expected \[low, high\]"),
        ("uniform = [1, 2]", "uniform = [-1, 2]", r"speed\.uniform: expected 0 to 1e\+06 seconds"),
        ("uniform = [1, 2]", "gamma = [1, 2]", r"speed: expected one of uniform, .* got 'gamma'"),
        ("uniform = [1, 2]", "uniform = [1, 2], least = 3, most = 2", r"most: expected 3 or more"),
        ("uniform = [1, 2]", "choice = []", r"choice: expected a list of 1 to"),
        (
            "uniform = [1, 2]",
            "choice = [1], weights = [0]",
            r"weights: expected at least one",
        ),
        ("uniform = [1, 2]", "choice = [1], weights = [1, 2]", r"weights: expected a list of 1"),
        ("deviation = 20", "sigma = 20", r"normal: expected a table with mean and deviation"),
        ("bandwidth = 10", "", r"cohorts\.a\.bandwidth: expected a number, 1 to 1e\+15 bytes/s"),
        ("bandwidth = 10", "uplink = 3", r"cohorts\.a\.downlink: expected a number"),
        ("downlink = 100", "bandwidth = 3", r"b\.bandwidth: expected nothing beside downlink and"),
        (
            "speed = 3",
            "speed = 3\njitter = 0.1\nspread = 0.1",
            r"b\.jitter: expected nothing beside spread",
        ),
        ("speed = 3", "speed = 3\nspread = 11", r"cohorts\.b\.spread: expected 0 to 10"),
        ("speed = 3", "speed = 3\nmemory = 0", r"b\.memory: expected 1 to 1e\+18 bytes"),
        ("speed = 3", "speed = 3\nline-price = -1", r"b\.line-price: expected 0 to 1e\+09"),
        ("speed = 3", "speed = 3\ndropout = 1.5", r"cohorts\.b\.dropout: expected 0 to 1"),
        ("speed = 3", 'speed = 3\nonline = "often"', r'online: expected a table, or "always"'),
        ("speed = 3", "speed = 3\nonline = {from = 3}", r"online\.hours: expected a number"),
        ("speed = 3", "speed = 3\nonline = {hours = 20}", r"hours: expected 0\.01 to 19\.2 hours"),
        (
            "speed = 3",
            'speed = 3\nonline = {trace = "no.json"}',
            r"no\.json: expected a trace",
        ),
        ("speed = 3", "speed = 3\nsite = 3", r"cohorts\.b\.site: expected a name"),
        (
            "[cohorts.a]",
            "[plan]\nx = 1\n[cohorts.a]",
            r"fleet\.toml: plan: expected one of the keys",
        ),
        ("[cohorts.a]", "seed = -1\n[cohorts.a]", r"seed: expected an integer, 0 or more, got -1"),
        ("[cohorts.a]", '[cohorts."a b"]', r"cohorts\.a b: expected a name of letters"),
        ("speed = 3", 'capacity = "x.json"', r"b\.downlink: expected nothing beside capacity"),
    ],
)
def test_what_may_not_be_written(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert SMALL.count(old) == 1
    with pytest.raises(SettingsError, match=said) as caught:
        read(written(tmp_path, SMALL.replace(old, new)))
    assert "fleet.toml" in str(caught.value) or "no.json" in str(caught.value)


def test_the_page_s_tables_beside_cohorts(tmp_path: Path) -> None:
    example = next(b for b in blocks(PAGE.read_text("utf-8"), "toml") if "[sites." in b)
    described = read(written(tmp_path, example))
    (boxes,) = described.cohorts
    assert (boxes.behaviour.spread, boxes.power, boxes.price, boxes.line_price) == (
        0.3,
        3.5,
        0.02,
        5,
    )
    assert boxes.memory is not None
    assert boxes.memory.ends() == (4e9,)
    assert described.sites == {"north": Site(outage=0.01, outage_hours=6, correlation=0.1)}
    assert described.server == Server(overhead=0.03, spread=0.2, memory=16e9)
    assert described.prices == Prices(currency="USD", egress=0.09, energy=0.3)
    a100 = Pool(kind="gpu", count=4, hourly=2.5, reserve=0.1, fold=6e9)
    assert described.pools == {"a100": a100}
    assert described.expect == Expect(refused=0.001, drop=0.05)
    fleet = described.fleet(2000, 1)
    assert (fleet.cohorts, fleet.sites) == (("boxes",), ("north",))
    lost = [np.mean(fleet.fates(np.arange(2000), 1, 3600.0 * h).kinds == 1) for h in range(200)]
    assert np.std(lost) > 0.03  # independent ones: 0.004


def test_what_is_left_out_is_nothing(tmp_path: Path) -> None:
    described = read(written(tmp_path, SMALL))
    assert (described.sites, described.pools) == ({}, {})
    assert (described.server, described.prices) == (Server(), Prices())
    assert [(c.memory, c.power, c.price) for c in described.cohorts] == [(None, 0, 0)] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sites.south]\noutage = 1", r"sites\.south: expected a site that a cohort names"),
        ("[sites.north]\noutage = 2", r"sites\.north\.outage: expected 0 to 1, got 2"),
        ("[sites.north]\noutages = 1", r"sites\.north\.outages: expected one of the keys"),
        ("[sites.north]\ncorrelation = 1e-7", r"correlation: expected 0, or 1e-06 to 1, got 1e-07"),
        ("sites = 3", r"sites: expected at most 1000 tables \[sites\.NAME\], got 3"),
        ("[sites]\nnorth = 3", r"sites\.north: expected a table, got 3"),
        ("[server]\nmemory = 0", r"server\.memory: expected 1 to 1e\+18 bytes"),
        ("server = 1", r"server: expected a table"),
        ("[server]\noverhead = nan", r"server\.overhead: expected 0 to 1e\+06 seconds, got nan"),
        ('[prices]\ncurrency = "$"', r"prices\.currency: expected 1 to 8 letters"),
        ("[prices]\negress = -1", r"prices\.egress: expected 0 to 1e\+09, got -1"),
        ('[pools.x]\nkind = "tpu"\ncount = 1', r"pools\.x\.kind: expected gpu or core, got 'tpu'"),
        ('[pools.x]\nkind = "gpu"', r"pools\.x\.count: expected an integer, 1 to"),
        ('[pools."x y"]\nkind = "gpu"', r"pools\.x y: expected a name of letters"),
        ("[expect]\nrefused = 2", r"expect\.refused: expected 0 to 1"),
    ],
)
def test_what_may_not_stand_beside_cohorts(tmp_path: Path, text: str, said: str) -> None:
    north = SMALL.replace("speed = 3", 'speed = 3\nsite = "north"')
    with pytest.raises(SettingsError, match=said):
        read(written(tmp_path, f"{text}\n{north}"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"fleet\.toml: expected the description of a fleet"):
        read(tmp_path / "fleet.toml")
