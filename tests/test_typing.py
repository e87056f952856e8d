"""What a user's type checker sees: the public names under mypy strict, from the installed wheel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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


CONFIG = """
[mypy]
strict = true
[mypy-torch.*,sqlalchemy.*,pydantic.*,fastapi.*,starlette.*]
follow_imports = skip
"""
"""As where these are not installed: half of what would be read, and no public name is theirs."""


@pytest.fixture(scope="module")
def said(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what one run of mypy says of a user's files: a right one, and one for each mistake."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "mine.py").write_text(GOOD)
    for number, (statement, _) in enumerate(WRONG):
        (folder / f"wrong{number}.py").write_text(f"import umbel\n{statement}\n")
    files = sorted(path.name for path in folder.iterdir())
    (folder / "mypy.ini").write_text(CONFIG)
    program = ["-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", os.devnull, *files]
    # mypy of the tests' environment, which the fresh one finds as it finds every dependency
    return installed.run("python", *program, cwd=folder).stdout


def test_a_task_and_a_strategy_are_subclassed_under_strict(said: str) -> None:
    assert "mine.py" not in said
    assert said.endswith(f"(checked {len(WRONG) + 1} source files)\n")


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[statement for statement, _ in WRONG])
def test_a_wrong_use_is_an_error(number: int, said: str) -> None:
    # the public names are real types: were they Any, nothing would be an error
    errors = [line for line in said.splitlines() if line.startswith(f"wrong{number}.py:")]
    (error,) = [line for line in errors if ": error:" in line]
    assert f"[{WRONG[number][1]}]" in error
