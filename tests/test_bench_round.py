"""`umbel bench round` with few rounds: a real federation, all three loops, nothing left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel import cli
from umbel.benchmarks import flower_round
from umbel.benchmarks import round as bench
from umbel.strategies.app import read_tables

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = {
    *("bench", "case", "unit", "umbel", "p95", "worst", "peer", "peer_name"),
    *("limit", "limit_name", "ratio", "of_limit", "runs"),
}
SIZES = ["--rounds", "3", "--large-rounds", "0", "--peer-rounds", "1"]
federation = pytest.mark.slow
"""A real federation plays three loops, one of them Flower's own: more than a minute."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a Unix socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("h")


@pytest.fixture(scope="module")
def done(home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process: whatever reaches its stdout is seen."""
    command = [sys.executable, "-m", "umbel", "bench", "round", *SIZES, "--json"]
    env = os.environ | {"UMBEL_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env)


@federation
def test_each_loop_is_timed_on_one_federation(done: subprocess.CompletedProcess[str]) -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["case"] for line in lines] == ["plain", "secure"]
    for line in lines:
        assert set(line) == FIELDS
        assert (line["bench"], line["unit"], line["runs"]) == ("round", "s", 3)
        assert 0 < line["umbel"] <= line["worst"]
        assert "flwr 1.42" in line["peer_name"]
        assert 0 < line["limit"] < line["peer"]
        # Flower looks for replies every 3 s; a round of a session takes milliseconds.
        assert line["ratio"] > 3


@federation
def test_progress_is_told_on_stderr(done: subprocess.CompletedProcess[str]) -> None:
    said = [line for line in done.stderr.splitlines() if line.startswith("umbel bench round: ")]
    loops = [line.split(": ")[1] for line in said]
    assert [loop for loop in loops if loop in {"plain", "secure", "flower"}] == [
        "plain",
        "secure",
        "flower",
    ]


@federation
def test_nothing_is_left_of_it(done: subprocess.CompletedProcess[str], home: Path) -> None:
    assert done.returncode == 0
    assert sorted(path.name for path in home.rglob("*")) == ["benchmarks", "round.jsonl"]
    left = [process for process in psutil.process_iter() if _belongs(process, home)]
    assert left == []


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        return bool(process.environ().get("UMBEL_HOME") == str(home))
    except psutil.Error:
        return False


def test_the_app_is_one_that_flower_bundles(tmp_path: Path) -> None:
    declared, own = read_tables(flower_round.write_app(tmp_path))
    assert declared == {
        "loop": "plain",
        "clients": 3,
        "rounds": 1,
        "params": 1000,
        "times": "",
    }
    assert own == {}


@pytest.mark.parametrize(
    ("total", "count", "expected"),
    [(60, 2, [30, 30]), (13, 2, [7, 6]), (3, 0, [3]), (7, 3, [3, 2, 2])],
)
def test_rounds_are_split_evenly(total: int, count: int, expected: list[int]) -> None:
    assert bench.parts(total, count) == expected


def test_the_limit_is_a_write_that_leaves_nothing(tmp_path: Path) -> None:
    assert bench.durable_write(tmp_path, 4096) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--clients", "2"], "--clients: expected 3 or more"),
        (["--rounds", "0"], "--rounds: expected 1 or more"),
        (["--large-rounds=-1"], "--large-rounds: expected 0 or more"),
        (["--peer-rounds=-1"], "--peer-rounds: expected 0 or more"),
    ],
)
def test_numbers_that_make_no_round_are_refused_at_once(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "round", *options, "--json"]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert not said.out
