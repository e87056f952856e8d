"""`umbel bench`: what a measurement says, where it is kept, and how benchmarks are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from umbel import cli
from umbel.benchmarks import cli as bench
from umbel.benchmarks import record
from umbel.benchmarks.record import Measurement, interleave, results_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Installed

FOLD = Measurement(
    bench="fold",
    case="float/threads=1",
    unit="GB/s",
    samples=[15.0, 10.0, 16.0],
    peer=[2.0, 2.5, 1.0],
    peer_name="flwr",
    limit=20.0,
    limit_name="STREAM",
)


def test_a_line_by_hand_where_more_is_better() -> None:
    # medians 15 and 2: 7.5 times the peer, three quarters of the limit; the worst run is the least
    assert FOLD.line() == {
        "bench": "fold",
        "case": "float/threads=1",
        "unit": "GB/s",
        "umbel": 15.0,
        "p95": None,
        "worst": 10.0,
        "peer": 2.0,
        "peer_name": "flwr",
        "limit": 20.0,
        "limit_name": "STREAM",
        "ratio": 7.5,
        "of_limit": 0.75,
        "runs": 3,
    }


def test_a_ratio_is_larger_when_better_where_less_is_better() -> None:
    # 0.5 s against 4 s is 8 times better; a bar of 1 s is reached twice over; the worst is the most
    line = Measurement(
        bench="secure", case="x", unit="s", samples=[0.4, 0.5, 0.9], peer=[4.0], limit=1.0
    ).line()
    assert (line["ratio"], line["of_limit"], line["worst"]) == (8.0, 2.0, 0.9)


@pytest.mark.parametrize(("unit", "p95", "worst"), [("s", 0.38, 0.4), ("GB/s", 0.03, 0.01)])
def test_nineteen_of_twenty_runs_are_as_good_as_p95(unit: str, p95: float, worst: float) -> None:
    # 0.01 to 0.40: the 38th of 40 from the good end
    samples = [n / 100 for n in range(40, 0, -1)]
    line = Measurement(bench="round", case="x", unit=unit, samples=samples).line()
    assert (line["p95"], line["worst"]) == (p95, worst)


def test_p95_of_few_runs_is_none_and_of_twenty_the_last_but_one() -> None:
    few, twenty = (
        Measurement(bench="x", case="y", unit="s", samples=[n + 1.0 for n in range(count)]).line()
        for count in (19, 20)
    )
    assert (few["p95"], twenty["p95"]) == (None, 19.0)


def test_without_peer_or_limit_there_is_no_ratio() -> None:
    line = Measurement(bench="footprint", case="x", unit="MiB", samples=[55.0]).line()
    assert [line[k] for k in ("peer", "limit", "ratio", "of_limit")] == [None] * 4


@pytest.mark.parametrize(
    ("unit", "samples", "complaint"),
    [("furlongs", [1.0], "unit: expected one of"), ("s", [], "above zero"), ("s", [0.0], "above")],
)
def test_what_cannot_be_compared_is_refused(
    unit: str, samples: list[float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Measurement(bench="x", case="y", unit=unit, samples=samples)


def test_runs_are_interleaved() -> None:
    order: list[str] = []

    def call(name: str, value: float) -> float:
        order.append(name)
        return value

    figures = interleave({"a": lambda: call("a", 1.0), "b": lambda: call("b", 2.0)}, runs=3)
    assert order == ["a", "b"] * 3
    assert figures == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_results_go_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    assert results_folder() == tmp_path / "benchmarks"
    path = record.keep(FOLD)
    record.keep(FOLD)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.items() >= FOLD.line().items()
    assert second["cores"] >= 1
    assert len(second["load"]) == 3
    assert second["cpu"]


def test_results_of_a_checkout_stay_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMBEL_HOME", raising=False)
    assert results_folder() == Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def test_results_of_an_installed_package_stay_out_of_it(
    installed: Installed, tmp_path: Path
) -> None:
    program = "from umbel.benchmarks.record import results_folder as f; print(f())"
    done = installed.run("python", "-c", program, cwd=tmp_path)
    assert done.stdout == f"{tmp_path}/.umbel/benchmarks\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `toy` the one benchmark: a module of the folder would be imported in its place."""

    def run(size: int = typer.Option(1, help="Elements.")) -> Iterator[Measurement]:
        for case in range(size):
            yield Measurement(bench="toy", case=str(case), unit="s", samples=[2.0], peer=[6.0])

    module = type(sys)("umbel.benchmarks.toy", "A toy.\n\nNo more.")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "umbel.benchmarks.toy", module)
    monkeypatch.setattr(bench, "names", lambda: {"toy": "A toy."})
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))


@pytest.mark.usefixtures("toy")
def test_json_prints_one_object_a_case_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "toy", "--size", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["case"], line["ratio"]) for line in lines] == [("0", 3.0), ("1", 3.0)]
    kept = (tmp_path / "benchmarks" / "toy.jsonl").read_text().splitlines()
    assert [json.loads(line)["case"] for line in kept] == ["0", "1"]


@pytest.mark.usefixtures("toy")
def test_words_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "toy"]) == 0
    assert capsys.readouterr().out.startswith("toy 0: 2.0 s (worst 2.0) · 3.0x")


@pytest.mark.usefixtures("toy")
def test_a_benchmark_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "toy", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--size" in out
    assert "--json" in out


@pytest.mark.usefixtures("toy")
def test_the_list_has_each_name_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--list"]) == 0
    assert capsys.readouterr().out.split(maxsplit=1) == ["toy", "A toy.\n"]


@pytest.mark.parametrize("name", bench.names())
def test_every_benchmark_has_a_summary_and_a_command(name: str) -> None:
    assert bench.names()[name]
    assert bench.command(name).name == name


def test_the_list_imports_no_benchmark() -> None:
    program = (
        "import sys; from umbel.cli import main; main(['bench', '--list'])\n"
        "sys.exit(any(n.startswith('umbel.benchmarks.') and n.rsplit('.')[-1] not in "
        "('cli', 'record') for n in sys.modules))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
