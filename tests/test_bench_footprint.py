"""`umbel bench footprint`: what it prints, what it imports, and a device's two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel import cli
from umbel.benchmarks import flower_agent, flower_footprint, footprint, install_size
from umbel.benchmarks.process_memory import MIB, proportional, resident, session_members
from umbel.protocol.errors import StateError

UNITS = {
    "base/rss": "MiB",
    "base/import": "s",
    "torch/rss": "MiB",
    "torch/import": "s",
    "base/disk": "MiB",
    "node/pss": "MiB",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))


def printed(capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """Run the benchmark once and return its lines by case, and what stderr says."""
    assert (
        cli.main(["bench", "footprint", "--runs", "1", "--no-supernode", "--no-agent", "--json"])
        == 0
    )
    said = capfd.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    return {line["case"]: line for line in lines}, said.err


@pytest.mark.slow
def test_every_case_with_its_unit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "FRAMEWORK", "wave")  # quicker than torch, and always there
    monkeypatch.setattr(footprint, "TORCH", (*footprint.BASE, "wave"))
    lines, _ = printed(capfd)
    assert {case: line["unit"] for case, line in lines.items()} == UNITS
    for case, line in lines.items():
        assert (line["bench"], line["runs"]) == ("footprint", 1)
        assert 0 < line["umbel"] == line["worst"]
        assert (line["limit"] is None) is (case in {"node/pss", "base/disk"})
    assert "import flwr.clientapp, wave" in lines["torch/rss"]["peer_name"]
    # The libraries alone are what both of the others have too.
    assert lines["base/rss"]["limit"] < lines["base/rss"]["umbel"]
    assert lines["node/pss"]["peer"] is lines["node/pss"]["ratio"] is None


def test_without_torch_its_cases_are_null_and_say_why(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "FRAMEWORK", "no_such_framework")
    monkeypatch.setattr(footprint, "BASE", ("umbel",))
    lines, said = printed(capfd)
    assert set(lines) == set(UNITS)
    for case in ("torch/rss", "torch/import"):
        assert (lines[case]["umbel"], lines[case]["runs"]) == (None, 0)
        assert f"{case}: torch is not installed" in said


def test_a_devices_session_needs_no_framework() -> None:
    """What is measured as `base` loads neither torch nor flwr nor grpc."""
    program = (
        "import importlib, sys\n"
        f"for name in {footprint.BASE!r}: importlib.import_module(name)\n"
        "print([n for n in ('torch', 'flwr', 'grpc') if n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_fresh_process_holds_what_it_imports() -> None:
    bare, numpy = footprint.fresh(()), footprint.fresh(("numpy",))
    assert 0 <= bare.seconds < numpy.seconds
    assert 4 * MIB < bare.resident < numpy.resident < 200 * MIB


def test_a_module_that_does_not_import_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StateError, match="no_such_module: expected modules that import"):
        footprint.fresh(("no_such_module",))
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_a_session_is_its_leader_and_what_that_started() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True); sys.stdin.read(); child.kill(); child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        assert sorted(session_members(leader.pid)) == sorted([leader.pid, child])
        assert 0 < proportional(leader.pid) <= resident(leader.pid) * 1.1
        leader.communicate()
    assert session_members(leader.pid) == []


@pytest.mark.skipif(not flower_footprint.AVAILABLE, reason="flower-supernode is not installed here")
def test_the_peers_supernode_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_footprint, "_LONGEST", 1.5)  # its size is not what is tested
    started: list[int] = []
    settled = flower_footprint._settled

    def watched(pid: int) -> int:
        started.append(pid)
        return settled(pid)

    monkeypatch.setattr(flower_footprint, "_settled", watched)
    assert flower_footprint.idle_supernode() > 10 * MIB
    assert session_members(started[0]) == []
    assert os.environ.get("FLWR_HOME") is None


def test_a_base_installation_is_flowers_and_little_more() -> None:
    """No extra is counted: torch alone would be a multiple of it."""
    flwr, umbel = install_size.install_mib("flwr"), install_size.install_mib("umbel")
    assert 100 < flwr < umbel < flwr + 20


@pytest.mark.slow
@pytest.mark.skipif(not flower_footprint.AVAILABLE, reason="flower-supernode is not installed here")
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_an_idle_device_keeps_within_its_bounds() -> None:
    """218 MB for all of it, of which Flower's two daemons alone would take 198 to 219; 30 ours."""
    with flower_agent.server() as (up, device):
        found = flower_agent.idle_agent(up, device)
    assert found.total <= 218e6
    assert found.own <= 30e6
    assert found.cpu <= 36  # 1 % of a core


def running(word: str) -> list[list[str]]:
    """Return the command lines that have a word in them."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in found if any(word in argument for argument in line)]


def ended_at(line: str, home: Path, *options: str, programs: int = 0) -> int:
    """Send SIGTERM when the benchmark has said a line and started programs; return its status."""
    command = [sys.executable, "-m", "umbel", "bench", "footprint", "--runs", "1", *options]
    env = os.environ | {"UMBEL_HOME": str(home), "TMPDIR": str(home)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while line not in process.stderr.readline():
            assert process.poll() is None
        while len(running(str(home))) < programs:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        return process.returncode


def test_a_signal_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    assert ended_at("umbel bench footprint: ", tmp_path, "--no-agent") == 130


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_signal_leaves_nothing_of_its_federation() -> None:
    with tempfile.TemporaryDirectory(prefix="um") as short:  # for a socket's name
        said, options = "agent: 1 idle devices", ("--no-supernode",)
        assert ended_at(said, Path(short), *options, programs=4) == 130
        assert running(short) == []
        assert list(Path(short).glob("um*")) == []
