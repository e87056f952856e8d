"""What `umbel plan` says of fleets whose devices are lost together, against exact fractions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from umbel.cli import main
from umbel.tests.two_level import F, Place, claims, exact, fleet

if TYPE_CHECKING:
    from pathlib import Path

ALONE = [Place(40, F(1, 50), outage=F(7, 100))]
MORE = [Place(10, F(1, 20), outage=F(1, 10)), Place(14, F(1, 20))]
TIED = [Place(14, F(1, 10), tie=F(1, 4)), Place(10, F(1, 10), tie=F(1, 4))]
FLEETS = [
    (ALONE, 30, 23, "outages of site s0"),
    (MORE, 14, 9, "outages of site s0"),
    (TIED, 22, 16, "losses that go together"),
]


@pytest.mark.parametrize(("places", "asked", "needed", "why"), FLEETS)
def test_a_plan_says_where_independence_would_claim_99_percent_and_it_is_below_95(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    places: list[Place],
    asked: int,
    needed: int,
    why: str,
) -> None:
    claimed, truth = claims(places, asked, needed)
    assert claimed > F(99, 100) > F(95, 100) > truth
    path = tmp_path / "fleet.toml"
    path.write_text(fleet(places), "utf-8")
    settings = {"cohort": asked, "min-survivors": needed, "deadline": 5000, "attempts": 5}
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    command = ["plan", str(path), "--parameters", "1000", "--rounds", "5", "--secure", "off"]
    assert main([*command, *options, "--format", "json"]) == 0
    quorum = json.loads(capsys.readouterr().out)["quorum"]
    assert quorum["needed"] == needed
    assert quorum["independent"] == pytest.approx(float(1 - claimed), rel=1e-9)
    assert quorum["miss"] == pytest.approx(float(1 - truth), rel=1e-9)
    said = (
        rf"independence would claim (\S+) % for {needed} of {asked} asked; "
        rf"with {why} it is (\S+) %: "
    )
    found = re.match(said, quorum["line"])
    assert found is not None, quorum["line"]
    assert float(found[1]) == pytest.approx(100 * float(claimed), abs=0.01)
    assert float(found[2]) == pytest.approx(100 * float(truth), abs=0.1)
    whole = sum(place.size for place in places)
    certain = [n for n in range(needed, whole + 1) if sum(exact(places, n)[needed:]) >= F(99, 100)]
    advice = f"ask {certain[0]} in place of" if certain else "no number of clients reaches 99 %"
    assert advice in quorum["line"]
