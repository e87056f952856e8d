"""The wheel, outside the checkout: an editable install hides what a wheel lacks."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import umbel

if TYPE_CHECKING:
    from .conftest import Installed

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("protocol", "host", "strategies", "clients", "server", "simulation", "benchmarks")
NOT_SHIPPED = ("umbel/tests/", "umbel/examples/", "umbel/docs/", "umbel/benchmarks/results/")


def test_the_wheel_holds_every_module_and_data_file(installed: Installed) -> None:
    held = set(zipfile.ZipFile(installed.wheel).namelist())
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]
    files += [*ROOT.glob("*.py"), *(ROOT / "simulation" / "templates").iterdir()]
    files += [ROOT / "simulation" / "pages" / name for name in ("page.css", "page.js")]
    files += [ROOT / "py.typed", ROOT / "protocol" / "messages.proto"]
    files += [ROOT / "protocol" / "messages_pb2.pyi"]
    assert {f"umbel/{file.relative_to(ROOT).as_posix()}" for file in files} <= held
    assert not [name for name in held if name.startswith(NOT_SHIPPED)]


def test_the_package_is_the_wheels(installed: Installed, tmp_path: Path) -> None:
    where = installed.run("python", "-c", "import umbel; print(umbel.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.folder)


def test_the_version_is_the_packages(installed: Installed, tmp_path: Path) -> None:
    for command in (("umbel",), ("python", "-m", "umbel")):
        done = installed.run(*command, "--version", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"umbel {umbel.__version__}\n")


def test_a_new_app_can_be_simulated_at_once(installed: Installed, tmp_path: Path) -> None:
    new = installed.run("umbel", "new", "x", cwd=tmp_path)
    assert new.returncode == 0, new.stderr
    simulated = installed.run("umbel", "simulate", "x", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    assert "secure aggregation: on (development CA)" in simulated.stdout + simulated.stderr


def test_the_benchmarks_are_listed(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("umbel", "bench", "--list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"secure", "footprint"} <= {line.split()[0] for line in done.stdout.splitlines()}
