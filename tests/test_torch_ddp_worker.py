"""The processes of a training group: they start together, and none outlives its group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients.child import ChildDied
from umbel.clients.torch_ddp_worker import Arguments
from umbel.clients.trainers import TorchGroup
from umbel.host import process_tree
from umbel.protocol import messages_pb2 as pb
from umbel.strategies.app import AppRef
from umbel.strategies.trainer import Settings
from umbel.tests.ddp_app import NAME, site, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

psutil = pytest.importorskip("psutil")  # it has no types

SOON_S = 60.0  # what it shortens takes ten minutes
WAIT_S = 60.0  # a group starts in this time on a busy machine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The app's directory; temporary files go beside it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return write(tmp_path)


def ranks(leader: int | None) -> list[Any]:
    """Return the processes of a group, rank 0 first."""
    found = psutil.Process(leader)
    return [found, *(p for p in found.children() if p.cmdline()[-1:] == ["cpu"])]


def gone(processes: list[Any]) -> None:
    """Wait until none of them runs."""
    deadline = time.monotonic() + SOON_S
    while any(process_tree.alive(process) for process in processes):  # a zombie is gone
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asleep(folder: Path, count: int) -> None:
    """Wait until so many ranks are in the middle of a call."""
    deadline = time.monotonic() + WAIT_S
    while len(list(folder.glob("asleep-*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def killing(folder: Path, group: TorchGroup, victim: int, sleepers: int) -> Iterator[list[Any]]:
    """Kill a rank once so many are asleep; what the block calls must end soon after."""
    killed: list[Any] = []
    when: list[float] = []

    def kill() -> None:
        asleep(folder, sleepers)
        killed.extend(ranks(group.pid))
        when.append(time.monotonic())
        killed[victim].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    yield killed
    assert time.monotonic() - when[0] < SOON_S
    thread.join()


def test_a_killed_rank_ends_the_group_and_the_next_gives_the_same_numbers(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with TorchGroup(AppRef(folder, f"{NAME}:Points"), 3) as group:
        start = group.arrays(1)
        before = group.evaluate(start, site())
        pid = group.pid
        # Ranks 0 and 2 wait for rank 1 in a collective.
        with (
            killing(folder, group, 1, 1) as killed,
            pytest.raises(ChildDied, match="lost rank 1 of 3, which was killed by SIGKILL") as died,
        ):
            group.train(start, site("sleep", 1), Settings())
        assert died.value.reason == pb.REASON_TASK_FAILED
        assert str(pid) in str(died.value)
        assert len(killed) == 3
        gone(killed)
        assert "Traceback" not in capfd.readouterr().err  # one line, not every rank's complaint
        assert group.evaluate(start, site()).metrics == before.metrics
        assert group.pid != pid
        # What fails where others wait: the trace stays here, and the group ends.
        with pytest.raises(ChildDied, match="ended its group: rank 2 of 3: the task raised") as bad:
            group.train(start, site("fit", 2), Settings())
        assert "patient" not in str(bad.value)
        assert "ValueError: the secret of patient 7" in capfd.readouterr().err
        assert group.pid is None
    assert not list((folder / "tmp").glob("umbel-*"))


def test_ranks_leave_when_rank_0_is_killed_though_a_fork_holds_the_pipe(folder: Path) -> None:
    with TorchGroup(AppRef(folder, f"{NAME}:Normed")) as group:
        start = group.arrays()
        # 33 rows in batches of 10: three in the last, and BatchNorm takes no single row.
        result = group.train(start, site(rows=33), Settings(batch_size=10))
        assert all(np.isfinite(delta).all() for delta in result.deltas.values())
        with (
            killing(folder, group, 0, 2) as killed,
            pytest.raises(ChildDied, match="was killed by SIGKILL"),
        ):
            group.train(start, site("fork"), Settings())
        assert len(killed) == 2
        gone(killed)
        os.killpg(killed[0].pid, signal.SIGKILL)  # the forked ones: rank 0 led their group
    assert not list((folder / "tmp").glob("umbel-*"))


def test_a_group_ends_with_its_parent_and_a_rank_that_dies_idle_ends_its_group(
    folder: Path,
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from umbel.strategies.app import AppRef; from umbel.clients.trainers import TorchGroup\n"
        "from umbel.strategies.task import Site; from umbel.strategies.trainer import Settings\n"
        f"app = AppRef(Path({str(folder)!r}), '{NAME}:Points')\n"
        "first, second = TorchGroup(app), TorchGroup(app)\n"
        "start = first.arrays(); second.evaluate(start, Site(0, 1))\n"
        "print(first.pid, second.pid, 'torch' in sys.modules, flush=True)\n"
        "first.train(start, Site(0, 1, {'what': 'sleep'}), Settings())\n"
    )
    log = folder / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=errors
        ) as parent,
    ):
        assert parent.stdout is not None
        first, second, torch = parent.stdout.readline().split()
        assert torch == b"False"
        busy, idle = ranks(int(first)), ranks(int(second))
        idle[1].kill()
        gone(idle)
        assert "training group, idle: lost rank 1 of 2, which was killed by" in log.read_text()
        asleep(folder, 2)
        parent.kill()
        gone(busy)
    assert not list((folder / "tmp").glob("umbel-*"))


def test_arguments_survive_the_way_to_another_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    first = Arguments.parse(["/the app", "a.b:C", "4096", "3", "2"])
    assert (first.rank, first.meeting.stat().st_mode & 0o777) == (0, 0o700)
    if not first.gpus:
        assert first.ranks == 3
    other = Arguments.parse(first.words(2))
    assert other.rank == 2
    assert (other.directory, other.component, other.max_bytes) == ("/the app", "a.b:C", 4096)
    assert (other.ranks, other.meeting, other.gpus) == (first.ranks, first.meeting, first.gpus)
    assert list(first.meeting.iterdir()) == []
