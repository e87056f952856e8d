"""The state of `umbel up`: read whole, or refused in one line, whatever stands in the file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from umbel.host.processes import read_state
from umbel.host.programs import Program
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path


def up() -> dict[str, Any]:
    """Return a state as a supervisor writes it."""
    program = Program(name="node", command=("sleep", "9"), env={"A": "b"}, tier=1, pause=0.5)
    item = {"program": asdict(program), "pid": 7, "started": 1.5}
    return {"mark": "m", "supervisor": {"pid": 4, "started": 2}, "programs": [item]}


def test_a_state_is_read_back(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / "up.json").write_text(json.dumps(up()))
    assert read_state(tmp_path) == json.loads(json.dumps(up()))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("mark",), 3),
        (("programs",), {}),
        (("programs", 0), None),
        (("programs", 0, "pid"), "1"),
        (("programs", 0, "pid"), -1),
        (("programs", 0, "started"), None),
        (("programs", 0, "program"), "core"),
        (("programs", 0, "program", "tier"), "0"),
        (("programs", 0, "program", "command"), [1]),
        (("programs", 0, "program", "env"), 7),
        (("programs", 0, "program", "more"), 7),
        (("supervisor", "pid"), True),
        (("supervisor", "started"), "now"),
    ],
)
def test_a_state_of_another_shape_is_said(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    state = up()
    found: Any = state
    for step in place[:-1]:
        found = found[step]
    found[place[-1]] = value
    (tmp_path / "up.json").write_text(json.dumps(state))
    with pytest.raises(StateError, match="the state of `umbel up`"):
        read_state(tmp_path)
