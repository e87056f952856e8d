"""User code in a real child process: the same numbers, a named death, a clean pipe."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from umbel.clients.child import Child, ChildDied, InProcess, _numbers
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Malformed, Refused
from umbel.strategies.app import AppRef
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings, TrainResult

CODE = """
import os, resource, subprocess, sys, time
import numpy as np
import umbel

print("imported on stdout")


class Points(umbel.Task):
    def model(self):
        return umbel.MLP(3, 4, 2)

    def train_data(self, site):
        print("user prints", site.partition, flush=True)
        os.write(1, b"raw bytes on descriptor one\\n")
        what = site.config.get("what")
        if what == "fork":
            if os.fork() == 0:
                time.sleep(600)
        if "at work" in site.config:
            open(site.config["at work"], "x").close()
        if what in ("sleep", "fork"):
            time.sleep(600)
        if what == "raise":
            raise ValueError("the secret of patient 7")
        if what == "exit":
            os._exit(3)
        if what == "leave":
            sys.exit(0)
        if what == "none":
            return np.zeros((0, 3), np.float32), np.zeros(0, int)
        if what == "read":
            assert sys.stdin.read() == ""
        if what == "program":
            subprocess.run(["cat"], check=True)
        if what == "limits":
            assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
            assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "1"
            assert os.environ["MKL_NUM_THREADS"] == "1"
        labels = site.rng.integers(2, size=30)
        return site.rng.normal(size=(30, 3)).astype(np.float32) + labels[:, None], labels

    def test_data(self):
        return self.train_data(umbel.Site(1, 2))


class Complex(umbel.Task):
    loss = staticmethod(lambda arrays, batch: (0.0, {}))

    def model(self):
        return {"w": np.zeros(2, complex)}


class Broken(umbel.Task):
    def model(self):
        raise RuntimeError("no model today")
"""


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> AppRef:
    """An app directory with the task above."""
    app = tmp_path_factory.mktemp("app")
    (app / "child_app.py").write_text(CODE)
    return AppRef(app, "child_app:Points")


@pytest.fixture(scope="module")
def child(ref: AppRef) -> Iterator[Child]:
    """One child for the tests that leave it alive."""
    with Child(ref) as made:
        yield made


def _site(what: str = "", **more: str) -> Site:
    return Site(0, 2, {"what": what, **more})


def _same(first: TrainResult, second: TrainResult) -> bool:
    return (
        (first.weight, first.metrics) == (second.weight, second.metrics)
        and list(first.deltas) == list(second.deltas)
        and all(first.deltas[k].tobytes() == second.deltas[k].tobytes() for k in first.deltas)
    )


def test_a_child_gives_the_numbers_of_this_process(child: Child, ref: AppRef) -> None:
    here = InProcess(ref)
    start = child.arrays(3)
    assert {k: a.tobytes() for k, a in start.items()} == {
        k: a.tobytes() for k, a in here.arrays(3).items()
    }
    settings = Settings(epochs=2, round=5, seed=3)
    assert _same(child.train(start, _site(), settings), here.train(start, _site(), settings))
    assert _same(child.evaluate(start, _site()), here.evaluate(start, _site()))
    assert child.test(start) == here.test(start)
    assert child.declared() == here.declared()
    assert child.declared("evaluate") == here.declared("evaluate")


def test_what_user_code_prints_lands_on_stderr(
    ref: AppRef, capfd: pytest.CaptureFixture[str]
) -> None:
    with Child(ref) as own:
        own.evaluate(own.arrays(), _site())
    captured = capfd.readouterr()
    assert captured.out == ""
    for line in ("imported on stdout", "user prints 0", "raw bytes on descriptor one"):
        assert line in captured.err


@pytest.mark.parametrize("what", ["read", "program", "limits"])
def test_user_code_sees_no_pipe_and_its_limits(child: Child, what: str) -> None:
    assert child.evaluate(child.arrays(), _site(what)).weight == 1


def _killed_at_work(pid: int, file: Path) -> None:
    """Kill a child, in a thread, once its training has made a file."""

    def kill() -> None:
        while not file.exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def test_a_killed_child_is_named_at_once_and_started_anew(ref: AppRef, tmp_path: Path) -> None:
    with Child(ref) as own:
        start = own.arrays()
        before = own.train(start, _site(), Settings(round=1))
        pid = own.pid
        assert pid is not None
        _killed_at_work(pid, at_work := tmp_path / "at work")
        with pytest.raises(ChildDied, match=f"child {pid} was killed by SIGKILL") as caught:
            own.train(start, _site("sleep", **{"at work": str(at_work)}), Settings(round=2))
        assert caught.value.reason == pb.REASON_TASK_FAILED
        assert own.pid is None
        assert _same(own.train(start, _site(), Settings(round=1)), before)
        assert own.pid != pid


def test_a_death_is_seen_though_a_forked_process_holds_the_pipe(
    ref: AppRef, tmp_path: Path
) -> None:
    with Child(ref) as own:
        start, pid = own.arrays(), own.pid
        assert pid is not None
        try:
            _killed_at_work(pid, at_work := tmp_path / "at work")
            with pytest.raises(ChildDied):  # and not after the ten minutes of the forked one
                own.train(start, _site("fork", **{"at work": str(at_work)}), Settings())
        finally:
            os.killpg(pid, signal.SIGKILL)  # the forked one; the child led its group


def test_a_child_that_dies_between_calls_is_replaced_silently(ref: AppRef) -> None:
    with Child(ref) as own:
        first = own.arrays()
        assert own.pid is not None
        os.kill(own.pid, signal.SIGKILL)
        os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
        assert own.arrays()["0.weight"].tobytes() == first["0.weight"].tobytes()


def test_an_exit_is_named(ref: AppRef) -> None:
    with Child(ref) as own, pytest.raises(ChildDied, match="exited with status 3"):
        own.train(own.arrays(), _site("exit"), Settings())


def test_a_task_ends_no_run_by_sys_exit(ref: AppRef, capfd: pytest.CaptureFixture[str]) -> None:
    with Child(ref) as own:
        start, pid = own.arrays(), own.pid
        for trainer in (own, InProcess(ref)):
            with pytest.raises(Refused, match="the task raised"):
                trainer.train(start, _site("leave"), Settings())
            assert "SystemExit: 0" in capfd.readouterr().err
        assert own.pid == pid


def test_an_exception_stays_on_this_machines_stderr(
    ref: AppRef, capfd: pytest.CaptureFixture[str]
) -> None:
    with Child(ref) as own:
        start = own.arrays()
        for trainer in (own, InProcess(ref)):
            with pytest.raises(Refused) as caught:
                trainer.train(start, _site("raise"), Settings())
            assert caught.value.reason == pb.REASON_TASK_FAILED
            assert "patient" not in str(caught.value)
            assert caught.value.__cause__ is None
            assert "ValueError: the secret of patient 7" in capfd.readouterr().err
        assert own.evaluate(start, _site()).weight == 1  # the child lives on


def test_a_refusal_keeps_its_reason_and_detail(child: Child) -> None:
    with pytest.raises(Refused, match=r"^task failed: train_data\(site\) returned no examples$"):
        child.train(child.arrays(), _site("none"), Settings())


def test_a_task_that_does_not_load_is_a_refusal(
    ref: AppRef, capfd: pytest.CaptureFixture[str]
) -> None:
    with Child(AppRef(ref.directory, "child_app:Broken")) as own:
        for _ in range(2):
            with pytest.raises(Refused, match="task failed: the task raised"):
                own.arrays()
    absent = Child(AppRef(ref.directory, "child_app:Absent"))
    with absent, pytest.raises(Refused, match="an attribute 'Absent'"):
        absent.arrays()
    assert "no model today" in capfd.readouterr().err


def test_an_answer_that_no_message_can_hold_is_a_refusal(ref: AppRef) -> None:
    with Child(AppRef(ref.directory, "child_app:Complex")) as own:
        for _ in range(2):  # nothing was written of the first: the pipe is still in step
            with pytest.raises(Refused, match=r"task failed: .*complex128") as caught:
                own.arrays()
            assert not isinstance(caught.value, ChildDied)


def test_messages_are_bounded_both_ways(ref: AppRef, capfd: pytest.CaptureFixture[str]) -> None:
    with Child(ref, max_bytes=128) as small:  # the model has 4*3 + 4 + 2*4 + 2 floats in 4 slots
        with pytest.raises(Malformed, match=r"training child: message: expected at most .* \+ 128"):
            small.arrays()
        assert small.pid is None
        with pytest.raises(ChildDied, match="exited with status 1"):
            small.evaluate({"w": np.zeros(1000, np.float32)}, _site())
    assert "parent: message: expected at most" in capfd.readouterr().err


def test_a_child_dies_with_its_parent(ref: AppRef) -> None:
    program = (
        "import sys, threading; from pathlib import Path\n"
        "from umbel.strategies.app import AppRef; from umbel.clients.child import Child\n"
        "from umbel.strategies.task import Site; from umbel.strategies.trainer import Settings\n"
        f"child = Child(AppRef(Path({str(ref.directory)!r}), 'child_app:Points'))\n"
        "start = child.arrays(); print(child.pid, flush=True)\n"
        "child.train(start, Site(0, 2, {'what': 'sleep'}), Settings())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd="/"
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)  # let it get into the middle of training
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 60
        while _runs(pid):
            assert time.monotonic() < deadline, f"child {pid} outlives its parent"
            time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_closing_ends_the_child_and_leaves_no_zombie(ref: AppRef) -> None:
    own = Child(ref)
    own.close()  # never started
    own.arrays()
    pid = own.pid
    own.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_calls_from_two_threads_take_turns(child: Child) -> None:
    start, results = child.arrays(), dict[int, TrainResult]()

    def work(round_: int) -> None:
        results[round_] = child.train(start, _site(), Settings(round=round_))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for round_, result in results.items():
        assert _same(result, child.train(start, _site(), Settings(round=round_)))
    assert len(results) == 4


@pytest.mark.parametrize("metrics", [None, [1], "x", {"loss": None}, {"loss": "24"}, {"loss": 2.5}])
def test_metrics_that_are_none_are_the_childs_fault(metrics: object) -> None:
    """User code that writes to the pipe itself may say anything."""
    with pytest.raises(Malformed, match="training child: metrics: expected numbers by name"):
        _numbers({"metrics": metrics}, int)
