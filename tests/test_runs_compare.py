"""`umbel runs compare`: accuracy at equal cost, a target, equal bits, settings that differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from umbel.cli import main
from umbel.tests.recorded_runs import HOSTILE, begin, commit, full

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(
    home: Path, run: str, accuracies: Sequence[float | None], *, seconds: float, **config: Any
) -> None:
    """Make a run of one round an accuracy; its third model is another where `seconds` is 2."""
    with begin(home, run, {"rounds": 8, **config}) as directory:
        for n, value in enumerate(accuracies, 1):
            metrics = {} if value is None else {"test.accuracy": value}
            model = "ff" * 32 if n >= 3 and seconds == 2 else ""
            commit(directory, n, metrics=metrics, seconds={"train": seconds}, model=model)


def rows(found: dict[str, Any], key: str) -> dict[str, list[Any]]:
    return {row["name"]: row["values"] for row in found[key]["rows"]}


def compared(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["runs", "compare", *argv, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_accuracies_at_equal_rounds_times_and_bytes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run a takes 1 s a round, b 2 s and four rounds only; each round moves 3,000 bytes."""
    make(home, "a", [0.1, 0.2, None, 0.4, 0.5, 0.6, 0.7, 0.8], seconds=1)
    make(home, "b", [0.3, 0.5, 0.4, 0.6], seconds=2)
    found = compared(capsys, "a", "b")
    assert found["runs"] == ["a", "b"]
    assert found["at_rounds"]["rows"] == [
        {"name": "1", "at": 1.0, "values": [0.1, 0.3]},
        {"name": "2", "at": 2.0, "values": [0.2, 0.5]},
        {"name": "3", "at": 3.0, "values": [0.2, 0.4]},  # a has no test of its third model
        {"name": "4", "at": 4.0, "values": [0.4, 0.6]},
    ]
    assert rows(found, "at_measured_time") == {
        "2 s": [0.2, 0.3], "4 s": [0.4, 0.5], "6 s": [0.6, 0.4], "8 s": [0.8, 0.6],
    }  # fmt: skip
    assert rows(found, "at_bytes_moved")["12 kB"] == [0.4, 0.6]
    assert "at_virtual_time" not in found


def test_how_long_until_a_target(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "a", [0.1, 0.2, None, 0.4, 0.5, 0.6, 0.7, 0.8], seconds=1)
    make(home, "b", [0.3, 0.5, 0.4, 0.6], seconds=2)
    found = compared(capsys, "a", "b")
    assert found["until"]["target"] == 0.6  # the best that both reached
    assert rows(found, "until") == {
        "rounds": [6, 4], "measured time": [6, 8], "bytes moved": [18000, 12000],
    }  # fmt: skip
    assert rows(compared(capsys, "a", "b", "--target", "0.65"), "until")["rounds"] == [7, None]
    assert main(["runs", "compare", "a", "b", "--target", "0.9"]) == 0
    assert "until accuracy 0.9: no run came to 0.9" in capsys.readouterr().out


def test_a_target_above_one_is_no_accuracy(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("a", "b"):
        make(home, run, [0.1], seconds=1)
    assert main(["runs", "compare", "a", "b", "--target", "95"]) == 2
    assert capsys.readouterr().err == "umbel: --target: expected an accuracy up to 1, got 95.0\n"


def test_runs_without_an_accuracy_are_judged_by_their_loss(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, losses in (("a", [4.0, 1.234, 1.5]), ("b", [3.0, 2.0, 0.5])):
        with begin(home, run, {}) as directory:
            for n, loss in enumerate(losses, 1):
                commit(directory, n, metrics={"test.loss": loss, "train.loss": 9.0 - n})
    found = compared(capsys, "a", "b")
    assert rows(found, "at_rounds") == {"1": [4.0, 3.0], "2": [1.234, 2.0], "3": [1.5, 0.5]}
    assert rows(found, "glance")["loss, best"] == [1.234, 0.5]
    assert rows(found, "glance")["round of the best"] == [2, 3]
    assert found["until"]["target"] == 1.3
    assert rows(found, "until")["rounds"] == [2, 3]
    assert rows(compared(capsys, "a", "b", "--target", "2.5"), "until")["rounds"] == [2, 2]


def test_bits_and_settings(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "a", [0.1, 0.2, 0.3], seconds=1, seed=0, config={"lr": 0.1})
    make(home, "b", [0.1, 0.2, 0.3, 0.4], seconds=2, seed=0, config={"lr": 0.3})
    make(
        home,
        "c",
        [0.1, 0.2, 0.3, 0.4],
        seconds=1,
        seed=0,
        config={"lr": 0.1},
        simulation={"tier": "T0"},
        plan={"digest": "d1", "round": {"p50": 60.0}},
    )
    found = compared(capsys, "a", "b", "c")
    assert rows(found, "bits") == {
        "rounds in common with a": [3, 3, 3],
        "models equal bit for bit": [3, 2, 3],
        "first round that differs": [None, 3, None],
    }
    assert rows(found, "settings") == {
        "config.lr": ["0.1", "0.3", "0.1"], "simulation.tier": [None, None, "T0"],
        "plan.digest": [None, None, "d1"],
    }  # fmt: skip


def test_text_has_a_column_for_each_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "a", [0.1, 0.2], seconds=1)
    make(home, "b", [0.3], seconds=1)
    assert main(["runs", "compare", "a", "b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["a", "b"]
    named = {line[: lines[0].index("a")].strip(): line.split()[-2:] for line in lines if line}
    assert named["rounds finished"] == ["2", "1"]
    assert named["accuracy, best"] == ["0.2000", "0.3000"]


def test_runs_without_an_accuracy_in_common_say_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(home, "a", [0.1], seconds=1)
    begin(home, "b", {}).close()
    assert main(["runs", "compare", "a", "b", "--out", "x.html"]) == 0
    assert (
        "there is no accuracy and no loss that every one of these runs records"
        in capsys.readouterr().out
    )
    assert "Accuracy: there is none that every one of these runs records." in (
        (home / "x.html").read_text("utf-8")
    )


def test_a_page_overlays_the_curves(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, clients in (("a", 50), ("b", 1000)):
        full(home, run, rounds=5, clients=clients)
    make(home, "hostile", [0.5], seconds=1, config={HOSTILE: HOSTILE})
    assert main(["runs", "compare", "a", "b", "hostile", "-o", "x.html"]) == 0
    page = (home / "x.html").read_text("utf-8")
    assert page.count('class="line s0"') == page.count('class="line s1"') > 0
    assert "<script>alert" not in page
    assert "<h2>Settings that differ</h2>" in page
    capsys.readouterr()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["a"], "runs to compare: expected 2 to 7, got 1"),
        (["a", "a"], "runs to compare: expected each once, got 'a, a'"),
        (["a", "b", "--target", "-1"], "--target: expected an accuracy or a loss above 0, got -1"),
        (
            ["a", "b", "--target", "nan"],
            "--target: expected an accuracy or a loss above 0, got nan",
        ),
        (["a", "b"], "expected a run, got no such run; see `umbel runs list`"),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_cannot_be_compared_is_one_line(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "compare", *argv]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
