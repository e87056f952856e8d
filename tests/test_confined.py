"""A policy's bounds on the training child, in a real one: what it may read, take and write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients import confined, landlock
from umbel.clients.child import Child
from umbel.clients.confined import around, confine, disk_watch, remark, roots
from umbel.clients.device_files import DeviceFiles
from umbel.clients.policy import Policy
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, SettingsError
from umbel.strategies.app import AppRef
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODE = """
import os, time
from pathlib import Path
import numpy as np
import umbel

class Points(umbel.Task):
    def model(self):
        return umbel.MLP(3, 4, 2)

    def train_data(self, site):
        what = site.config["what"]
        if what == "read":
            assert [str(root) for root in site.data] == [site.config["root"]]
            labels = np.load(site.data[0] / "labels.npy")
            for secret in (site.config["secret"], f"/proc/{os.getppid()}/mem"):
                try:
                    Path(secret).read_bytes()
                except PermissionError:
                    continue
                raise AssertionError(secret)
            (Path(os.environ["FLWR_HOME"]) / "own").write_text("written")
            return np.zeros((len(labels), 3), np.float32), labels
        if what == "memory":
            return bytearray(8 << 30)
        if what == "threads":
            count = len(os.sched_getaffinity(0))
            assert os.environ["OMP_NUM_THREADS"] == str(site.config["threads"]), os.environ
            return np.zeros((count, 3), np.float32), np.zeros(count, int)
        home = Path(os.environ["FLWR_HOME"])
        if what == "large":
            with open(home / "large", "wb") as file:
                file.truncate(64 << 20)  # an empty file of this size takes no disk
        for n in range(8):
            (home / f"{n}").write_bytes(bytes(1 << 19))
        time.sleep(30)
"""


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The task's own place, with the app in it."""
    folder = tmp_path / "device" / "tasks" / "umbel-task-1"
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "points.py").write_text(CODE)
    monkeypatch.setenv("FLWR_HOME", str(folder))
    return folder


@pytest.fixture
def train(home: Path) -> Iterator[Any]:
    """Train once under a policy; returns the weight, which is the number of examples."""
    children: list[Child] = []

    def run(policy: Policy, what: str, **config: Any) -> int:
        child = Child(AppRef(home / "app", "points:Points"), around=around(policy, home))
        children.append(child)
        site = Site(config={"what": what, **config}, data=roots(policy))
        return child.train(child.arrays(), site, Settings()).weight

    yield run
    for child in children:
        child.close()


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_a_child_reads_its_roots_and_neither_keys_nor_other_data(
    train: Any, home: Path, tmp_path: Path
) -> None:
    root, key = tmp_path / "data", tmp_path / "device" / "signing.key"
    root.mkdir()
    np.save(root / "labels.npy", np.array([0, 1] * 4))
    key.write_text("secret")
    policy = Policy(data_roots=(str(root),))
    assert train(policy, "read", root=str(root), secret=str(key)) == 8
    assert (home / "own").read_text() == "written"


def test_a_child_has_no_more_memory_than_it_may(train: Any) -> None:
    with pytest.raises(Refused) as caught:
        train(Policy(memory=4 << 30), "memory")
    assert (caught.value.reason, caught.value.key) == (pb.REASON_LIMITS, "limits.memory")


def test_a_child_has_so_many_processors_and_threads(train: Any) -> None:
    assert train(Policy(threads=1), "threads", threads=1) == 1
    least = min(2, len(os.sched_getaffinity(0)))
    assert train(Policy(threads=2), "threads", threads=2) == least


def test_a_child_that_writes_too_much_is_ended(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "LOOK_S", 0.1)
    with pytest.raises(Refused, match="the task has written 4") as caught:
        train(Policy(disk=2 << 20), "many")
    assert (caught.value.reason, caught.value.key) == (pb.REASON_LIMITS, "limits.disk")
    monkeypatch.setattr(confined, "LOOK_S", 60.0)
    with pytest.raises(Refused, match="the task raised"):  # no file may be larger than all
        train(Policy(disk=2 << 20), "large")


def test_the_disk_is_looked_at_now_and_then(home: Path) -> None:
    seconds = [0.0]
    watch = disk_watch(home, 1 << 20, lambda: seconds[0])
    (home / "file").write_bytes(bytes(2 << 20))
    watch()
    seconds[0] = confined.LOOK_S
    with pytest.raises(Refused, match=r"limits\.disk is 1048576"):
        watch()


def device(folder: Path, policy: Policy) -> DeviceFiles:
    return DeviceFiles(directory=folder, federation="f", id=b"", gateway="g:1", policy=policy)


def test_a_root_above_the_devices_keys_is_refused(tmp_path: Path) -> None:
    files = device(tmp_path / "device", Policy(data_roots=(str(tmp_path),)))
    if landlock.version():
        with pytest.raises(SettingsError, match="where its keys are"):
            confine(files, {})
    confine(device(tmp_path, Policy()), {})  # without roots nothing is done


def test_a_kernel_without_landlock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(data_roots=(str(tmp_path),))
    if landlock.version():
        assert remark(policy) == ""
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert remark(policy).startswith("data roots: not enforced, this kernel has no Landlock")
    assert remark(Policy()) == ""
    confine(device(tmp_path / "device", policy), {})  # and the task is told of its roots only
