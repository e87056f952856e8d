"""What a process gives up by Landlock, seen by the process itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from umbel.clients import landlock

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys
from umbel.clients import landlock
place = sys.argv[1]
kept = open(f"{place}/secret/file")
landlock.restrict(["/usr", f"{place}/read", f"{place}/one", "/nonexistent"], [f"{place}/write"])

def tried(what, path, *more):
    try:
        what(path, *more)
    except OSError as error:
        return error.strerror
    return "done"

print(tried(open, f"{place}/read/file"))
print(tried(open, f"{place}/one"))
print(tried(open, f"{place}/write/file", "w"))
print(tried(os.mkdir, f"{place}/write/folder"))
for what, path, *more in (
    (open, f"{place}/secret/file"), (open, f"{place}/read/../secret/file"), (open, "/etc/passwd"),
    (os.listdir, f"{place}/secret"), (open, f"{place}/read/new", "w"), (open, f"{place}/one", "w"),
    (os.mkdir, f"{place}/secret/folder"), (os.unlink, f"{place}/read/file"),
    (os.truncate, f"{place}/one", 0), (os.symlink, f"{place}/secret/file", f"{place}/read/link"),
    (open, f"{place}/link"),
):
    print(what.__name__, tried(what, path, *more))
print(kept.read(), tried(os.rename, f"{place}/write/file", f"{place}/secret/file"))
print(os.system(f"cat {place}/secret/file"))
"""
pytestmark = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


def test_a_process_and_what_it_starts_open_only_what_they_may(tmp_path: Path) -> None:
    for name in ("secret", "read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "one").write_text("one")
    (tmp_path / "link").symlink_to(tmp_path / "secret" / "file")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:4] == ["done"] * 4
    refused = lines[4:-2]
    assert len(refused) == 11
    assert {line.partition(" ")[2] for line in refused} == {"Permission denied"}
    kept, moved = lines[-2].split(" ", 1)
    assert kept == "secret"  # what was open stays open
    assert moved in {"Permission denied", "Invalid cross-device link"}
    assert int(lines[-1]) != 0
    assert "Permission denied" in done.stderr
