"""The in-process link: encoded bytes in order, losses at every boundary, a clock that jumps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from umbel.protocol import frames, wire
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import StateError
from umbel.simulation import link as link_module
from umbel.simulation.drops import BOUNDARIES, Drop
from umbel.simulation.link import Clock, Link
from umbel.tests.rounds import Fixed, Stage, settings

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.strategies.trainer import TrainResult


class Tapped(Stage):
    """A stage whose messages are written down."""

    def __init__(self, home: Path, members: int, **rest: object) -> None:
        super().__init__(home, members, **rest)  # type: ignore[arg-type]
        self.passed: list[tuple[str, int, str]] = []
        self.link.tap = self._note

    def __enter__(self) -> Self:
        """Return the stage."""
        return self

    def _note(self, way: str, node: str, data: bytes) -> None:
        if data.startswith(frames.MAGIC):
            what = "frame"
        elif way == "up":
            what = str(wire.parse_to_server(data, node).WhichOneof("body"))
        else:
            what = str(wire.parse_to_client(data).WhichOneof("body"))
        self.passed.append((way, self.index[node], what))


UP = ["keys", "shares", "masked", "frame", "vote", "release"]
DOWN = ["start", "roster", "inbox", "survivors", "votes", "close", "goodbye"]


def test_everybody_sends_and_gets_each_message_once_and_in_order(tmp_path: Path) -> None:
    with Tapped(tmp_path, 4) as stage:
        stage.play()
        for member in range(4):
            seen = [(way, what) for way, who, what in stage.passed if who == member]
            assert [what for way, what in seen if way == "up"] == UP
            assert [what for way, what in seen if way == "down"] == DOWN


def test_two_runs_pass_the_same_messages_in_the_same_order(tmp_path: Path) -> None:
    passed = []
    for name in ("a", "b"):
        with Tapped(tmp_path / name, 5, drops=[Drop("inbox", (1,), 1)]) as stage:
            stage.play()
            passed.append(stage.passed)
    assert passed[0] == passed[1]


def test_models_are_fetched_once_by_everybody(tmp_path: Path) -> None:
    with Stage(tmp_path, 3, settings(rounds=2)) as stage:
        stage.play()
        down = [record.bytes_down for record in stage.records]
    # Each round's model is new; the third would be the evaluation of a model that was not fetched.
    size = stage.coordinator.manifest.total_bytes
    assert all(count >= 3 * (size + frames.HEADER) for count in down)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_lost_member_neither_sends_nor_gets_anything_after_its_boundary(
    boundary: str, silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (frames, link_module):
        monkeypatch.setattr(module, "PAYLOAD", 100)  # the vector of 240 bytes is three frames
    with Tapped(tmp_path, 5, drops=[Drop(boundary, (2,), 1, silent)]) as stage:
        stage.play()
        seen = [what for _way, who, what in stage.passed if who == 2]
    whole = ["start", "keys", "roster", "shares", "inbox", "masked", "frame", "frame", "frame"]
    whole += ["survivors", "vote", "votes", "release"]
    last = {"upload": 7, "masked": 9}.get(boundary) or whole.index(boundary) + 1
    assert seen == whole[:last]


def test_a_loss_is_for_good_and_in_its_round_only(tmp_path: Path) -> None:
    drops = [Drop("masked", (0,), 1), Drop("start", (3,), 2)]
    with Stage(tmp_path, 7, settings(rounds=3), drops=drops) as stage:
        stage.play()
        survivors = [stage.indices(record.survivors) for record in stage.records]
        rosters = [stage.indices(record.roster) for record in stage.records]
    assert survivors == [tuple(range(7)), (1, 2, 4, 5, 6), (1, 2, 4, 5, 6)]
    assert rosters == [tuple(range(7)), (1, 2, 4, 5, 6), (1, 2, 4, 5, 6)]


def test_a_silent_loss_is_found_at_the_deadline_and_no_time_passes_here(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, drops=[Drop("shares", (4,), 1, silent=True)]) as stage:
        stage.play()
        (record,) = stage.records
        kinds = [event.kind for event in stage.directory.ledger.events()]
    assert record.outcome == "finished"
    assert stage.indices(record.survivors) == (0, 1, 2, 3)
    assert "lost" not in kinds  # nobody told the server
    assert record.seconds["summing"] >= 60.0  # a tenth of the deadline, by its own clock


def test_silence_is_of_the_drop_that_happens(tmp_path: Path) -> None:
    """Another drop at the same boundary, of another round, does not make this one loud."""
    drops = [Drop("shares", (4,), 1, silent=True), Drop("shares", (3,), 9)]
    with Stage(tmp_path, 5, drops=drops) as stage:
        stage.play()
        assert "lost" not in [event.kind for event in stage.directory.ledger.events()]


def test_trained_counts_the_open_attempt(tmp_path: Path) -> None:
    with Stage(tmp_path, 3, settings(rounds=2, final_evaluation=True)) as stage:
        counts: list[int] = []
        stage.link.watch = lambda link: counts.append(link.trained)
        stage.play()
    changes = [b for a, b in zip([None, *counts], counts, strict=False) if a != b]
    assert changes == [0, 1, 2, 3] * 3


def test_the_clock_jumps_forward_and_never_back() -> None:
    clock = Clock()
    before = clock.now()
    clock.skip_to(before + 3600)
    assert 3600 <= clock.now() - before < 3601
    clock.skip_to(before)
    assert clock.now() >= before + 3600


def test_time_stands_still_before_a_deadline_and_goes_on_behind_one_that_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: machine[0])
    clock = Clock()
    assert clock.before(160.0) == 100.0
    machine[0] = 500.0
    assert clock.before(160.0) == 160.0 - 1e-3
    assert clock.before(150.0) == 160.0 - 1e-3  # never back
    machine[0] = 510.0
    assert clock.before(200.0) == pytest.approx(169.999)
    clock.skip_to(200.0)
    assert clock.now() == 200.0
    assert clock.before(1000.0) == 200.0


def test_clients_that_train_in_turn_for_longer_than_the_round_has_are_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of 500 s each in a round of 600 s: side by side, as devices train, they make it."""
    machine = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: machine[0])

    class Slow(Fixed):
        """Takes its time."""

        def train(self, *given: Any) -> TrainResult:
            """Let 500 s pass."""
            machine[0] += 500.0
            return super().train(*given)

    with Stage(tmp_path, 4, trainer=Slow()) as stage:
        stage.link.clock = Clock()
        stage.play()
        assert [r.outcome for r in stage.records] == ["finished"]
        assert len(stage.records[0].survivors) == 4
        assert stage.records[0].seconds["inviting"] < 600


def test_a_link_without_a_coordinator_says_so() -> None:
    with pytest.raises(StateError, match="link: expected a coordinator, got none; connect it"):
        Link().run()


def test_bytes_for_nobody_are_passed_over(tmp_path: Path) -> None:
    with Stage(tmp_path, 3) as stage:
        stage.join()
        stage.link.post("00" * 16, pb.ToClient(goodbye=pb.Goodbye()).SerializeToString())
        stage.link.run()
        assert stage.records[-1].outcome == "finished"
