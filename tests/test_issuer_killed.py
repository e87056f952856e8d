"""The issuer is killed at every line of an enrolment and of a removal; and its disk is full."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.enrolment import Declined
from umbel.protocol.errors import StateError
from umbel.server import (
    federation_files,
    issuer,
    issuer_books,
    issuer_registration,
    issuer_signing,
    issuer_store,
)  # fmt: skip
from umbel.tests import small_disk
from umbel.tests.issuing import Keys, Stage, SuperLink

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = {
    module.__file__
    for module in (
        federation_files,
        issuer,
        issuer_books,
        issuer_registration,
        issuer_signing,
        issuer_store,
    )
}


@dataclass
class LastingSuperLink(SuperLink):
    """A SuperLink whose database outlives whoever talks to it: a file for each key that it took."""

    folder: Path = Path()

    def register(self, public_key: bytes, name: str) -> int:
        """Register a key, as Flower does: at once, for good, and a second time never."""
        for file in self.folder.iterdir():
            if file.read_bytes() == public_key:
                assert file.suffix != ".gone", name
                return int(file.stem)
        node = (1 << 63) + len(list(self.folder.iterdir()))
        descriptor, whole = tempfile.mkstemp(dir=self.folder.parent)
        os.write(descriptor, public_key)
        os.close(descriptor)
        Path(whole).rename(self.folder / f"{node}.here")
        return node

    def unregister(self, flower_node: int) -> None:
        """Forget a node, whose key may not come again."""
        file = self.folder / f"{flower_node}.here"
        if file.exists():
            file.rename(file.with_suffix(".gone"))

    def registered(self) -> dict[bytes, int]:
        """Return who is here."""
        return {file.read_bytes(): int(file.stem) for file in self.folder.glob("*.here")}


def killed(work: Callable[[], Any], line: int) -> bool:
    """Do work in a copy of this process that is killed at the n-th line of the issuer's files.

    Returns:
        Whether it was; False means that the work was done before.
    """
    process = os.fork()
    if process == 0:
        seen = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in OURS:
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            work()
        finally:
            os._exit(0)
    status = os.waitpid(process, 0)[1]
    assert status in {0, signal.SIGKILL}
    return status != 0


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    links = tmp_path / "superlink"
    links.mkdir()
    return Stage(tmp_path / "wards", superlink=LastingSuperLink(folder=links))


STEPS = pytest.mark.parametrize("step", [29, pytest.param(2, marks=pytest.mark.slow)])


@STEPS
def test_an_enrolment_that_is_killed_at_any_line_is_made_once(stage: Stage, step: int) -> None:
    line = 1
    while True:
        keys, token = Keys(), stage.token(f"n{line}")
        request = keys.enrol(token)
        was = killed(lambda request=request: stage.again().enrol(request), line)  # type: ignore[misc]
        answer = stage.again().enrol(request)
        assert stage.again().enrol(request) == answer
        with pytest.raises(Declined, match="token used"):
            stage.issuer.enrol(Keys().enrol(token))
        (row,) = json.loads((stage.folder / "nodes.json").read_text())
        assert (row["id"], row["name"]) == (answer.id.hex(), f"n{line}")
        assert list(stage.superlink.registered().values()) == [answer.flower_node]
        stage.issuer.remove(row["id"])
        if not was:
            break
        line += step
    nodes = stage.issuer.nodes()
    assert len(nodes) == len({node["id"] for node in nodes}) == (line - 1) // step + 1 > 200 / step


@STEPS
def test_a_removal_that_is_killed_at_any_line_is_whole_or_did_not_begin(
    stage: Stage, step: int
) -> None:
    line, begun = 1, 0
    while True:
        name, keys = f"n{line}", Keys()
        answer = stage.issuer.enrol(keys.enrol(stage.token(name)))
        was = killed(lambda name=name: stage.again().remove(name), line)  # type: ignore[misc]
        again = stage.again()
        again.refresh()  # as a new issuer does before it listens
        state = {node["id"]: node["state"] for node in again.nodes()}[answer.id.hex()]
        flower = answer.flower_node in stage.superlink.registered().values()
        row = answer.id.hex() in (stage.folder / "nodes.json").read_text()
        listed = answer.id in (stage.folder / "members.list").read_bytes()
        assert (flower, row, listed) == (
            (True, True, False) if state == "enrolled" else (False, False, True)
        )
        begun += state == "removed"
        if state == "enrolled":
            again.remove(name)
        if not was:
            break
        line += step
    assert state == "removed"
    assert 1 < begun < line // step


def test_on_a_full_disk_nothing_is_given_out_and_afterwards_all_goes_on(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "disk", "size=1m") as disk:
        stage = Stage(disk / "wards")
        token, keys = stage.token(), Keys()
        first = Keys()
        node = stage.issuer.enrol(first.enrol(stage.token("first")))
        small_disk.fill(disk / "filler")
        for ask in (
            lambda: stage.issuer.enrol(keys.enrol(token)),
            lambda: stage.issuer.remove("first"),
            lambda: stage.token("other"),
        ):
            with pytest.raises(StateError, match="see to the disk"):
                ask()
        (disk / "filler").unlink()
        assert len(stage.superlink.ever) == 1
        assert [row["state"] for row in stage.issuer.nodes()] == ["enrolled"]
        assert stage.issuer.enrol(keys.enrol(token)).name == "press-17"
        assert stage.issuer.remove("first")["id"] == node.id.hex()
