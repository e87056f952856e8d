"""The example of the roles: what is trained on is not tested, and characters stay in order."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from flwr.common.config import validate_config

from umbel.simulation.data.shakespeare import shakespeare
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.task import Site

APP = Path(__file__).resolve().parents[1] / "examples" / "shakespeare"
needs_the_plays = pytest.mark.skipif(
    find_spec("shksprdata") is None, reason="the package shakespeare is not installed"
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))


@needs_the_plays
@pytest.mark.parametrize("role", [0, 300, 861])
def test_a_role_s_examples_are_its_text_but_for_the_end(role: int) -> None:
    text, following = shakespeare().client(role)
    before, after = load_task(AppRef.read(APP)).train_data(Site(role, 862))
    whole = [*text[:1].tolist(), *following.tolist()]
    end = max(1, len(text) // 10)
    assert len(after) == len(text) - 15 - end
    for place in (0, len(after) - 1):
        assert before[place].tolist() == whole[place : place + 16]
        assert after[place] == whole[place + 16]


@needs_the_plays
def test_few_sites_have_all_roles_and_none_has_the_test() -> None:
    task = load_task(AppRef.read(APP))
    parts = [len(task.train_data(Site(site, 3))[1]) for site in range(3)]
    roles = [len(task.train_data(Site(site, 862))[1]) for site in range(862)]
    assert sum(parts) == sum(roles)
    tested = task.test_data()
    assert tested[0].shape == (len(tested[1]), 16)
    assert sum(roles) + len(tested[1]) < len(shakespeare().inputs)
    # The first role's tested characters are those that follow its training ones.
    last = task.train_data(Site(0, 862))
    assert tested[0][0].tolist() == [*last[0][-1][1:].tolist(), int(last[1][-1])]


def test_the_model_takes_sixteen_characters() -> None:
    model = load_task(AppRef.read(APP)).model()
    assert sum(p.numel() for p in model.parameters()) == 96 * 16 + 128 * 257 + 96 * 129
    assert model(next(model.parameters()).new_zeros(2, 16).long()).shape == (2, 96)


def test_flower_accepts_the_app() -> None:
    document = tomllib.loads((APP / "pyproject.toml").read_text())
    assert validate_config(document, check_module=True, project_dir=APP) == (True, [], [])
    assert not any("umbel" in item for item in document["project"]["dependencies"])
