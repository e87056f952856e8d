"""A server that is lost at any message of a run, and its successor: the same model, bit for bit.

The members outlive it, as devices outlive a server. Every message of the run, up or down, is in
turn the last thing that happens to the first server; what was on its way is gone with it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients.session import Session
from umbel.protocol import messages_pb2 as pb
from umbel.strategies.server_rules import FedAdagrad, FedYogi
from umbel.tests.rounds import Stage, matches, settings

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.ledger import RoundRecord


class ServerLost(Exception):
    """The moment at which the server process ends."""


def lose_at(stage: Stage, count: int) -> None:
    """Let the server be lost when this many messages and frames have passed."""
    passed = 0

    def tap(_way: str, _node: str, _data: bytes) -> None:
        nonlocal passed
        passed += 1
        if passed == count:
            raise ServerLost

    stage.link.tap = tap


def unlose(stage: Stage) -> None:
    stage.link.tap = lambda _way, _node, _data: None


def finished(stage: Stage) -> list[RoundRecord]:
    return [r for r in stage.directory.ledger.rounds() if r.outcome == "finished"]


def bits(stage: Stage) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in stage.coordinator.model.items()}


def messages(home: Path, members: int, **changes: Any) -> tuple[int, dict[str, bytes]]:
    """Return how many messages an uninterrupted run has, and the model it ends with."""
    passed = 0

    def tap(_way: str, _node: str, _data: bytes) -> None:
        nonlocal passed
        passed += 1

    with Stage(home / "whole", members, settings(**changes), keeps=True) as stage:
        stage.link.tap = tap
        stage.play()
        assert stage.coordinator.failure is None
        return passed, bits(stage)


def resumed(home: Path, count: int, members: int = 4, **changes: Any) -> Stage:
    """Return a run whose server was lost at this message and that a successor has ended."""
    stage = Stage(home / str(count), members, settings(**changes), keeps=True)
    lose_at(stage, count)
    with pytest.raises(ServerLost):
        stage.play()
    unlose(stage)
    stage.server_again()
    stage.link.run()
    return stage


def kinds(stage: Stage) -> list[str]:
    return [event.kind for event in stage.directory.ledger.events()]


TWO_ROUNDS: dict[str, Any] = {"rounds": 2, "final_evaluation": True}


@pytest.mark.parametrize("scheme", ["A", "plain"])
@pytest.mark.parametrize(
    "step", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every one"]
)
def test_lost_at_any_message_it_ends_with_the_same_bits(
    scheme: str, step: int, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {**TWO_ROUNDS, "scheme": scheme}
    total, model = messages(tmp_path, 4, **changes)
    reopened = 0
    for count in range(1, total + 1, step):
        with resumed(tmp_path, count, **changes) as stage:
            assert stage.coordinator.failure is None, count
            assert [(r.round, r.phase) for r in finished(stage)] == [
                (1, "train"), (2, "train"), (2, "evaluate")
            ]  # fmt: skip
            assert bits(stage) == model, count
            assert not list(stage.directory.path.glob("rounds/*.open"))
            reopened += "reopened" in kinds(stage)
            stage.directory.ledger.verify()
    # With masks on there are moments from which the same context is finished.
    assert (reopened > 0) is (scheme == "A")


@pytest.mark.parametrize("scheme", ["A", "plain"])
def test_the_moments_of_the_server_step_outlive_the_server(scheme: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 3, "scheme": scheme, "rule": FedYogi(eta=0.1)}
    total, model = messages(tmp_path, 4, **changes)
    _, other = messages(tmp_path / "other", 4, **{**changes, "rule": FedAdagrad(eta=0.1)})
    assert model != other
    for count in range(total // 3, total + 1, total // 5):
        with resumed(tmp_path, count, **changes) as stage:
            assert stage.coordinator.failure is None, count
            assert bits(stage) == model, count


def test_a_successor_asks_the_cohort_that_was_asked(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**TWO_ROUNDS, "cohort": 4}
    total, model = messages(tmp_path, 6, **changes)
    for count in range(1, total + 1, 9):
        with resumed(tmp_path, count, 6, **changes) as stage:
            assert stage.coordinator.failure is None, count
            assert bits(stage) == model, count


@pytest.mark.parametrize("times", [1, 3])
def test_a_round_that_was_not_yet_on_the_disk_is_done_again_and_so_is_the_one_after_it(
    times: int, tmp_path: Path
) -> None:
    """The next round is asked for while one is written: its members have heard of it twice."""
    model = messages(tmp_path, 4, **TWO_ROUNDS)[1]
    with Stage(tmp_path / "behind", 4, settings(**TWO_ROUNDS), keeps=True) as stage:
        stage.join()
        for _ in range(times):
            stage.coordinator.begin(stage.link.clock.now())
            stage.until("vote")
            shutil.rmtree(tmp_path / "disk", ignore_errors=True)
            shutil.copytree(stage.directory.path, tmp_path / "disk")
            while stage.coordinator.round < 2:
                stage.link.step()
            stage.until("keys")
            shutil.rmtree(stage.directory.path)
            shutil.copytree(tmp_path / "disk", stage.directory.path)
            stage.server_again()
        stage.link.run()
        assert stage.coordinator.failure is None
        assert bits(stage) == model
        assert [len(r.survivors) for r in finished(stage)] == [4, 4, 4]


def survivors_shown(home: Path) -> int:
    """Return the number of the message by which the last survivor was shown the survivors."""
    passed, last = 0, 0

    def tap(way: str, _node: str, data: bytes) -> None:
        nonlocal passed, last
        passed += 1
        if way == "down" and pb.ToClient.FromString(data).HasField("survivors"):
            last = last or passed + 3

    with Stage(home / "shown", 4, settings(), keeps=True) as stage:
        stage.link.tap = tap
        stage.play()
    return last


@pytest.mark.parametrize("what", ["sum", "transcript"])
def test_a_damaged_open_round_is_repeated_exactly(what: str, tmp_path: Path) -> None:
    """All have voted: nothing but the same sum over the same members is in question."""
    count = survivors_shown(tmp_path) + 4  # the votes of three are cast and the fourth is asked
    _, model = messages(tmp_path, 4)
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        lose_at(stage, count)
        with pytest.raises(ServerLost):
            stage.play()
        unlose(stage)
        (folder,) = stage.directory.path.glob("rounds/*.open")
        data = bytearray((folder / what).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / what).write_bytes(data)
        stage.server_again()
        stage.link.run()
        assert stage.coordinator.failure is None
        assert bits(stage) == model
        (record,) = finished(stage)
        assert record.attempt == 4  # numbers 0 to 3 may have been seen
        assert ("not reopened" in kinds(stage)) is (what == "sum")


def test_members_that_lost_their_secrets_too_are_losses(tmp_path: Path) -> None:
    """Seven members tolerate two: the round is finished without them, from what is on the disk."""
    with Stage(tmp_path, 7, settings(), keeps=True) as stage:
        stage.begin()
        stage.until("vote")
        for index in (2, 5):
            stage.sessions[index].close()
            stage.sessions[index] = stage.session(index)
        stage.server_again()
        stage.link.run()
        assert stage.coordinator.failure is None
        (record,) = finished(stage)
        assert (record.attempt, len(record.survivors)) == (0, 7)
        assert sorted(stage.told("refused")) == [
            (2, "REASON_CTX_DIFFERS"), (5, "REASON_CTX_DIFFERS")
        ]  # fmt: skip
        matches(stage, 1, tuple(range(7)), 7)


def test_a_round_that_cannot_be_finished_is_repeated_or_the_run_says_why(tmp_path: Path) -> None:
    """Of four members one has lost its secrets, so nothing opens; it votes anew with the rest."""
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        stage.begin()
        stage.until("vote")
        stage.sessions[1].close()
        stage.sessions[1] = Session(stage.sessions[1]._device)
        stage.server_again()
        stage.link.run()
        outcomes = [(r.attempt, r.outcome) for r in stage.directory.ledger.rounds()]
        assert outcomes == [(0, "aborted"), (4, "finished")]
        matches(stage, 1, (0, 1, 2, 3), 4)


def test_without_all_who_voted_the_run_ends_by_that_reason_and_goes_on_when_they_are_back(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        stage.begin()
        stage.until("release")
        gone = stage.sessions.pop(1)
        player = stage.players.pop(1)
        gone.close()
        stage.server_again()
        stage.link.run()
        assert "would difference: 3 of 3 members here voted" in str(stage.coordinator.failure)
        assert not finished(stage)
        stage.sessions.insert(1, Session(gone._device))
        stage.players.insert(1, player)
        stage.server_again()
        stage.link.run()
        assert stage.coordinator.failure is None
        matches(stage, 1, (0, 1, 2, 3), 4)


def test_nobody_votes_in_a_plain_run_so_any_may_be_asked_again(tmp_path: Path) -> None:
    """Its last round is lost, one of five is gone: the others train on from the model before."""
    with Stage(tmp_path, 5, settings(rounds=2, scheme="plain"), keeps=True) as stage:
        stage.play()
        (model,) = stage.directory.round_path(2).glob("*.safetensors")
        model.write_bytes(model.read_bytes()[:-1])
        stage.sessions.pop(1).close()
        stage.players.pop(1)
        stage.run = settings(rounds=3, scheme="plain")
        stage.server_again()
        stage.link.run()
        assert stage.coordinator.failure is None
        assert [(r.round, r.outcome) for r in stage.directory.ledger.rounds()][2:] == [
            (2, "lost"), (3, "finished")
        ]  # fmt: skip


def test_a_run_that_is_over_stays_over(tmp_path: Path) -> None:
    with Stage(tmp_path, 4, settings(**TWO_ROUNDS), keeps=True) as stage:
        stage.play()
        rows = len(stage.directory.ledger.rounds())
        model = bits(stage)
        stage.server_again()
        stage.link.run()
        assert stage.coordinator.done
        assert (len(stage.directory.ledger.rounds()), bits(stage)) == (rows, model)


def test_lost_again_and_again(tmp_path: Path) -> None:
    """Nine messages a process are enough for nothing but the votes, so it takes many."""
    _, model = messages(tmp_path, 4)
    with Stage(tmp_path, 4, settings(), keeps=True) as stage:
        lost = 0
        for count in [*range(20, 60, 3)] * 2:
            lose_at(stage, count)
            try:
                stage.play() if not lost else stage.link.run()
            except ServerLost:
                lost += 1
                unlose(stage)
                stage.server_again()
            else:
                break
        assert lost > 0
        assert stage.coordinator.failure is None
        assert bits(stage) == model
