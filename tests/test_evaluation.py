"""The server's own test next to the rounds: real processes, which are held, broken and killed."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from umbel.server.evaluation import Evaluation, chosen_tester
from umbel.strategies.testing import ROWS
from umbel.tests.tested_app import TORCH, Rounds, model_of, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.strategies.app import AppRef

_NUMBERS = itertools.count()


@pytest.fixture
def name() -> Iterator[str]:
    """A module's name that no other test has; what it imports is forgotten."""
    found, path = f"tested_app_{next(_NUMBERS)}", list(sys.path)
    yield found
    sys.modules.pop(found, None)
    sys.path[:] = path


@pytest.fixture
def app(tmp_path: Path, name: str) -> AppRef:
    """Points in three parts: 512, 512 and 476 rows."""
    return written(tmp_path, name)


def by_hand(arrays: dict[str, Any]) -> dict[str, float]:
    """Return accuracy and mean cross entropy over the app's 1,500 points, in float64."""
    x = np.random.default_rng(7).normal(size=(1500, 4)).astype(np.float32)
    y = (x[:, 0] > 0.2).astype(np.int64)
    first, bias, second, last = (a.astype(np.float64) for a in arrays.values())
    out = np.maximum(x @ first.reshape(3, 4).T + bias, 0) @ second.reshape(2, 3).T + last
    exp = np.exp(out - out.max(axis=1, keepdims=True))
    chances = exp[np.arange(1500), y] / exp.sum(axis=1)
    right = float((out.argmax(axis=1) == y).mean())
    return {"test.accuracy": right, "test.loss": float(-np.log(chances).mean())}


@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_finds_what_one_finds_bit_for_bit(
    tmp_path: Path, app: AppRef, processes: int
) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app, processes) as run:
        run.finish(1)
        run.called(processes)  # so many at once
        (tmp_path / "hold").unlink()
        run.until(lambda: run.done)
        calls = run.calls()
        ((number, found),) = run.done
        assert (number, found) == (1, run.expected(1))
        assert found == pytest.approx(by_hand(model_of(1, run.like)), rel=1e-5)
        (record,) = run.directory.ledger.rounds()
        assert record.metrics == found
        assert run.directory.ledger.verify() == 4
        assert run.warnings == []
    assert sorted(rows for _, rows in calls) == [1500 - 2 * ROWS, ROWS, ROWS]
    assert len({pid for pid, _ in calls}) == processes
    assert not any(psutil.pid_exists(pid) for pid, _ in calls)


def test_torch_models_are_tested_the_same(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="a model in torch")
    app = written(tmp_path, name, model=TORCH)
    with Rounds(app) as run:
        run.finish(1)
        run.until(lambda: run.done)
        assert run.done == [(1, run.expected(1))]
        assert run.done[0][1] == pytest.approx(by_hand(model_of(1, run.like)), rel=1e-5)


def test_the_newest_waits_and_what_is_tested_stays_on_the_disk(tmp_path: Path, app: AppRef) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app) as run:
        run.finish(1)
        run.called(1)  # round 1 is being tested
        for n in range(2, 8):
            run.finish(n)
            run.until(lambda: True)
        assert run.evaluation.held == {1, 7}
        run.disk.flush()
        assert run.directory.kept() == (1, 5, 6, 7)
        (tmp_path / "hold").unlink()
        run.idle()
        assert run.done == [(n, run.expected(n)) for n in (1, 7)]
        assert run.events() == [("tested", 1), ("tested", 7)]
        tested = {r.round for r in run.directory.ledger.rounds() if r.metrics}
        assert tested == {1, 7}


def test_a_killed_evaluator_is_started_anew_and_named_once(tmp_path: Path, app: AppRef) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app, 2) as run:
        run.finish(1)
        run.called(2)
        victim, other = (pid for pid, _ in run.calls())
        os.kill(victim, signal.SIGKILL)
        run.called(3)  # its share is measured again
        (tmp_path / "hold").unlink()
        run.until(lambda: run.done)
        assert run.done == [(1, run.expected(1))]
        assert len({pid for pid, _ in run.calls()}) == 3
        assert other in {pid for pid, _ in run.calls()}
        (line,) = run.warnings
        assert f"(process {victim}) was killed by SIGKILL" in line
        run.finish(2)
        run.until(lambda: len(run.done) == 2)
        assert run.done[1] == (2, run.expected(2))


def test_a_model_over_which_evaluators_die_again_is_not_tested(tmp_path: Path, app: AppRef) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app) as run:
        run.finish(1)
        for n in (1, 2):
            run.called(n)
            os.kill(run.calls()[-1][0], signal.SIGKILL)
        run.until(lambda: run.done)
        assert run.done == [(1, {})]
        (event,) = (e for e in run.directory.ledger.events() if e.kind == "not tested")
        assert (event.round, event.code) == (1, "died")


def test_a_test_that_raises_costs_its_model_and_nothing_else(
    tmp_path: Path, app: AppRef, capfd: Any
) -> None:
    (tmp_path / "boom").touch()
    with Rounds(app) as run:
        run.finish(1)
        run.until(lambda: run.done)
        (tmp_path / "boom").unlink()
        run.finish(2)
        run.until(lambda: len(run.done) == 2)
        assert run.done == [(1, {}), (2, run.expected(2))]
        assert run.events() == [("not tested", 1), ("tested", 2)]
        (line,) = run.warnings
        pid = run.calls()[0][0]
        assert f"(process {pid}) raised ValueError: no digit 7 in the table" in line
        assert "no digit" not in str(run.directory.ledger.events())
    said = capfd.readouterr().err
    assert "on its way" in said  # what user code prints, and its trace
    assert "in evaluate" in said


def test_a_task_without_test_data_is_asked_once(tmp_path: Path, name: str) -> None:
    app = written(tmp_path, name, rows=0)
    with Rounds(app) as run:
        for n in (1, 2, 3):
            run.finish(n)
            run.idle()
        assert run.events() == [("not tested", 1)]
        assert run.warnings == []


def test_an_evaluator_leaves_with_its_server_in_the_middle_of_a_test(
    tmp_path: Path, app: AppRef
) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app) as run:
        run.finish(1)
        run.called(1)
        process = psutil.Process(run.calls()[0][0])
    assert not process.is_running()
    assert (tmp_path / "hold").exists()


def test_a_run_that_goes_on_tests_its_newest_model_if_it_was_not(
    tmp_path: Path, app: AppRef
) -> None:
    (tmp_path / "hold").touch()
    with Rounds(app) as run:
        run.finish(1)
        run.finish(2)
        run.called(1)
    (tmp_path / "hold").unlink()
    for expected in ([(2, None)], []):
        with Rounds(app) as again:
            newest = again.directory.read(2)
            again.evaluation.resume(2, newest.digest, again.directory.ledger.rounds())
            assert again.evaluation.held == {n for n, _ in expected}
            again.idle()
            assert [n for n, _ in again.done] == [n for n, _ in expected]
            assert again.directory.ledger.rounds()[1].metrics == again.expected(2)


def test_a_damaged_model_is_not_tested(tmp_path: Path, app: AppRef) -> None:
    with Rounds(app) as run:
        run.finish(1)
        run.disk.flush()
        file = run.directory.round_path(1) / "00000-of-00001.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        run.until(lambda: run.done)
        assert run.done == [(1, {})]
        assert "raised" in run.warnings[0]
        assert file.name in run.warnings[0]


# ---- functions -----------------------------------------------------------------------------------


def test_a_function_is_called_in_a_thread_with_the_arrays_of_the_round(
    tmp_path: Path, app: AppRef
) -> None:
    with Rounds(app) as run:
        run.evaluation.close()

        def call(arrays: Any) -> dict[str, float]:
            first = float(next(iter(arrays.values())).ravel()[0])
            if first == wanted[2]:
                raise RuntimeError("no")
            return {"first": first}

        wanted = [float(next(iter(model_of(n, run.like).values())).ravel()[0]) for n in range(4)]
        run.evaluation = Evaluation(
            chosen_tester(call, run.directory, run.warnings.append), run.disk
        )
        for n in (1, 2, 3):
            run.finish(n)
            run.idle()
        assert run.done == [(1, {"test.first": wanted[1]}), (2, {}), (3, {"test.first": wanted[3]})]
        (line,) = run.warnings
        assert line == "the server's test of round 2 raised RuntimeError: no; the run goes on"


def test_a_run_without_a_test_holds_nothing(tmp_path: Path, app: AppRef) -> None:
    with Rounds(app) as run:
        run.evaluation.close()
        run.evaluation = Evaluation(
            chosen_tester(None, run.directory, run.warnings.append), run.disk
        )
        run.finish(1)
        assert run.evaluation.held == frozenset()
        assert run.evaluation.step(0.0) is None
