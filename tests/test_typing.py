"""What a user's type checker sees: the public names under mypy strict, from the installed wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Installed

GOOD = """
from typing import Any

import umbel


class Mine(umbel.Task):
    optimizer = umbel.SGD(lr=0.1)
    metrics = {"examples": umbel.Count(1000), "loss": umbel.Sum(1e6)}

    def model(self) -> umbel.MLP:
        return umbel.MLP(4, 8, 2)

    def train_data(self, site: umbel.Site) -> Any:
        return site.partition

    def evaluate(self, model: Any, data: Any) -> umbel.Metrics:
        return umbel.Metrics(examples=1, loss=0.5)


class Average(umbel.FedAvg):
    pass


def name(error: umbel.UmbelError) -> str:
    return str(error)


strategy = Average(fraction_train=0.5, min_available_nodes=2)
adaptive: list[umbel.FedAvg] = [
    umbel.FedAdam(eta=0.05, form="paper", fraction_train=0.5),
    umbel.Krum(num_malicious_nodes=1),
    umbel.CentredClipping(radius=1.0, min_train_nodes=3),
    umbel.FLTrust(lambda server_round, model: model, weighted_by_key="n"),
]
"""

WRONG = [
    ("umbel.SGD(lr='fast')", "arg-type"),
    ("umbel.Nothing", "attr-defined"),
    ("umbel.FedAvg(fraction_train='half')", "arg-type"),
    ("umbel.FedAdam(eta='fast')", "arg-type"),
    ("class A(umbel.Task):\n    def model(self, extra: int) -> int: return extra", "override"),
]


def _mypy(installed: Installed, folder: Path, source: str) -> str:
    """Return what mypy says of a user's file."""
    (folder / "mine.py").write_text(source)
    program = [
        *("-m", "mypy", "--strict", "--config-file="),
        *("--cache-dir", str(installed.folder / "mypy"), "mine.py"),
    ]
    # mypy of the tests' environment, which the fresh one finds as it finds every dependency
    return installed.run("python", *program, cwd=folder).stdout


def test_a_task_and_a_strategy_are_subclassed_under_strict(
    installed: Installed, tmp_path: Path
) -> None:
    assert _mypy(installed, tmp_path, GOOD) == "Success: no issues found in 1 source file\n"


@pytest.mark.parametrize(("statement", "code"), WRONG)
def test_a_wrong_use_is_an_error(
    statement: str, code: str, installed: Installed, tmp_path: Path
) -> None:
    # the public names are real types: were they Any, nothing would be an error
    said = _mypy(installed, tmp_path, f"import umbel\n{statement}\n")
    assert f"[{code}]" in said
    assert said.count("error:") == 1
