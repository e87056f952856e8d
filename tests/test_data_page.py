"""docs/simulation.md on data: its table against the sets, its program against the classes."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation.data import images
from umbel.simulation.data.mapped import ClientData
from umbel.strategies import partition

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "simulation.md").read_text("utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def section(heading: str) -> str:
    return re.split(r"\n#{2,3} ", PAGE.split(f"\n{heading}\n", 1)[1], maxsplit=1)[0]


def sets() -> list[list[str]]:
    lines = [line for line in section("### Real sets").splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(text: str) -> list[int]:
    return [int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*", text)]


def test_every_loader_is_in_the_table_and_opens_with_its_licence() -> None:
    listed = {re.sub("`", "", row[1]).split(".")[0] for row in sets()}
    folder = ROOT / "simulation" / "data"
    assert listed == {path.stem for path in folder.glob("*.py")} - {
        "__init__",
        "mapped",
        "installed",
    }
    for _, call, _, _, licence in sets():
        module = import_module(f"umbel.simulation.data.{call.strip('`').split('.')[0]}")
        words = re.findall(r"CC BY(?:-SA)? \d\.\d|BSD|GPL 3|MIT|public domain|GroupLens", licence)
        story = " ".join((module.__doc__ or "").split())
        assert words, call
        assert all(word in story for word in words), call


@pytest.mark.parametrize("row", sets(), ids=lambda row: row[1])
def test_a_set_has_the_figures_of_the_table(
    row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    module, name = row[1].strip("`").split(".")
    try:
        data: Any = getattr(import_module(f"umbel.simulation.data.{module}"), name)()
    except SettingsError as error:
        pytest.skip(str(error))
    said = numbers(row[0])
    if not isinstance(data, ClientData):
        assert row[2] == "none: partition it"
        assert said[-3:] == [len(data[0]), *data[0].shape[-2:]]
        return
    sizes = data.sizes.tolist()
    clients, *_, least, most = numbers(row[2])
    assert [clients, least, most] == [data.clients, min(sizes), max(sizes)]
    assert len(data.inputs) in said or f"{len(data.inputs) / 1e6:.2f} million" in row[0]


def test_what_to_install_is_an_extra_or_a_package() -> None:
    for *_, install, _ in sets():
        for extra in re.findall(r"umbel\[([\w-]+)\]", install):
            assert extra in EXTRAS


def test_every_partitioner_is_named() -> None:
    named = set(re.findall(r"`(\w+Partitioner)`", section("### Partitioners")))
    assert named == set(partition.__all__)


def test_the_program_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)\n```", section("## Data"), re.DOTALL)
    inputs, targets = images.digits()
    split = partition.IidPartitioner(num_partitions=10).partitions(targets)
    clients = [(inputs[rows], targets[rows]) for rows in split]
    names = {"inputs": inputs, "targets": targets, "partitions": split, "clients": clients}
    lines = "import pathlib\nfrom pathlib import Path\n" + program.replace(
        "data.client(7)", "seventh = data.client(7)"
    )
    space: dict[str, Any] = {**names}
    exec(compile(lines, "simulation.md", "exec"), space)  # noqa: S102 - the page's own program
    assert np.array_equal(space["seventh"][0], inputs[split[7]])
    assert ClientData.open(Path("large")).sizes.tolist() == [len(rows) for rows in split]
