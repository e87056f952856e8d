"""`umbel runs report`: one file that holds everything and believes nothing that a ledger says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.cli import main
from umbel.server.ledger import OUTCOMES, Event, RoundRecord, RunRecord
from umbel.server.signals import GROUPS
from umbel.simulation.pages.figures import READS, Figures
from umbel.simulation.pages.markup import Markup, tag, text
from umbel.simulation.pages.report import report
from umbel.tests import simulated_runs
from umbel.tests.recorded_plans import example
from umbel.tests.recorded_runs import HOSTILE, begin, commit, entry, full, node, planned

if TYPE_CHECKING:
    from pathlib import Path


class Elements(HTMLParser):
    """The names and attributes of a page's elements, and its text outside style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.found.append((name, dict(attributes)))
        if name not in {"meta", "input"}:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        """Every element ends where it should."""
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        """Note what people read."""
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data + "\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(home: Path, run: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Elements]:
    assert main(["runs", "report", run]) == 0
    assert capsys.readouterr().out.startswith(f"{run}.html: report of {run}, ")
    page = (home / f"{run}.html").read_text("utf-8")
    elements = Elements(page)
    assert not elements.open
    return page, elements


def test_a_page_of_everything(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full(home, rounds=20)
    page, elements = made(home, "fleet-1", capsys)
    for heading in (
        "Learning", "Participation", "What became of the clients", "Staleness",
        "From client to client", "Where the time went", "Events and failures", "The run",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page
    assert "Not in this record" not in page
    assert "20 of 20 rounds finished" in elements.text
    assert "tier T0 (native): 2.1 times as fast as T1 in a trial" in elements.text
    assert "numpy 2.3.0, umbel 0.1.0" in elements.text
    assert "against virtual time" in elements.text
    assert "The same in every round: weight.mean 50." in elements.text
    assert "<figcaption>f1</figcaption>" in page


def test_a_page_of_a_run_that_was_simulated(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated_runs.run(home, {"rounds": 4, "client-test-every": 2})
    capsys.readouterr()
    page, elements = made(home, "r", capsys)
    assert "4 of 4 rounds finished" in elements.text
    assert "of 20 clients took part" in elements.text
    assert "tier T3" in elements.text
    assert "<h2>From client to client</h2>" in page
    for part in ("decide (the clock)", "train (the tier)", "aggregate (the server step)"):
        assert f"{part}: " in elements.text
    assert "Recorded where a fleet is simulated" in elements.text
    assert f"numpy {np.__version__}" in elements.text
    assert "hand-over sum: " in elements.text


def test_a_run_with_a_plan_is_set_beside_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sixty rounds and two that failed, all half as slow again; item 2 waits for somebody."""
    planned(home, example())
    page, elements = made(home, "planned", capsys)
    for heading in ("For review", "Beside the plan", "Was the plan right?", "Signals"):
        assert f"<h2>{heading}</h2>" in page
    assert re.search(
        r"The plan was too hopeful: \d+ of 62 rounds were slower than its p90, where 6\.2 were to",
        elements.text,
    )
    assert "The run waits for a decision about item 2: umbel runs review planned" in elements.text
    assert "ada@ward, 2026-01-02T04:05:06+00:00" in elements.text
    assert "the ward's line was down" in elements.text
    assert "1 approved, 1 open" in elements.text
    assert "62 attempts at rounds, 2 aborted." in elements.text
    assert "<td>updates that come from slow</td><td>28 % to 42 %</td><td>10 %</td>" in page
    assert page == made(home, "planned", capsys)[0]


def test_a_plan_that_no_run_keeps_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with begin(home, "odd", {"plan": {"digest": 5}}) as directory:
        commit(directory, 1, roster=[node(1)], seconds={"inviting": 1.0})
    assert "The record's plan cannot be read: " in made(home, "odd", capsys)[1].text


def test_the_same_record_gives_the_same_bytes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full(home, rounds=3)
    assert made(home, "fleet-1", capsys)[0] == made(home, "fleet-1", capsys)[0]


def test_nothing_on_a_page_leads_out_of_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full(home, rounds=3)
    page, elements = made(home, "fleet-1", capsys)
    for name, attributes in elements.found:
        assert name not in {"link", "img", "iframe", "object", "embed", "a", "base", "form"}
        assert not set(attributes) & {"src", "href", "style", "srcset", "action"}, name
    policy = [a["content"] for n, a in elements.found if a.get("http-equiv")]
    assert len(policy) == 1
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/]{43}='; script-src 'sha256-[\w+/]{43}='; "
        r"base-uri 'none'; form-action 'none'",
        str(policy[0]),
    )
    assert "url(" not in page
    assert "@import" not in page


def test_what_a_ledger_says_is_never_markup(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every place that a stranger, an app or a run's settings can write to."""
    said = {"tier": HOSTILE, "reason": HOSTILE, "hand-over": HOSTILE}
    config = {"rounds": 2, "config": {HOSTILE + "\ud800": HOSTILE}, "simulation": said}
    config |= {"versions": {HOSTILE: HOSTILE}}
    with begin(home, "r", config, HOSTILE) as directory:
        directory.ledger.event(HOSTILE, round=1, attempt=0, code=HOSTILE)
        directory.ledger.event("refused", round=1, attempt=0, node=HOSTILE, code=HOSTILE)
        commit(
            directory,
            1,
            metrics={f"test.{HOSTILE}": 1.0, f"clients.accuracy.p{HOSTILE}": 0.5, "test.loss": 1.0},
            seconds={HOSTILE: 1.0},
            roster=[HOSTILE],
            model=HOSTILE,
        )
        commit(directory, 2, outcome="aborted", cause=HOSTILE)
    page, elements = made(home, "r", capsys)
    assert [name for name, _ in elements.found].count("script") == 1
    assert not {name for name, _ in elements.found} & {"img"}
    assert not any(key.startswith("on") for _, attributes in elements.found for key in attributes)
    assert elements.text.count("<script>alert(1)</script>") > 10
    assert not re.search("[\x00\u202e\ud800]", page)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "No training round has finished yet"),
        ({"rounds": "many", "clients": -1, "config": None}, "0 rounds finished"),
    ],
)
def test_a_run_without_a_round_has_a_page(
    home: Path, config: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(home, "r", config).close()
    assert says in made(home, "r", capsys)[1].text


def test_what_a_run_does_not_record_is_said_and_not_drawn(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with begin(home, "r", {}) as directory:
        commit(directory, 1)
        commit(directory, 2, metrics={"test.accuracy": float("nan"), "eval.accuracy": float("inf")})
    page, elements = made(home, "r", capsys)
    for line in (
        "Recorded where a fleet is simulated", "Loss: no round of this run records one.",
        "No finite value was recorded.", "No round records who was in it.",
        "No round records the seconds of its parts.", "Not in this record",
        "Nothing went wrong, and nothing had to be tried again.",
    ):  # fmt: skip
        assert line in elements.text
    assert "not finite" in elements.text
    assert "<path" not in page
    assert "NaN" not in page


def test_ten_thousand_rounds_of_a_million_clients_fit_in_two_megabytes() -> None:
    numbers = range(1, 10_001)
    records = [
        entry(
            n,
            metrics={"test.accuracy": (n * 7919 % 1000) / 1000, "clock.closed": 60.0 * n},
            seconds={"train": 0.1, "idle": 0.01},
            roster=[node((n * 31 + i * i) % 1_000_000) for i in range(10)],
        )
        for n in numbers
    ]
    late = [Event(kind="late", round=n, attempt=0, node=node(n)) for n in numbers if n % 10 == 0]
    run = RunRecord(
        run="r", created="", security="off", config={"clients": 1_000_000, "rounds": 10_000}
    )
    page = report(Figures.made(run, records, late)).decode()
    elements = Elements(page)
    assert len(page) < 600_000
    assert "of 1,000,000 clients took part" in elements.text
    assert "0.999" in elements.text  # the highest accuracy, which a mean would have hidden


TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["test.accuracy", HOSTILE]
)
NUMBER = st.floats(-1e99, 1e99) | st.sampled_from([float("nan"), float("inf"), -float("inf")])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
METRICS = st.dictionaries(
    st.sampled_from([*READS.values(), "staleness.2", "clients.late", "clients.loss.p10"]) | TEXT,
    NUMBER,
    max_size=6,
)
ENTRY = st.builds(
    entry,
    st.integers(0, 10**12),
    metrics=METRICS,
    seconds=st.dictionaries(TEXT, NUMBER, max_size=9),
    roster=st.lists(TEXT, max_size=4),
    outcome=st.sampled_from(OUTCOMES),
    phase=st.sampled_from(["train", "train", "evaluate", "other"]),
    cause=TEXT,
    model=TEXT,
)
EVENT = st.builds(
    Event,
    kind=st.sampled_from([*GROUPS, "warning"]) | TEXT,
    round=st.integers(-5, 10**6),
    attempt=st.integers(0, 2),
    node=TEXT,
    code=TEXT,
)


@given(
    st.dictionaries(st.sampled_from(["rounds", "clients", "started", "simulation"]) | TEXT, JSON),
    st.lists(ENTRY, max_size=6),
    st.lists(EVENT, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_any_record_makes_a_page(
    config: dict[str, object], records: list[RoundRecord], events: list[Event]
) -> None:
    run = RunRecord(run="r", created=HOSTILE, security=HOSTILE, config=config)
    page = report(Figures.made(run, records, events)).decode()
    elements = Elements(page)
    assert not elements.open
    assert [name for name, _ in elements.found].count("script") == 1
    numbers = re.findall(r'(?: [xy]|width|height|c[xy]|d|points)="([^"]*)"', page)
    assert not re.search(r"nan|inf|e\+", " ".join(numbers))


def test_json_names_the_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full(home, rounds=2)
    out = home / "page.html"
    assert main(["runs", "report", "fleet-1", "--out", str(out), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": "fleet-1",
        "file": str(out),
        "bytes": out.stat().st_size,
        "rounds": 2,
    }


def test_a_file_that_cannot_be_written_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full(home, rounds=1)
    assert main(["runs", "report", "fleet-1", "--out", str(home / "no" / "x.html")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "choose another with --out" in error


def test_only_markup_passes_unescaped() -> None:
    assert text("<&>\"'") == "&lt;&amp;&gt;&quot;&#39;"
    assert tag("p", Markup("<b>x</b>"), "<b>", title='"') == (
        '<p title="&quot;"><b>x</b>&lt;b&gt;</p>'
    )
    assert (
        tag("rect", x=1.0, y=0.333333, hidden=False, class_=None) == '<rect x="1" y="0.33"></rect>'
    )
