"""One app on a running server: when it is submitted, and which earlier run goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import SettingsError, StateError
from umbel.server.app_plan import AppPlan
from umbel.server.flower_app_run import AppRun, started, unfinished
from umbel.server.flower_control import RunState
from umbel.server.flower_programs import Place
from umbel.server.flower_up import changes
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAN = AppPlan(
    app=Path("/apps/x"), clients=3, secure=True, config={"rounds": 2}, settings={"clients": 3}
)
BUNDLE = b"the app"


def recorded(
    home: Path, name: str, said: Mapping[str, object], *, created: str, over: bool
) -> None:
    """Write a run's ledger."""
    with RunDirectory.create(home, name) as run:
        config = {"rounds": 2, "flower-run": "7", "started": dict(said)}
        run.ledger.create_run(name, created, config, "on")
        run.ledger.commit_round(RoundRecord(round=1, attempt=0, phase="train", outcome="finished"))
        if over:
            last = RoundRecord(round=2, attempt=0, phase="evaluate", outcome="finished")
            run.ledger.commit_round(last)


def test_the_newest_run_that_was_started_alike_and_is_not_over_goes_on(tmp_path: Path) -> None:
    place = Place(home=tmp_path, folder=tmp_path / "federations" / "fleet")
    said = started(PLAN, place)
    alike = {**said, "config": {"rounds": 2}, "bundle": "ab"}

    def found() -> str:
        return unfinished(tmp_path, said, PLAN.config, "ab")

    assert found() == ""
    recorded(tmp_path, "older", alike, created="2030-01-01T00:00:00+00:00", over=False)
    assert found() == "older"
    recorded(tmp_path, "newer", alike, created="2030-01-02T00:00:00+00:00", over=False)
    recorded(tmp_path, "over", alike, created="2030-01-03T00:00:00+00:00", over=True)
    others = {
        "app": alike | {"bundle": "cd"}, "settings": alike | {"settings": {"clients": 4}},
        "config": alike | {"config": {}}, "server": alike | {"server": "/elsewhere"},
    }  # fmt: skip
    for name, other in others.items():
        recorded(tmp_path, name, other, created="2030-01-04T00:00:00+00:00", over=False)
    assert found() == "newer"
    shutil.copytree(tmp_path / "runs" / "newer", tmp_path / "runs" / "newest")
    assert found() == "newer"  # a copy goes on where somebody names it


class Server:
    """A server whose nodes come when a test says so, and a Control API that answers as told."""

    def __init__(self, home: Path) -> None:
        self.place = Place(home=home, folder=home / "federations" / "fleet")
        self.online, self.resumed = 0, list[str]()
        self.submitted: list[dict[str, object]] = []
        self.refuses: Exception | None = None
        self.control = self
        self.supervisor: Any = SimpleNamespace(log=lambda name: home / f"{name}.log")
        self.state = RunState("running", "", "")

    def start_run(self, bundle: bytes, digest: str, config: Mapping[str, object]) -> int:
        """Take a run."""
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append({"bundle": bundle, "config": dict(config)})
        return 7

    def resume(self, run: str) -> None:
        """Note which run goes on."""
        self.resumed.append(run)

    def connect(self) -> Any:
        """Return a connection on which nothing is printed."""
        return SimpleNamespace(output_after=lambda *_: iter(()), close=lambda: None)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def made(server: Server, said: list[str], *, fresh: bool = False) -> AppRun:
    return AppRun(server, PLAN, BUNDLE, said.append, fresh=fresh)  # type: ignore[arg-type]


def test_it_is_submitted_when_its_nodes_are_online_and_not_before(server: Server) -> None:
    said: list[str] = []
    run = made(server, said)
    for online in (0, 0, 2, 2):
        server.online = online
        run.look(0.0)
    assert server.submitted == []
    server.online, server.refuses = 3, StateError("SuperLink", "an answer", "none")
    run.look(0.0)  # the SuperLink is away for a moment
    server.refuses = None
    run.look(0.0)
    assert server.submitted == [{"bundle": BUNDLE, "config": {"rounds": 2}}]
    assert server.resumed == []
    assert said == [
        "the app waits for its nodes: 0 of 3 are online",
        "the app waits for its nodes: 2 of 3 are online", "submitted the app x",
    ]  # fmt: skip
    run.end()


def test_what_the_superlink_does_not_take_is_said_once(server: Server) -> None:
    said: list[str] = []
    run = made(server, said)
    server.online, server.refuses = 3, SettingsError("run", "what the SuperLink accepts", "lr")
    run.look(0.0)
    run.look(1.0)
    assert said == ["run: expected what the SuperLink accepts, got 'lr'"]
    assert run.over


@pytest.mark.parametrize("fresh", [False, True])
def test_an_earlier_run_goes_on_unless_a_new_one_is_wanted(
    server: Server, tmp_path: Path, fresh: bool
) -> None:
    said: list[str] = []
    run = made(server, said, fresh=fresh)
    alike = {**started(PLAN, server.place), "config": {"rounds": 2}, "bundle": run.digest}
    recorded(tmp_path, "r-1", alike, created="2030-01-01T00:00:00+00:00", over=False)
    server.online = 3
    run.look(0.0)
    assert server.resumed == ([] if fresh else ["r-1"])
    assert said[0] == ("submitted the app x" if fresh else "submitted the app x: r-1 goes on")
    run.end()


def test_nodes_that_come_and_go_are_lines_few_for_many() -> None:
    many = {f"n{number:02}" for number in range(12)}
    assert changes(set(), {"a"}, {"a", "b"}) == ["a is online (1 of 2 online)"]
    assert changes({"a", "b", "c"}, {"c"}, {"a", "c"}) == [
        "a is offline (1 of 2 online)", "b is removed (1 of 2 online)"
    ]  # fmt: skip
    assert changes(set(), many, many) == [
        "n00, n01, n02, n03, n04, n05, n06, n07 and 4 more are online (12 of 12 online)"
    ]
    assert changes(many, many, many) == []
