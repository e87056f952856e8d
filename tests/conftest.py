"""What several tests share: the wheel, installed where no checkout is in sight."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What lies in a checkout and is no source. Named, because a copy has no git to ask.
_NO_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", ".envs", "*_cache", "__pycache__", "*.egg-info", "build", "dist", "results"
)


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
