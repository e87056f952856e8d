"""`umbel bench secure` at small sizes: what it prints, and that its counts are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel import cli
from umbel.benchmarks import flower_secure, secure
from umbel.benchmarks.secure_cast import METRICS, PARAMS, VALUES, WEIGHT, Cast, Size
from umbel.benchmarks.secure_memory import server_peaks
from umbel.benchmarks.secure_round import STAGES, Round
from umbel.protocol.errors import VoidRound
from umbel.server.settings import RunSettings
from umbel.simulation.federation import Federation
from umbel.strategies.trainer import TrainResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.strategies.task import Site
    from umbel.strategies.trainer import Settings

FIELDS = {
    *("bench", "case", "unit", "umbel", "p95", "worst", "peer", "peer_name"),
    *("limit", "limit_name", "ratio", "of_limit", "runs"),
}
CLIENTS, WORDS = 6, 640


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process: whatever reaches its stdout is seen."""
    sizes = ["--clients", str(CLIENTS), "--params", str(WORDS), "--drop", "0.17", "--runs", "2"]
    home = {"UMBEL_HOME": str(tmp_path_factory.mktemp("home"))}
    command = [sys.executable, "-m", "umbel", "bench", "secure", *sizes, "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | home
    )


@pytest.fixture(scope="module")
def lines(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["case"]: line for line in found}


def test_stdout_is_one_json_object_a_case(
    done: subprocess.CompletedProcess[str], lines: dict[str, dict[str, Any]]
) -> None:
    units = {"client_protect_cpu": "s", "server_unmask": "s"}
    units |= {f"client_protect_cpu/{stage}": "s" for stage in STAGES}
    units |= {"bytes_per_parameter": "B", "server_peak": "models"}
    assert {case: line["unit"] for case, line in lines.items()} == units
    assert len(done.stdout.splitlines()) == len(units)
    for line in lines.values():
        assert set(line) == FIELDS
        assert (line["bench"], line["runs"]) == ("secure", 2)
        assert 0 < line["umbel"] <= line["worst"]


def test_each_bar_has_its_peer_and_limit(lines: dict[str, dict[str, Any]]) -> None:
    bars = ("client_protect_cpu", "server_unmask", "bytes_per_parameter", "server_peak")
    for line in (lines[case] for case in bars):
        assert "flwr 1.42" in line["peer_name"]
        assert line["limit_name"]
        assert line["ratio"] == pytest.approx(line["peer"] / line["umbel"], rel=2e-3)
        assert line["of_limit"] == pytest.approx(line["limit"] / line["umbel"], rel=2e-3)


def test_the_stages_add_up_to_the_whole(lines: dict[str, dict[str, Any]]) -> None:
    # The median of two runs is their mean, so it may be taken apart; each is rounded to 4 digits.
    parts = sum(lines[f"client_protect_cpu/{stage}"]["umbel"] for stage in STAGES)
    assert parts == pytest.approx(lines["client_protect_cpu"]["umbel"], rel=2e-3)


class Same:
    """A trainer whose clients all have one update of the benchmark's size."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the model, one array."""
        return {"weight": np.full(WORDS, float(seed), np.float32)}

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the benchmark's metrics."""
        return METRICS if phase == "train" else {}

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the update."""
        return TrainResult({"weight": np.full(WORDS, 0.5, np.float32)}, WEIGHT, VALUES)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Return nothing."""
        return TrainResult({}, 1, {})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing."""
        return {}


def test_the_bytes_are_those_that_a_session_sends(
    lines: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Counted once more on the link of a whole federation: sessions, coordinator, frames."""
    settings = RunSettings(run="count", rounds=1, params=PARAMS, final_evaluation=False)
    federation = Federation(Same(), settings, clients=CLIENTS, home=tmp_path)
    sent = dict.fromkeys(federation.names, 0)

    def tap(way: str, node: str, data: bytes) -> None:
        sent[node] += len(data) if way == "up" else 0

    federation.link.tap = tap
    assert federation.run().failure is None
    assert len(set(sent.values())) == 1
    exact = set(sent.values()).pop() / WORDS
    assert lines["bytes_per_parameter"]["umbel"] == float(f"{exact:.4g}")


@pytest.fixture(scope="module")
def played() -> Round:
    """Play a round of six, one of them lost after trip 2."""
    played = Round(Cast(CLIENTS), Size(CLIENTS, WORDS, 1), 0)
    played.play(0, whole=True)
    return played


def test_the_server_takes_off_every_stream_of_the_round(played: Round) -> None:
    # Complete graph of 6, one lost: 5 self masks, and the lost one's pair masks with 5.
    assert secure.taken_off(played.tape) == 10


def test_an_opened_sum_that_is_another_is_no_figure(played: Round) -> None:
    expected = played.tape.expected
    assert secure.unmask(played.tape) > 0
    played.tape.expected = bytes([expected[0] ^ 1]) + expected[1:]
    with pytest.raises(VoidRound, match="not the sum of the messages"):
        secure.unmask(played.tape)
    played.tape.expected = expected


def test_the_lost_are_spread_over_the_ring() -> None:
    assert Size(100, 1, 10).gone == {1, 11, 21, 31, 41, 51, 61, 71, 81, 91}
    assert Size(100, 1, 0).gone == frozenset()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--drop", "0.11"], "--drop: expected 0 to 0.1: 100 members bear 10 losses"),
        (["--drop=-0.5"], "--drop: expected 0 to 0.1"),
        (["--clients", "2"], "--clients: expected 3 or more"),
        (["--params", "0"], "--params: expected 1 or more"),
        (["--runs", "0"], "--runs: expected 1 or more"),
    ],
)
def test_sizes_that_give_no_sum_are_refused_at_once(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "secure", *options, "--json"]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert not said.out


def test_the_server_holds_three_models_and_no_copy() -> None:
    """The sum, the model, and the slot or the next model; one more would show as a fourth.

    The second round finds memory that the first one left, and so may need less.
    """
    first, second = server_peaks(Cast(4), 4_000_000, 2)
    assert 2.5 < first < 3.5
    assert 1.5 < second < 3.5


def test_flowers_client_sends_eight_bytes_a_parameter() -> None:
    # F9 of the reference: int64 residues. The rest is .npy headers, keys, ciphertexts, shares.
    shape = flower_secure.Shape(WORDS, shares=5, threshold=3, survivors=5, lost=1)
    client = flower_secure.Client(shape, np.linspace(-1, 1, WORDS, dtype=np.float32))
    sent = client.protect()
    assert sent.seconds > 0
    assert 8 * WORDS < sent.bytes < 8 * WORDS + 8192


def test_flowers_server_combines_agrees_and_masks() -> None:
    whole = flower_secure.Shape(WORDS, shares=5, threshold=3, survivors=5, lost=1)
    assert flower_secure.Server(whole).unmask() > 0
    assert flower_secure.Server(whole._replace(lost=0)).unmask() > 0
    # 90 messages, the one being added, the sum and the next sum, two models each
    assert flower_secure.models(90) == 186


def test_peaks_are_seen_and_set_back() -> None:
    # In a process of its own: this one may have freed memory left that 64 MiB fit into.
    program = (
        "from umbel.benchmarks.process_memory import peak, reset_peak, resident\n"
        "reset_peak(); before = peak()\n"
        "block = bytearray(b'x' * 64 * 2**20); high = peak()\n"
        "del block; reset_peak()\n"
        "print(high - before, peak() - resident())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    grown, after = map(int, done.stdout.split())
    assert grown > 60 << 20
    assert after < 8 << 20
