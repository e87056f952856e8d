"""The reader of a run's plan: the shared example, and every way in which a file is none."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.server.ledger import RunRecord
from umbel.server.run_plan import RunPlan
from umbel.server.watch_terms import Band

EXAMPLE = Path(__file__).parent / "vectors" / "plan.json"
PLAN: dict[str, Any] = json.loads(EXAMPLE.read_text("utf-8"))


def written(path: Path, plan: dict[str, Any]) -> Path:
    """Write a plan under the digest of what it says."""
    rest = {key: value for key, value in plan.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**rest, "digest": sha256(text.encode()).hexdigest()}))
    return path


def test_the_example_says_what_a_server_needs() -> None:
    plan = RunPlan.read(EXAMPLE)
    assert plan.digest == PLAN["digest"]
    assert (plan.clients, plan.cohort, plan.secure) == (1000, 100, False)
    assert (plan.parameters, plan.model) == (60000, None)
    assert plan.quantiles[0] == (0.0005, 31.07)
    assert len(plan.quantiles) == len(PLAN["round"]["quantiles"])
    assert plan.sites == {"fast": "north", "slow": "south"}
    expected = plan.expected
    assert expected.duration == Band(43.18, 83.372, 31.07, 115.868)
    assert expected.participation["slow"] == Band(0.28, 0.42, 0.21, 0.48)
    assert expected.rejections == Band(0.0, 0.01, 0.0, 0.04)
    assert (expected.drop, expected.miss) == (0.05, 0.001)
    assert expected.traffic == 31e6 + 24e6
    assert expected.losses == pytest.approx({"north": 0.17, "south": 0.33})


def test_what_a_run_keeps_is_read_again_as_it_was() -> None:
    plan = RunPlan.read(EXAMPLE)
    kept = json.loads(json.dumps(plan.kept))
    config: dict[str, Any] = {"plan": kept}
    record = RunRecord(run="digits-1", created="", security="off", config=config)
    assert RunPlan.kept_by(record) == plan
    assert RunPlan.kept_by(replace(record, config={})) is None
    assert "sensitivity" not in kept


def test_what_the_plan_cannot_say_is_not_watched(tmp_path: Path) -> None:
    plan = json.loads(EXAMPLE.read_text("utf-8"))
    plan["expect"] |= {"duration": None, "rejections": None, "participation": None}
    plan["quorum"]["miss"] = None
    plan["bytes"]["round_up"] = None
    plan["round"]["quantiles"][-1][1] = None
    found = RunPlan.read(written(tmp_path / "plan.json", plan))
    expected = found.expected
    assert (expected.duration, expected.rejections, expected.miss) == (None, None, None)
    assert (expected.traffic, dict(expected.participation)) == (None, {})
    assert len(found.quantiles) == len(PLAN["round"]["quantiles"]) - 1


def _set(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        place: Any = plan
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


WRONG: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (_set("format", value="umbel-plan/2"), "format: expected umbel-plan/1"),
    (_set("more", value=1), "the keys of umbel-plan/1, got 'more'"),
    (_set("fleet", value=None), "fleet"),
    (_set("fleet", "clients", value=0), "clients: expected a whole number of 1 or more, got 0"),
    (_set("fleet", "clients", value=True), "clients"),
    (_set("fleet", "digest", value=1), "digest"),
    (_set("settings", "secure", value="off"), "secure: expected a value of type bool"),
    (_set("settings", "cohort", value=1.5), "cohort"),
    (_set("round", "quantiles", value={}), "quantiles"),
    (_set("round", "quantiles", 3, value=[0.5]), "pairs of share and seconds"),
    (_set("round", "quantiles", 3, value=[0.5, -1.0]), "seconds"),
    (_set("round", "quantiles", 3, value=[0.9, 1e9]), "ascend"),
    (_set("round", "quantiles", 3, value=["x", 1.0]), "share"),
    (_set("quorum", "miss", value=1.5), "miss: expected 0 to 1"),
    (_set("expect", "drop", value=None), "drop"),
    (_set("expect", "duration", "low", value="fast"), "low"),
    (_set("expect", "duration", "low", value=1e9), "low3 <= low <= high <= high3"),
    (_set("expect", "participation", value=[]), "participation"),
    (_set("clients", value=[1]), "an entry: expected a value of type dict, got 1"),
    (_set("clients", 0, "used", value=1.01), "used"),
    (_set("clients", 0, "cohort", value=7), "cohort"),
    (_set("clients", 0, "site", value=7), "site"),
    (_set("bytes", "round_up", value=-1), "round_up"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_one_line_for_what_is_wrong(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    plan = json.loads(EXAMPLE.read_text("utf-8"))
    change(plan)
    with pytest.raises(SettingsError) as caught:
        RunPlan.read(written(tmp_path / "plan.json", plan))
    assert said in str(caught.value)


def test_a_plan_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(EXAMPLE.read_text("utf-8").replace("0.04", "0.9"))
    with pytest.raises(SettingsError, match="digest"):
        RunPlan.read(path)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{", b"7", b'{"format": "umbel-plan/1"}'])
def test_bytes_that_are_no_plan_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(data)
    with pytest.raises(SettingsError, match="plan"):
        RunPlan.read(path)


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"umbel plan FLEET.toml"):
        RunPlan.read(tmp_path / "none.json")
    (tmp_path / "plan.json").write_bytes(b" " * ((16 << 20) + 1))
    with pytest.raises(SettingsError, match="16777216 bytes"):
        RunPlan.read(tmp_path / "plan.json")
