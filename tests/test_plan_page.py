"""The picture of a plan: what it says, that it believes nothing, and that it repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from umbel.simulation.pages.plan_page import page
from umbel.simulation.pages.plan_rounds import curve
from umbel.simulation.pages.scale import percent
from umbel.tests.recorded_plans import example, poor, rich
from umbel.tests.test_run_report import Elements

SECTIONS = (
    *("What to change first", "How long a round takes", "By the hour of the day"),
    *("What closes a round", "What becomes of the clients", "How many to ask", "What it costs"),
    *("The server", "The plan"),
)


def seen(plan: dict[str, Any]) -> tuple[str, Elements]:
    text = page(plan).decode("utf-8")
    elements = Elements(text)
    assert not elements.open
    return text, elements


def test_the_example_as_a_page() -> None:
    text, elements = seen(example())
    for heading in SECTIONS:
        assert f"<h2>{heading}</h2>" in text
    said = elements.text
    assert "Give slow a faster uplink, or leave it out: it closes 61 % of the rounds." in said
    assert said.index("What to change first") < said.index("How long a round takes")
    assert "half of the rounds within 1 min; 9 of 10 within 1.29 min" in said
    assert "The hour at which a round begins makes no difference." in said
    assert "As planned it has fewer in 0.1 % of the rounds" in said
    assert said.index("the run's time") < said.index("a round's time (p90)")
    assert "1.44 MB of the 16 GB that it has: it fits." in said
    assert "1.20 USD" in said
    assert "What measured rounds changed" not in text


def test_a_page_of_everything_believes_nothing() -> None:
    text, elements = seen(rich())
    assert "What measured rounds changed" in text
    assert "The quickest begin at 02:00" in elements.text
    assert "the slowest at 14:00" in elements.text
    assert "slow, upload: 61 %" in elements.text
    assert "deadline: 8 %" in elements.text
    assert "Time of a round" in elements.text
    assert "Rounds without quorum" in elements.text
    lines = elements.text.splitlines()
    for name, value in (("tries without quorum", "0.1 %"), ("runs that end early", "4.9 %")):
        assert value in lines[lines.index(name) - 1 : lines.index(name) + 2]
    assert sum(name == "script" for name, _ in elements.found) == 1
    assert all(name not in {"img", "a", "link", "form"} for name, _ in elements.found)
    assert all("style" not in attributes for _, attributes in elements.found)


def test_a_page_of_little_says_so() -> None:
    _, elements = seen(poor())
    assert "No round is expected to end" in elements.text
    assert "no end" in elements.text
    assert "Nothing costs money" in elements.text
    assert "without trying out its assumptions" in elements.text
    assert "no number is enough" in elements.text


def test_memory_that_does_not_fit_is_said() -> None:
    plan = example()
    plan["server"]["limit"] = 1e6
    assert "it does NOT fit" in seen(plan)[1].text


def test_the_same_plan_gives_the_same_bytes() -> None:
    assert page(rich()) == page(rich())


def test_the_histogram_adds_up_to_all_rounds() -> None:
    """Its bars are shares of rounds: by the table, those over by the last bar are all."""
    rows = page(example()).decode().split('id="lengths"')[1].split("</table>")[0]
    cells = [row.split("</td>") for row in rows.split("<tr><td>")[1:]]
    shares = [float(cell[1].split("<td>")[1].removesuffix(" %")) for cell in cells]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert cells[-1][2].endswith("100 %")


def test_a_few_rounds_far_off_do_not_hide_the_others() -> None:
    """Half a per cent is closed by a deadline of an hour; the picture ends at 1.5 times p99."""
    plan = example()
    pairs = plan["round"]["quantiles"]
    plan["round"]["quantiles"] = [[p, 3600.0 if p >= 0.995 else x] for p, x in pairs]
    plan["deadline"]["set"] = 3600.0
    text, elements = seen(plan)
    assert "of the rounds take longer than is drawn." in elements.text
    assert "deadline: 1 h, beyond the picture" in elements.text
    rows = text.split('id="lengths"')[1].split("</table>")[0]
    assert "2.39 min" in rows  # 1.5 times 95.547 s
    assert "1 h" not in rows


def test_rounds_of_one_length_are_said_in_words() -> None:
    plan = example()
    plan["round"]["quantiles"] = [[share, 60.0] for share, _ in plan["round"]["quantiles"]]
    assert "Every round takes the same time." in seen(plan)[1].text


def test_quantiles_that_are_no_number_end_the_curve() -> None:
    shares, seconds = curve([[0.1, 2.0], [0.5, 3.0], [0.9, None]])
    assert (shares.tolist(), seconds.tolist()) == ([0.1, 0.5], [2.0, 3.0])
    assert not np.size(curve([[0.5, None]])[1])


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.5, "50 %"),
        (1.0, "100 %"),
        (0.99995, "99.995 %"),
        (1.5e-7, "1 in 6,700,000"),
        (0.0, "0 %"),
    ],
)
def test_a_share_keeps_what_tells_it_from_all(share: float, said: str) -> None:
    assert percent(share) == said
