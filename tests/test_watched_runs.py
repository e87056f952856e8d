"""Runs that leave what is expected of them: each pauses with its signal, and obeys the decision."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel import Metrics, Options, simulate
from umbel.cli import main
from umbel.protocol.errors import RoundFailed, SettingsError, StateError
from umbel.server import reviews, run_check
from umbel.server.ledger import Ledger
from umbel.server.run_directory import RunDirectory
from umbel.simulation.fleet import toml
from umbel.simulation.run import taken_up
from umbel.tests.deciders import WHY, deciding, waiting
from umbel.tests.simulated_runs import Points, digest, points
from umbel.tests.test_reviews import forge

if TYPE_CHECKING:
    from umbel.simulation.federation import Result
    from umbel.strategies.task import Site

FLEET = """seed = 14
[cohorts.phones]
share = 0.5
site = "north"
samples = 10
speed = 100.0
bandwidth = 1e6
[cohorts.boxes]
share = 0.5
site = "south"
samples = 10
speed = 100.0
bandwidth = 1e6
[sites.north]
outage = 0.3
"""
"""Of this seed the north is cut off in rounds 5 to 7, and from round 11 on."""
LOST: dict[str, Any] = {
    "clients": 20,
    "rounds": 12,
    "cohort": 12,
    "deadline": 1500.0,
    "dropout": 0.2,
}
EXAMPLE = Path(__file__).parent / "vectors" / "plan.json"


def fleet(home: Path) -> Path:
    file = home / "fleet.toml"
    file.write_text(FLEET)
    return file


def ledger(home: Path) -> Path:
    return home / "runs" / "r" / "ledger.sqlite"


def run(
    home: Path, settings: dict[str, Any], task: Points | None = None, *, resume: bool = False
) -> Result:
    known = {"tier": "T3", "attempts": 2, **settings}
    options = Options(run="r", home=home, secure=False, settings=known, resume=resume)
    return simulate(task or Points(), options)


def kinds(home: Path, *wanted: str) -> list[tuple[int, str, str]]:
    """Return round, kind and code of the events of some kinds, in order."""
    with Ledger(ledger(home), read_only=True) as found:
        return [(e.round, e.kind, e.code) for e in found.events() if e.kind in wanted]


def test_a_site_that_is_lost_pauses_and_goes_on_or_ends_as_decided(tmp_path: Path) -> None:
    longer = {**LOST, "rounds": 14, "fleet": str(fleet(tmp_path))}
    free = run(tmp_path / "free", longer)
    home = tmp_path / "watched"
    said = {**longer, "pause-on": "site"}
    with deciding(ledger(home), True, False) as found:
        result = run(home, said)
    assert [(item.signal, item.round) for item in found] == [("site", 6), ("site", 12)]
    assert found[0].value == 0
    assert found[0].cause.startswith("site north: 0 updates of ")
    # Until it ended it was the run that nobody watches.
    assert [r.metrics for r in result.records] == [r.metrics for r in free.records[:12]]
    assert isinstance(result.failure, RoundFailed)
    assert str(result.failure).startswith(
        "round 13 was not begun: ann rejected item 2, round 12: site 0, expected at least "
    )
    assert WHY in str(result.failure)
    assert str(result.failure).endswith("the model is that of round 12")
    assert kinds(home, "review", "paused", "decision", "went on") == [
        (6, "review", "site"), (7, "paused", "item 1"), (6, "decision", "approve"),
        (7, "went on", "item 1"),
        (12, "review", "site"), (13, "paused", "item 2"), (12, "decision", "reject"),
    ]  # fmt: skip
    with RunDirectory.open(home, "r") as directory:
        assert not run_check.verify(directory).wrong


def test_a_signal_that_is_accepted_for_the_rest_raises_nothing_any_more(tmp_path: Path) -> None:
    said = {**LOST, "fleet": str(fleet(tmp_path)), "pause-on": "site"}
    with deciding(ledger(tmp_path), True, always=True):
        result = run(tmp_path, said)
    assert result.failure is None
    assert kinds(tmp_path, "review") == [(6, "review", "site")]


def test_a_paused_run_obeys_no_decision_past_the_chain(tmp_path: Path) -> None:
    said = {**LOST, "fleet": str(fleet(tmp_path)), "pause-on": "site"}
    over = threading.Event()

    def watch() -> None:
        while not waiting(ledger(tmp_path)) and not over.wait(0.02):
            pass
        forge(ledger(tmp_path))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(StateError, match="as it was written, got another"):
            run(tmp_path, said)
    finally:
        over.set()
        thread.join()


class Forgetting(Points):
    """Its test finds what a list says."""

    def __init__(self, found: list[float]) -> None:
        """Find these accuracies, one a round."""
        self.found = found

    def evaluate(self, model: Any, data: Any) -> Metrics:
        """Return the next."""
        del model, data
        return Metrics(examples=1000, correct=round(1000 * self.found.pop(0)), loss=0.0)


def test_accuracy_that_falls_pauses_and_goes_on_as_decided(tmp_path: Path) -> None:
    values = [0.5, 0.8, 0.78, 0.7, 0.7, 0.7, 0.7, 0.9]
    said: dict[str, Any] = {"clients": 20, "rounds": 8, "cohort": 6, "pause-on": "accuracy"}
    with deciding(ledger(tmp_path), True) as found:
        result = run(tmp_path, said, Forgetting(list(values)))
    assert result.failure is None
    (item,) = found
    assert (item.signal, item.round, item.value, item.low) == ("accuracy", 6, 0.7, 0.75)
    assert item.cause.startswith("test.accuracy was 0.8 in round 2, its best; train.loss was ")
    assert kinds(tmp_path, "review", "paused", "went on") == [
        (6, "review", "accuracy"), (7, "paused", "item 1"), (7, "went on", "item 1")
    ]  # fmt: skip


class Poisoned(Points):
    """The examples of half the clients are no numbers."""

    def train_data(self, site: Site) -> tuple[Any, Any]:
        """Return one client's."""
        inputs, labels = points(site.index + 1, site.index)
        if site.index % 2:
            inputs = np.full_like(inputs, np.nan)
        return inputs, labels


def test_rejections_that_rise_pause_and_end_the_run_as_decided(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "clients": 20,
        "rounds": 8,
        "cohort": 8,
        "pause-on": "rejections",
        "min-survivors": 3,
    }
    with deciding(ledger(tmp_path), False) as found:
        result = run(tmp_path, said, Poisoned())
    (item,) = found
    assert (item.signal, item.round) == ("rejections", 2)
    refused = int(item.value * 8)
    assert item.cause == f"{refused} x REASON_NOT_FINITE"
    assert isinstance(result.failure, RoundFailed)
    assert "ann rejected item 1, round 2: rejections" in str(result.failure)
    assert [r.round for r in result.records] == [1, 2]


def planned(home: Path, **changed: Any) -> Path:
    """Write a plan of the run that loses its north: the shared example with other numbers."""
    plan = json.loads(EXAMPLE.read_text("utf-8"))
    del plan["digest"]
    plan["fleet"] |= {"digest": toml.read(fleet(home)).digest, "clients": 20}
    plan["model"] |= {"parameters": 75}
    plan["settings"] |= {"clients": 20, "cohort": 12, "secure": False}
    plan["expect"]["duration"] = {"low": 900, "high": 1100, "low3": 800, "high3": 1200}
    plan["expect"]["participation"] = {}
    plan["expect"]["rejections"] = None
    plan["clients"] = [
        {"cohort": name, "site": site, "asked": 7.5, "used": 0.8}
        for name, site in (("phones", "north"), ("boxes", "south"))
    ]
    plan["bytes"] = {}
    for key, value in changed.items():
        plan[key] |= value
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    file = home / "plan.json"
    file.write_text(json.dumps({**plan, "digest": sha256(text.encode()).hexdigest()}))
    return file


def test_a_round_longer_than_its_plan_pauses_and_names_the_cohort(tmp_path: Path) -> None:
    said = {**LOST, "fleet": str(fleet(tmp_path)), "plan": str(planned(tmp_path)), "rounds": 14}
    with deciding(ledger(tmp_path), True, True) as found:
        result = run(tmp_path, {**said, "pause-on": "duration"})
    assert result.failure is None
    assert [(i.signal, i.round, i.low, i.high) for i in found] == [
        ("duration", 6, 900, 1100), ("duration", 12, 900, 1100)
    ]  # fmt: skip
    assert found[0].value == pytest.approx(1500, rel=1e-6)  # its deadline
    assert "cohort phones: 0 updates of" in found[0].cause or "north" in found[0].cause
    # What does not pause is an item, too.
    with RunDirectory.open(tmp_path, "r") as directory:
        items = reviews.items(directory.ledger)
        assert {(i.round, i.signal, i.pauses) for i in items} == {
            (6, "duration", True), (5, "site", False), (12, "duration", True), (11, "site", False)
        }  # fmt: skip
        assert directory.ledger.run().config["plan"]["expect"]["duration"]["high3"] == 1200


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"settings": {"secure": True}},
            "plan: secure: expected that of the run, False, got True; "
            "plan the run as it is: umbel plan --secure off",
        ),
        ({"settings": {"cohort": 9}}, "plan: cohort: expected that of the run, 12, got 9"),
        (
            {"fleet": {"clients": 21}},
            "plan: clients: expected that of the run, 20, got 21; "
            "umbel plan --clients 20, or a run of 21 clients",
        ),
        ({"fleet": {"digest": "ab" * 32}}, "plan: fleet: expected that of the run, "),
        ({"model": {"parameters": 76}}, "plan: parameters: expected those of the run's model, 75"),
    ],
)
def test_a_plan_of_another_run_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    asked = {**LOST, "fleet": str(fleet(tmp_path)), "plan": str(planned(tmp_path, **changed))}
    with pytest.raises(SettingsError) as caught:
        run(tmp_path, asked)
    assert said in str(caught.value)
    assert not ledger(tmp_path).exists()


def test_a_run_within_the_plan_that_was_made_for_it_raises_nothing(tmp_path: Path) -> None:
    calm = FLEET.replace("outage = 0.3", "outage = 0") + "[expect]\ndrop = 0.5\n"
    for cohort in ("phones", "boxes"):
        calm = calm.replace(f"[cohorts.{cohort}]", f"[cohorts.{cohort}]\njitter = 0.1")
    file, plan = tmp_path / "fleet.toml", tmp_path / "plan.json"
    file.write_text(calm)
    said = ["--clients", "20", "--rounds", "12", "--secure", "off", "--parameters", "75"]
    more = ["-c", "cohort=12", "-c", "deadline=1500.0", "-o", str(plan)]
    assert main(["plan", str(file), *said, *more]) == 0
    watched = {"plan": str(plan), "pause-on": "duration,participation,site,quorum"}
    result = run(tmp_path, {**LOST, "dropout": 0.0, "fleet": str(file), **watched})
    assert result.failure is None
    # 75 numbers in four arrays are padded to more bytes than in the one that a plan takes them for.
    assert {code for _, _, code in kinds(tmp_path, "review")} <= {"bytes"}
    with Ledger(ledger(tmp_path), read_only=True) as found:
        assert found.run().config["plan"]["digest"] == json.loads(plan.read_text())["digest"]


APP = """import umbel
from umbel.tests.test_reviews import forge
from umbel.tests.simulated_runs import Points as Base


class Points(Base):
    pass
"""


def test_a_run_is_taken_up_without_its_plans_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "points_of_a_plan.py").write_text(APP)
    (app / "pyproject.toml").write_text(
        '[tool.umbel]\ntask = "points_of_a_plan:Points"\nplan = "plan.json"\ntier = "T3"\n'
        'pause-on = ["duration"]\nfleet = "fleet.toml"\n'
    )
    planned(app)
    monkeypatch.syspath_prepend(str(app))
    options = Options(run="r", home=tmp_path, secure=False, settings={**LOST, "attempts": 2})
    with deciding(ledger(tmp_path), False):
        first = simulate(app, options)
    assert "ann rejected item 2, round 6: duration" in str(first.failure)
    (app / "plan.json").unlink()
    with Ledger(ledger(tmp_path), read_only=True) as found:
        again = taken_up(found.run(), tmp_path).run()
    assert str(again.failure) == str(first.failure)


def _process(home: Path, **settings: Any) -> subprocess.Popen[str]:
    words = [f"{key}={value}" for key, value in settings.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "umbel.tests.simulated_runs", str(home), *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip


def _until_paused(home: Path, times: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if waiting(ledger(home)) and len(kinds(home, "paused")) == times:
            return
        time.sleep(0.05)
    pytest.fail("the run has not paused")


def test_a_run_that_was_killed_while_it_waited_waits_again_and_ends_the_same(
    tmp_path: Path,
) -> None:
    said = {**LOST, "rounds": 9, "fleet": str(fleet(tmp_path))}
    free = run(tmp_path / "free", said)
    home, said = tmp_path / "watched", {**said, "pause-on": "site", "attempts": 2}
    with _process(home, **said) as process:
        _until_paused(home, 1)
        process.kill()
    with _process(home, **said) as process:  # taken up: it waits for the same item
        _until_paused(home, 2)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=30)
    assert words.rstrip().endswith("KeyboardInterrupt")
    assert kinds(home, "review", "decision") == [(6, "review", "site")]
    with Ledger(ledger(home)) as found:
        reviews.decide(found, 1, approve=True, by="ann", why=WHY, at="2026-01-02T03:04:05Z")
    result = run(home, said, resume=True)
    assert result.failure is None
    assert digest(result) == digest(free)
    assert kinds(home, "review") == [(6, "review", "site")]


def test_a_run_whose_item_was_rejected_does_not_go_on(tmp_path: Path) -> None:
    said = {**LOST, "fleet": str(fleet(tmp_path)), "pause-on": "site"}
    with deciding(ledger(tmp_path), False):
        first = run(tmp_path, said)
    again = run(tmp_path, said, resume=True)
    assert str(again.failure) == str(first.failure)
    assert not again.records


def test_the_site_of_a_device_that_stays_away_pauses_a_run_with_masks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"pause-on": "site", "lr": 0.1}
    options = Options(
        run="r", home=tmp_path, clients=6, rounds=8, drops=["keys:1@4"], in_process=True,
        settings=settings,
    )  # fmt: skip
    with deciding(ledger(tmp_path), False) as found:
        result = simulate(Points(), options)
    # Three rounds without the one device: 0.5 / 19 of 18 and 18, which is outside and not far.
    (item,) = found
    assert (item.signal, item.round) == ("site", 6)
    assert item.cause == "site site-5: 0 updates of 1 that were asked, before 100%"
    assert isinstance(result.failure, RoundFailed)


@pytest.mark.parametrize(
    ("pause_on", "said"),
    [
        ("weather", "pause-on: expected signals among duration, participation, site"),
        ("duration", "pause-on: expected signals that need no plan, site, rejections"),
    ],
)
def test_a_signal_that_cannot_pause_is_refused(tmp_path: Path, pause_on: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        run(tmp_path, {"clients": 5, "rounds": 1, "pause-on": pause_on})
    assert said in str(caught.value)
