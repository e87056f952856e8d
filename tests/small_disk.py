"""A small file system that can be filled, and limits that the kernel enforces in a child."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _mount(*arguments: str) -> str:
    """Call mount(8); return what it says where it fails."""
    program = shutil.which("mount")
    if program is None:
        return "there is no mount(8)"
    command = [program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or "mount failed" if done.returncode else ""


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """Mount a tmpfs there; where this user may not, the test is skipped."""
    place.mkdir(parents=True, exist_ok=True)
    refused = _mount("-t", "tmpfs", "-o", ",".join(options), "umbel-test", str(place))
    if refused:
        pytest.skip(f"a tmpfs cannot be mounted here: {refused}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def bound(source: str, over: Path, below: Path) -> Iterator[None]:
    """Lay a file over another; where this user may not, the test is skipped.

    Every mount `below` a folder goes at the end: one moves when its folder is renamed.
    """
    refused = _mount("--bind", source, str(over))
    if refused:
        pytest.skip(f"a file cannot be laid over another here: {refused}")
    try:
        yield
    finally:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(f"{below}/"):
                subprocess.run(["umount", "-l", place], check=True)


def remount(place: Path, options: str) -> None:
    """Change a mount's options."""
    refused = _mount("-o", f"remount,{options}", str(place))
    assert not refused, refused


def fill(ballast: Path, leave: int = 0) -> None:
    """Write a file until so many bytes are free, or fewer than a page."""
    with open(ballast, "ab", buffering=0) as file:
        while (free := shutil.disk_usage(ballast.parent).free - leave) > 0:
            try:
                file.write(bytes(min(free, 1 << 20)))
            except OSError:
                return


def limited(size: int, work: Callable[[], object]) -> str:
    """Do `work` in a child that can write no file beyond `size` bytes; return what it says."""
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        sending.send(work())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    sending.close()
    said = str(receiving.recv())
    process.join()
    return said
