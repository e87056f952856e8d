"""Bounds hold from a program's first instruction, for it and for what it starts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from umbel.clients import landlock
from umbel.clients.bounds import Bounds, of_json, pythons

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, resource, sys
print(resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_FSIZE))
print(sorted(os.sched_getaffinity(0)))
for path, mode in ((sys.argv[1] + "/in", "r"), (sys.argv[1] + "/out", "r"), (sys.argv[2], "w")):
    try:
        open(path, mode)
        print("done")
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


def ran(bounds: Bounds, *arguments: str) -> list[str]:
    command = bounds.around([sys.executable, "-P", "-c", PROGRAM, *arguments])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_a_bound_the_command_is_the_command() -> None:
    assert Bounds().around(["true", "x"]) == ["true", "x"]


def test_every_bound_is_on_the_program(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("")
    (tmp_path / "out").write_text("")
    most = 1 << 30
    home = tmp_path / "home"
    home.mkdir()
    bounds = Bounds(
        memory=most, threads=1, file=1 << 20, reads=(str(tmp_path / "in"),), writes=(str(home),)
    )
    limits, processors, inside, outside, written = ran(bounds, str(tmp_path), str(home / "file"))
    assert limits == f"{(most, most)} {(1 << 20, 1 << 20)}"
    assert processors == str(sorted(os.sched_getaffinity(0))[-1:])
    assert (inside, written) == ("done", "done")
    if landlock.version():
        assert outside == "Permission denied"


def test_a_bound_never_raises_one_that_is_there(tmp_path: Path) -> None:
    def lowered() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = Bounds(file=1 << 30).around([sys.executable, "-P", "-c", PROGRAM, "/", "/x/y"])
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=lowered)
    assert "(4096, 4096)" in done.stdout.splitlines()[0]


def test_more_processors_than_there_are_is_all_of_them() -> None:
    assert ran(Bounds(threads=4096), "/", "/x/y")[1] == str(sorted(os.sched_getaffinity(0)))


def test_what_cannot_be_bounded_is_not_run(
    tmp_path: Path,
) -> None:
    command = Bounds(threads=1).around([str(tmp_path / "absent")])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 71
    assert done.stderr.startswith("bounds of the policy: ")
    assert done.stderr.endswith("nothing was run\n")


@pytest.mark.parametrize(
    "bounds", [Bounds(memory=1), Bounds(threads=2, reads=(), writes=("/a", "/b")), Bounds(file=3)]
)
def test_words_mean_the_same_on_the_other_side(bounds: Bounds) -> None:
    assert of_json(bounds.around(["x"])[4]) == bounds


def test_bounds_cost_no_framework() -> None:
    program = (
        "import sys, umbel.clients.bounds; heavy = {'numpy', 'flwr', 'google', 'cryptography'}"
        " & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_python_finds_its_modules_in_what_may_be_read() -> None:
    assert sys.prefix in pythons()
    assert all(os.path.isabs(path) for path in pythons())
