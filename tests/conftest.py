"""What several tests share: the wheel, installed where no checkout is in sight; where files lie."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hypothesis
import pytest

from umbel.clients import child
from umbel.clients.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# What lies in a checkout and is no source. Named, because a copy has no git to ask.
_NO_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", ".envs", "*_cache", "__pycache__", "*.egg-info", "build", "dist", "results"
)


MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # noqa: S108 - each test has a folder of its own there
"""Where temporary files lie if there is so much room: on a disk a fifth of the tests' time is
waiting until it has written what it was told to. TMPDIR chooses another place."""


def _in_memory() -> None:
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def _compiled_once() -> None:
    """Let a thousand processes find what they import compiled, whatever the shell says of that."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process tell again what another test has provoked: it tells each cause once."""
    monkeypatch.setattr(child, "_TRACES", Traces())


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder for tests of walls, which leave what is in memory to all processes."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def pytest_collection_finish() -> None:
    """Take what the modules hold out of every later collection of garbage: seconds each time."""
    gc.freeze()


_in_memory()
_compiled_once()
# The same examples on every machine, and no clock that judges a slow one: what hypothesis does by
# itself where CI is set, here for everybody.
hypothesis.settings.register_profile(
    "umbel",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("umbel")


class Installed(NamedTuple):
    """A fresh environment with the wheel in it; dependencies are those of the tests' own."""

    wheel: Path
    folder: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with neither the checkout nor the user's state."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "UMBEL"))}
        env["UMBEL_HOME"] = str(cwd / ".umbel")
        program = self.folder / "bin" / command[0]
        return subprocess.run(
            [program, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel from a copy of the checkout and install it in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=_NO_SOURCE)
    _do("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "source")
    (wheel,) = folder.glob("*.whl")
    home = folder / "venv"
    _do("-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    _do("-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    # A folder named in a .pth is searched, and its own .pth files (the editable checkout) are not.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, home)


def _do(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr


# A shell that puts a job into the background lets it ignore SIGINT, and every process started from
# it inherits that: the tests of Ctrl-C need the signal as a terminal gives it.
signal.signal(signal.SIGINT, signal.default_int_handler)
