"""`umbel plan` from end to end: numbers that can be computed by hand, and what it refuses."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import pytest

from umbel.cli import main
from umbel.protocol.graph import parameters
from umbel.server.run_plan import RunPlan

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "fleets"
EXAMPLE = json.loads((ROOT / "tests" / "vectors" / "plan.json").read_text("ascii"))
PLAIN = ("--parameters", "25000", "--secure", "off")

ALIKE = """
seed = 1
[cohorts.one]
count = 10
site = "north"
samples = 100
speed = 0.01
bandwidth = 1e5
power = 36
price = 7.2
line-price = 2.0
{more}
[prices]
currency = "EUR"
egress = 3.0
ingress = 1.0
energy = 0.5
[server]
memory = 1e9
{sites}
"""
MODEL = 100_032
"""25,000 float32 in blocks of 64 bytes."""
MESSAGE = MODEL + 6 * 8
ROUND = MODEL / 1e5 + 100 * 0.01 + MESSAGE / 1e5


def _fleet(folder: Path, more: str = "", sites: str = "") -> Path:
    path = folder / "fleet.toml"
    path.write_text(ALIKE.format(more=more, sites=sites))
    return path


def _plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["plan", *map(str, arguments), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["plan", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def _below(n: int, p: Fraction, k: int) -> float:
    """P[Binomial(n, p) < k], exactly."""
    return float(sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k)))


def test_devices_that_are_all_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, _fleet(tmp_path), *PLAIN, "--rounds", 40)
    for share in ("p50", "p90", "p99"):
        assert plan["round"][share] == pytest.approx(ROUND, rel=1e-6)
        assert plan["total"][share] == pytest.approx(40 * ROUND, rel=1e-6)
    assert {hour["online"] for hour in plan["round"]["by_hour"]} == {1.0}
    assert plan["quorum"]["miss"] == plan["quorum"]["independent"] == 0.0
    assert plan["quorum"]["invite"] == 10
    assert plan["bytes"]["down"] == pytest.approx(40 * 10 * MODEL)
    assert plan["bytes"]["up"] == pytest.approx(40 * 10 * MESSAGE)
    hours = 40 * 10 * ROUND / 3600
    assert plan["energy"]["device_hours"] == pytest.approx(hours, rel=1e-6)
    assert plan["energy"]["kwh"] == pytest.approx(hours * 0.036, rel=1e-6)
    down, up = 400 * MODEL / 1e9, 400 * MESSAGE / 1e9
    assert plan["money"]["currency"] == "EUR"
    assert plan["money"]["parts"] == {
        "devices": pytest.approx(hours * 7.2, rel=1e-6),
        "lines": pytest.approx((down + up) * 2.0),
        "egress": pytest.approx(down * 3.0),
        "ingress": pytest.approx(up * 1.0),
        "energy": pytest.approx(hours * 0.036 * 0.5, rel=1e-6),
        "pool": 0.0,
    }
    assert plan["money"]["total"] == pytest.approx(sum(plan["money"]["parts"].values()))
    assert plan["server"]["memory"] == 5 * MESSAGE + MODEL
    assert plan["clients"][0]["used"] == 1.0
    assert {hour["online"] for hour in plan["round"]["by_hour"]} == {1.0}
    assert plan["sites"] == {"north": {"share": 1.0, "expected": 10.0}}
    assert (plan["bottleneck"]["cohort"], plan["bottleneck"]["share"]) == ("one", 1.0)


def test_each_assumption_changes_what_it_must(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = _plan(capsys, _fleet(tmp_path), *PLAIN, "--rounds", 40)
    effects = {row["name"]: row for row in plan["sensitivity"]}
    lines = (MODEL + MESSAGE) / 1e5
    slower = {
        "training time": (lines + 1.1) / ROUND - 1,
        "bandwidth": (lines / 0.9 + 1) / ROUND - 1,
        "model bytes": (lines * 1.1 + 1) / ROUND - 1,
        "deadline": 0.0,
        "price of egress": 0.0,
    }
    for name, change in slower.items():
        assert effects[name]["round_p90"] == pytest.approx(change, abs=1e-5), name
        assert effects[name]["total_p50"] == pytest.approx(change, abs=1e-5), name
        assert effects[name]["miss"] == 0.0
    share = plan["money"]["parts"]["egress"] / plan["money"]["total"]
    assert effects["price of egress"]["money"] == pytest.approx(0.1 * share)
    sizes = [max(abs(r[k]) for k in r if k not in {"name", "change"}) for r in plan["sensitivity"]]
    assert sizes == sorted(sizes, reverse=True)


def test_what_independence_would_claim_is_said_beside_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at one site that is cut off in 6 % of the hours."""
    path = _fleet(tmp_path, "dropout = 0.02", "[sites.north]\noutage = 0.06")
    plan = _plan(capsys, path, *PLAIN, "-c", "min-survivors=6", "-c", "attempts=5")
    told, p = plan["quorum"], Fraction(98, 100)
    truth = 0.06 + 0.94 * _below(10, p, 6)
    claim = _below(10, p * Fraction(94, 100), 6)
    assert told["miss"] == pytest.approx(truth, rel=1e-6)
    assert told["independent"] == pytest.approx(claim, rel=1e-6)
    assert truth > 0.05
    assert claim < 0.01
    assert f"independence would claim {100 * (1 - claim):.3f} %" in told["line"]
    assert "94.0 %" in told["line"]
    assert told["invite"] is None  # an hour without the site is one without anybody
    assert "6.0 %" in plan["first"]


def test_too_few_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _fleet(tmp_path, "dropout = 0.3")
    asked = ("-c", "cohort=6", "-c", "min-survivors=6", "-c", "dropout=0.05", "-c", "attempts=9")
    plan = _plan(capsys, path, *PLAIN, *asked)
    assert plan["settings"]["invited"] == 8
    assert plan["quorum"]["miss"] == pytest.approx(_below(8, Fraction(7, 10), 6), rel=1e-6)
    assert plan["quorum"]["invite"] is None  # of all ten 6 come with 85 %
    by_asked = {n: miss for n, miss, _ in plan["quorum"]["by_asked"]}
    assert by_asked[10] == pytest.approx(_below(10, Fraction(7, 10), 6), rel=1e-6)


def test_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, _fleet(tmp_path), "--parameters", 25000)
    graph = parameters(10)
    names = {name: plan["secure"][name] for name in "nktdq"}
    assert names == {n: getattr(graph, n) for n in "nktdq"}
    assert plan["secure"]["void"] == 0.0
    assert plan["model"]["bytes"] == MESSAGE + 480 + 177 * 9
    assert plan["model"]["down"] == MODEL + 179 * 10 + 337 * 9


def test_equal_questions_have_equal_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _fleet(tmp_path, "dropout = 0.1\nspread = 0.3", "[sites.north]\noutage = 0.01")
    one, two = (_plan(capsys, path, *PLAIN, "-o", tmp_path / "a.json") for _ in range(2))
    assert one == two
    assert json.loads((tmp_path / "a.json").read_text()) == one
    assert _plan(capsys, path, *PLAIN, "--seed", 1)["digest"] != one["digest"]
    assert RunPlan.read(tmp_path / "a.json").digest == one["digest"]


def _keys(value: object, other: object, where: str = "") -> None:
    if isinstance(value, dict) and isinstance(other, dict):
        named = where in {"settings", "sites", "server.terms", "expect.participation"}
        assert named or value.keys() == other.keys(), where
        for key in value.keys() & other.keys():
            _keys(value[key], other[key], f"{where}.{key}".lstrip("."))
    elif isinstance(value, list) and isinstance(other, list) and value and other:
        _keys(value[0], other[0], where)


def test_a_plan_has_the_keys_of_the_example_that_its_readers_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _keys(_plan(capsys, _fleet(tmp_path), *PLAIN), EXAMPLE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--secure", "off"), "parameters: expected 1 to"),
        (("--parameters", "0"), "parameters: expected 1 to"),
        (("--parameters", "9", "--certainty", "1"), "--certainty: expected a probability"),
        (("--parameters", "9", "--seed", "-1"), "seed: expected an integer of at least 0"),
        (
            ("--parameters", "9", "-c", f"seed={1 << 64}"),
            "seed: expected below 9223372036854775808",
        ),
        (("--parameters", "9", "-c", "buffer=5"), "buffer: expected a run without masks, "),
        (("--parameters", "9", "-c", "nothing=5"), "expected one of"),
        (("--parameters", "9", "--clients", "7"), "ask for 10 clients"),
        (("--parameters", "9", "-c", "cohort=11"), "clients: expected at least 11"),
        (("--parameters", "9", "-c", "min-survivors=11"), "min-survivors: expected at most 10"),
        ((*PLAIN, "-c", "deadline=2"), "so long take the 3 fastest devices of all"),
        (("--parameters", "9", "--app", str(ROOT / "examples/digits")), "nothing beside an app"),
        (("--app", str(ROOT / "examples/flower-digits")), "--parameters N, how many numbers"),
    ],
)
def test_refusals(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    assert said in _refused(capsys, _fleet(tmp_path), *arguments)


def test_more_members_than_a_secure_round_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    phones = (EXAMPLES / "phones.toml", "--parameters", 9)
    assert "how many clients there are" in _refused(capsys, *phones)
    said = _refused(capsys, *phones, "--clients", 2000)
    assert "3 to 1250 members of a secure round" in said
    assert "--secure off" in said


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _fleet(tmp_path, "memory = 3e5")
    path.write_text(path.read_text().replace("memory = 1e9", "memory = 4e5"))
    lines = "\n".join(_plan(capsys, path, *PLAIN)["lines"])
    assert "cohort one: the model does not fit 100 % of its devices" in lines
    assert "the server needs 600.4 kB and has 400.0 kB" in lines


def test_the_models_own_app_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, _fleet(tmp_path), "--app", ROOT / "examples" / "digits", "--rounds", 2)
    assert plan["app"] == "digits"
    assert len(plan["model"]["digest"]) == 64
    assert plan["settings"]["rounds"] == 2
    assert plan["model"]["parameters"] > 0


def test_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    hospitals = [str(EXAMPLES / "hospitals.toml"), "--parameters", "25000000"]
    hospitals += ["-c", "deadline=3600", "-c", "attempts=3", "--rounds", "5"]
    assert main(["plan", *hospitals]) == 0
    out = capsys.readouterr().out
    for word in ("first", "round", "quorum", "ask", "deadline", "masks", "memory", "cost"):
        assert f"\n{word} " in out
    assert len(out.splitlines()) < 50
    phones = (EXAMPLES / "phones.toml", "--clients", 600, "--parameters", 60_000, "--rounds", 3)
    plan = _plan(capsys, *phones, "--secure", "off", "-c", "cohort=30", "-c", "dropout=0.1")
    assert plan["fleet"]["clients"] == 600
    assert {row["cohort"] for row in plan["clients"]} == {"wifi", "mobile"}


def test_what_may_end_a_run_comes_before_what_it_waits_for_in_vain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hospitals = [EXAMPLES / "hospitals.toml", "--parameters", 25_000_000, "-c", "deadline=3600"]
    hospitals += ["--rounds", 50]
    once = _plan(capsys, *hospitals, "-c", "attempts=1")
    again = _plan(capsys, *hospitals, "-c", "attempts=3")
    waits = "lower the deadline to 14.0 min: "
    assert once["first"].startswith("set attempts to 3: ")
    assert once["then"][0].startswith(waits)
    assert again["first"].startswith(waits)
    assert not any("attempts" in said for said in again["then"])


def test_a_secure_round_is_void_when_more_are_lost_than_it_bears(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _fleet(tmp_path, "dropout = 0.3")
    plan = _plan(capsys, path, "--parameters", 25000)
    graph = parameters(10)
    void = _below(10, Fraction(7, 10), 10 - graph.d)
    assert plan["secure"]["void"] == pytest.approx(void, rel=1e-9)
    assert plan["secure"]["lost"] == pytest.approx(3.0)
    assert "of the secure sums are void" in plan["first"]


MANY = """
seed = 1
[cohorts.one]
count = 200
samples = 100
speed = { lognormal = { median = 0.01, sigma = 0.3 } }
bandwidth = 1e5
"""


def test_what_to_change_first_is_to_ask_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """50 are asked for 50, and a fifth is lost: the round waits for its deadline."""
    path = tmp_path / "fleet.toml"
    path.write_text(MANY + "dropout = 0.2\n")
    plan = _plan(capsys, path, *PLAIN, "-c", "cohort=50")
    told = plan["quorum"]
    # The reference's table, for endless devices: 50 / 0.8 and three deviations more.
    exact = next(n for n in range(50, 99) if _below(n, Fraction(4, 5), 50) <= 0.01)
    assert told["invite"] == exact == 73
    assert plan["first"].startswith("ask 73 and not 50 (-c dropout=0.198): 100 % of the rounds")
    assert plan["round"]["p50"] == 600.0
    band = plan["expect"]["duration"]
    assert band["low3"] == band["low"] <= 594.0  # a hundredth below the deadline, or more
    assert band["high"] == band["high3"] == 606.0
    most = max(k for k in range(51) if 1 - _below(50, Fraction(4, 5), k) >= 0.75)
    assert f"is enough for the {most} updates that come" in plan["deadline"]["line"]
    assert plan["deadline"]["suggested"] < 10
    enough = _plan(capsys, path, *PLAIN, "-c", "cohort=50", "-c", "dropout=0.198")
    assert enough["settings"]["invited"] == 73
    assert enough["first"].startswith("train less on one: ")


def test_too_few_are_ever_online(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    hours = "online = { hours = 3, from = { uniform = [0, 24] } }\n"
    path.write_text(MANY.replace("count = 200", "count = 40") + hours)
    plan = _plan(capsys, path, *PLAIN, "-c", "cohort=30", "-c", "min-survivors=30", "--rounds", 1)
    assert plan["quorum"]["miss"] == 1.0
    assert plan["total"] == {"p50": None, "p90": None, "p99": None}
    assert plan["first"].startswith("enrol more, or lower min-survivors: 100 % of the rounds")
    assert "too few devices are online all through the day" in "\n".join(plan["lines"])


def test_a_site_without_which_there_is_no_quorum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _fleet(tmp_path, "", "[sites.north]\noutage = 0.02")
    more = '[cohorts.two]\ncount = 3\nsite = "south"\nsamples = 1\nspeed = 0.1\nbandwidth = 1e6\n'
    path.write_text(path.read_text() + more)
    plan = _plan(capsys, path, *PLAIN, "-c", "min-survivors=5", "-c", "attempts=9")
    assert plan["quorum"]["miss"] == pytest.approx(0.02, rel=1e-6)
    line = next(line for line in plan["lines"] if line.startswith("site north"))
    assert "77 % of those that are asked" in line
    assert "the other 3 are fewer than the quorum of 5" in line


def test_a_lower_cohort_that_is_advised_is_full_before_the_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 40 are asked, a tenth is lost, and the deadline is as near as it may be."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[cohorts.one]\ncount = 40\nsamples = 10\nspeed = 0.5\nbandwidth = 1e9\ndropout = 0.1\n"
    )
    shape = ["-c", "deadline=6", "-c", "attempts=3"]
    plan = _plan(capsys, path, *PLAIN, *shape)
    come = max(k for k in range(41) if 1 - _below(40, Fraction(9, 10), k) >= 0.99)
    said = re.match(
        r"lower cohort to (\d+), and ask 40 all the same \((-c cohort=\d+ -c dropout=[\d.]+)\): "
        r"98.5 % of the rounds wait",
        plan["first"],
    )
    assert said is not None, plan["first"]
    assert int(said[1]) == come
    after = _plan(capsys, path, *PLAIN, *shape, *said[2].split())
    waits = sum(one["share"] for one in after["bottleneck"]["shares"] if one["part"] == "deadline")
    assert after["settings"]["invited"] >= 40
    assert waits <= 0.015


def test_a_server_that_is_too_small_for_all_updates_is_told_for_how_many_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(MANY + "[server]\nmemory = 10e6\n")
    rule = [*PLAIN, "--rounds", 2, "-c", "robust=median"]
    lines = "\n".join(_plan(capsys, path, *rule, "-c", "cohort=150")["lines"])
    said = re.search(r"cohort=(\d+), a rule that keeps no updates, or a larger machine", lines)
    assert said is not None, lines
    plan = _plan(capsys, path, *rule, "-c", f"cohort={said[1]}")
    update = plan["server"]["terms"]["messages"] / int(said[1])
    assert 10e6 - update < plan["server"]["memory"] <= 10e6
