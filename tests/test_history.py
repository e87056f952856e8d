"""Where a run stands, read from ledgers that are written here row by row."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.digest import model_digest
from umbel.protocol.manifest import Manifest
from umbel.server.history import SPARE, History, take_over
from umbel.server.ledger import Event, RoundRecord
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = (hashlib.sha256(name).digest() for name in (b"a", b"b", b"c"))
FOUR = ("n0", "n1", "n2", "n3")


def row(number: int, attempt: int, outcome: str, model: bytes, **more: Any) -> RoundRecord:
    return RoundRecord(
        round=number,
        attempt=attempt,
        phase=more.pop("phase", "train"),
        outcome=outcome,
        model=model.hex(),
        **more,
    )


def test_a_new_run_has_none() -> None:
    empty = History()
    assert (empty.round, empty.evaluated, dict(empty.attempts), empty.best) == (0, False, {}, None)


def test_a_number_is_counted_for_the_model_that_its_attempt_began_with() -> None:
    """Attempts 0 and 1 were on A; 0, 1 and 2 on B, one of them of the round that made C."""
    rows = [
        row(1, 0, "aborted", A),
        row(1, 1, "finished", B),
        row(2, 0, "void", B),
        row(2, 1, "aborted", B),
        row(2, 2, "finished", C),
    ]
    for model, highest in ((A, 1), (B, 2), (C, -1)):
        assert History.of(rows, [], model).attempts == {model: highest + SPARE}
    assert History.of(rows[:1], [], A).attempts == {A: 0 + SPARE}


def test_the_first_round_began_with_the_initial_model() -> None:
    rows = [row(1, 0, "finished", B, survivors=FOUR), row(1, 1, "lost", A)]
    initial = [Event(kind="initial", round=0, attempt=0, code=A.hex())]
    found = History.of(rows, initial, A)
    assert (found.round, found.attempts) == (1, {A: 0 + SPARE})
    assert found.voters.allowed(A, FOUR) == (FOUR, True)


def test_every_process_begins_beyond_the_one_before_though_nothing_else_was_recorded() -> None:
    events = [Event(kind="resumed", round=0, attempt=SPARE - 1, code=A.hex())]
    assert History.of([], events, A).attempts == {A: 2 * SPARE - 1}
    # Of a model that is new the same holds: a lost round may have made it before.
    found = History.of([], events, B)
    assert found.attempts == {B: 2 * SPARE - 1}
    assert found.floor == 2 * SPARE - 1
    assert History.of([], [], B).floor == SPARE - 1


def test_a_round_that_did_not_change_the_model_is_an_attempt_on_it() -> None:
    rows = [row(1, 0, "finished", A), row(2, 1, "finished", A), row(3, 2, "aborted", A)]
    assert History.of(rows, [], A).attempts == {A: 2 + SPARE}


def test_who_voted_on_the_model_in_force_is_known_whatever_came_of_it() -> None:
    rows = [
        row(1, 0, "finished", B, survivors=FOUR),
        row(2, 0, "void", B, survivors=FOUR[:3]),
        row(2, 1, "aborted", B),
    ]
    found = History.of(rows, [], B)
    assert found.voters.allowed(B, FOUR) == (FOUR[:3], True)
    assert found.voters.allowed(B, ("n0", "n3", "n4")) == (("n3", "n4"), False)
    assert History.of(rows[:1], [], B).voters.allowed(B, FOUR) == (FOUR, False)


def test_a_lost_round_is_over_and_the_run_is_back_at_the_model_before() -> None:
    """Round 3 is lost, then 2, newest first: the next one is round 4, from the model of 1."""
    rows = [
        row(1, 0, "finished", A),
        row(2, 0, "finished", B, survivors=FOUR),
        row(3, 0, "finished", C, survivors=FOUR[:3]),
        row(3, 1, "lost", A),
        row(2, 1, "lost", A),
    ]
    found = History.of(rows, [], A)
    assert found.round == 3
    assert found.attempts == {A: 0 + SPARE}
    assert found.voters.allowed(A, FOUR) == (FOUR, True)


def test_the_best_round_is_the_best_that_finished() -> None:
    rows = [
        row(1, 0, "finished", A, metrics={"test.accuracy": 0.5}),
        row(2, 0, "finished", B, metrics={"test.accuracy": 0.9}),
        row(3, 0, "finished", C, metrics={"test.accuracy": 0.7}),
        row(3, 1, "lost", B, metrics={"test.accuracy": 1.0}),
    ]
    assert History.of(rows, [], B).best == ((2.0, 0.9), 2)


def test_an_evaluation_that_finished_was_the_last_thing() -> None:
    rows = [row(1, 0, "finished", A), row(1, 1, "aborted", A, phase="evaluate")]
    assert not History.of(rows, [], A).evaluated
    rows.append(row(1, 2, "finished", A, phase="evaluate"))
    found = History.of(rows, [], A)
    assert (found.round, found.evaluated, found.attempts) == (1, True, {A: 2 + SPARE})


def test_a_member_that_voided_two_rounds_stays_out() -> None:
    events = [Event(kind="void", round=n, attempt=0, node="n1") for n in (1, 2)]
    assert History.of([], events, A).standing.excluded == {"n1"}


@pytest.mark.parametrize("rounds", [0, 2])
def test_taking_over_says_so_in_the_ledger_before_anything_else(
    rounds: int, tmp_path: Path
) -> None:
    model = {"w": np.arange(4.0)}
    manifest = Manifest.of(model)
    digest = model_digest(manifest.pack(model))
    with RunDirectory.create(tmp_path, "run") as directory:
        directory.ledger.create_run("run", "2026-01-01T00:00:00Z", {}, "on")
        assert take_over(directory, "2026-01-01T00:00:01Z") is None
        for number in range(rounds + 1):
            directory.write_round(number, model, manifest, digest, {})
            if number:
                directory.ledger.commit_round(row(number, number, "finished", digest))
        taken = take_over(directory, "2026-01-01T00:00:02Z")
        assert taken is not None
        found, history = taken
        assert (found.digest, history.round) == (digest, rounds)
        assert (found.arrays["w"] == model["w"]).all()
        (event,) = [e for e in directory.ledger.events() if e.kind == "resumed"]
        assert (event.round, event.code) == (rounds, digest.hex())
        assert event.attempt == (rounds or -1) + SPARE
