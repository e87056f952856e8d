"""A disk that fills under a real run: `umbel simulate`, and a ServerApp over a core and devices."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.digest import model_digest
from umbel.protocol.errors import StateError
from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory
from umbel.tests.apps import naughty
from umbel.tests.federations import addressed, core, made
from umbel.tests.process_host import Host
from umbel.tests.small_disk import fill, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE = (
    r"(runs/RUN|runs/RUN/rounds/\d{6}|runs/RUN/ledger\.sqlite): expected \d+ bytes free.*, "
    r"got \d+ bytes.*; free the disk.*, then `umbel runs resume RUN`"
)
"""File, needed bytes, free bytes, and the next move."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 16 MiB."""
    with mounted(tmp_path / "disk", "size=16m") as place:
        yield place


def rounds_of(home: Path, run: str) -> int:
    """Return the last round that the run has finished."""
    try:
        with RunDirectory.open(home, run) as reader:
            return max(reader.committed())
    except StateError:
        return -1  # being made at this moment


def at_round(home: Path, run: str, number: int) -> None:
    """Wait until a round has finished."""
    end = time.monotonic() + 60
    while rounds_of(home, run) < number:
        assert time.monotonic() < end, "no round finishes"
        time.sleep(0.02)


def goes_on(home: Path, run: str) -> None:
    """Check that the run is that of its last finished round, and may be written again."""
    finished = rounds_of(home, run)
    with RunDirectory.resume(home, run) as found:
        assert verify(found).wrong == ()
        assert found.resumed is not None
        newest = found.resumed.newest
        assert newest is not None
        assert (newest.number, found.resumed.lost) == (finished, ())
        assert found.kept()[-1] == finished  # what was being written is gone
        digest = model_digest(newest.manifest.pack(newest.arrays))
        assert found.ledger.models()[finished] == digest.hex() == newest.digest.hex()
        found.write_round(finished + 1, newest.arrays, newest.manifest, digest, {})


@pytest.mark.parametrize("leave", [pytest.param(0, marks=pytest.mark.slow), 1 << 20])
def test_a_simulated_run_ends_with_one_line(disk: Path, tmp_path: Path, leave: int) -> None:
    app = naughty(tmp_path / "app")
    command = [sys.executable, "-m", "umbel", "simulate", str(app), "--rounds", "1000"]
    process = subprocess.Popen(
        [*command, "--clients", "3", "--run", "filled"],
        env=os.environ | {"UMBEL_HOME": str(disk)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    at_round(disk, "filled", 3)
    fill(disk / "ballast", leave)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    own = [line for line in err.splitlines() if line != "user prints"]
    assert len(own) == 1
    assert re.search(f"^umbel: .*{LINE.replace('RUN', 'filled')}$", own[0])
    (disk / "ballast").unlink()
    goes_on(disk, "filled")


def test_a_simulated_run_whose_ledger_may_grow_no_further(tmp_path: Path) -> None:
    """Where no file system can be mounted: the kernel refuses the ledger's next page."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    app = naughty(tmp_path / "app")
    command = [sys.executable, "-m", "umbel", "simulate", str(app), "--rounds", "1000"]
    done = subprocess.run(
        [*command, "--clients", "3", "--run", "limited"], preexec_fn=limit,
        env=os.environ | {"UMBEL_HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (own,) = [line for line in done.stderr.splitlines() if line != "user prints"]
    assert re.search(f"^umbel: .*{LINE.replace('RUN', 'limited')}$", own)
    assert "ledger.sqlite" in own
    assert rounds_of(tmp_path, "limited") > 3
    goes_on(tmp_path, "limited")


def test_a_server_app_ends_with_one_line(disk: Path, tmp_path: Path) -> None:
    """And a core service whose log is on a full disk from the start goes on."""
    federation, host = made(tmp_path / "federation"), Host(tmp_path)
    with open("/dev/full", "w") as full, core(federation, full) as port:
        addressed(federation, f"127.0.0.1:{port}")
        settings = {"rounds": 10_000, "final_evaluation": False, "deadline": 30.0}
        server = host.server(federation, disk, "filled", count=3, settings=settings)
        tickets = server.said("tickets")
        for i in range(3):
            ticket = bytes.fromhex(tickets[i])
            host.device(federation.device(f"edge-{i}"), "filled", ticket, i)
        assert server.said("round-3") == "finished"
        fill(disk / "ballast", 1 << 20)
        line = server.said("error")
        server.gone()
        host.close()
    assert re.search(LINE.replace("RUN", "filled"), line)
    (disk / "ballast").unlink()
    goes_on(disk, "filled")
