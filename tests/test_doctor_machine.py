"""What a doctor finds on any machine, each of its findings provoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.host import doctor_machine as machine
from umbel.host.platforms import Platform
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from umbel.host.doctor import Finding

GIB = 1 << 30


def mounted(folder: Path, kind: str) -> Path:
    """Return a root whose mount table says that a folder is on another file system."""
    lines = [
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
        f"40 22 0:41 / {folder} rw shared:9 master:1 - {kind} there rw",
        f"41 40 0:42 / {folder}/deeper rw - ext4 /dev/sdb1 rw",
    ]
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "mountinfo").write_text("\n".join(lines) + "\n")
    return folder


def with_gpu(folder: Path) -> Path:
    """Return a root that has a GPU's device."""
    (folder / "dev").mkdir()
    (folder / "dev" / "nvidia0").touch()
    return folder


CASES: dict[str, Callable[[Path], Iterable[Finding]]] = {
    "platform.ok": lambda _: machine.platform_of(),
    "platform.unsupported": lambda _: machine.platform_of(Platform("Linux", "armv7l", 32, (3, 11))),
    "versions.ok": lambda _: machine.versions("0.1.0"),
    "versions.flower": lambda _: machine.versions("0.1.0", "1.43.0"),
    "wheels.broken": lambda _: machine.wheels(("json", "no_such_wheel")),
    "disk.ok": lambda folder: machine.disk(folder, free=GIB),
    "disk.full": lambda folder: machine.disk(folder, free=1 << 20),
    "disk.low": lambda folder: machine.disk(folder, free=100 << 20),
    "disk.network": lambda folder: machine.disk(folder, mounted(folder, "nfs4")),
    "disk.memory": lambda folder: machine.disk(folder, mounted(folder, "tmpfs")),
    "memory.ok": lambda _: machine.memory(GIB, 8 * GIB),
    "memory.low": lambda _: machine.memory(1, 100 << 20),
    "memory.model": lambda _: machine.memory(GIB, 3 * GIB),
    "gpu.unassigned": lambda folder: machine.gpu(0, with_gpu(folder)),
    "gpu.unusable": lambda folder: machine.gpu(1, with_gpu(folder), ("2.6.0", "", "0")),
    "torch.missing": lambda folder: machine.gpu(2, folder, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, tmp_path: Path) -> None:
    shown(name, CASES[name](tmp_path))


def test_a_package_that_kills_its_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_wheel.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = shown("wheels.broken", machine.wheels(("killed_wheel",)))
    assert finding.line == "importing killed_wheel ended with signal 11"


def test_the_wheels_of_this_environment_import() -> None:
    assert list(machine.wheels()) == []


def test_what_is_deeper_in_the_mount_table_counts(tmp_path: Path) -> None:
    root = mounted(tmp_path, "nfs4")
    (tmp_path / "deeper").mkdir()
    assert machine.file_system(tmp_path / "deeper", root) == "ext4"
    assert machine.file_system(tmp_path, root) == "nfs4"
    assert machine.file_system(tmp_path.parent, root) == "ext4"


def test_a_device_without_a_gpu_that_asks_for_none_has_no_finding(tmp_path: Path) -> None:
    assert list(machine.gpu(0, tmp_path)) == []
    assert list(machine.gpu(1, with_gpu(tmp_path), ("2.6.0", "12.4", "1"))) == []


def test_the_bytes_that_would_fit_are_in_the_fix() -> None:
    finding = shown("memory.model", machine.memory(GIB, 3 * GIB))
    assert finding.fix == f"policy.toml, [limits]: model_bytes = {3 * GIB // 4}"
