"""`umbel client apps`, from a bundle that waits to one that may run."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from umbel import cli
from umbel.clients.apps import Apps
from umbel.clients.policy import Policy
from umbel.protocol.errors import Refused
from umbel.tests.fabs import fab

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = fab("1.0.0", code__py=b"one\n"), fab("1.0.1", code__py=b"two\n")


def sha(content: bytes) -> str:
    return sha256(content).hexdigest()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device on which two bundles wait."""
    (tmp_path / "device.toml").write_text("")
    (tmp_path / "policy.toml").write_text("[trust]\napprove = true\n")
    (tmp_path / "policy.toml").chmod(0o600)
    monkeypatch.setenv("UMBEL_DEVICE", str(tmp_path))
    for content in (ONE, TWO):
        with pytest.raises(Refused):
            Apps(tmp_path).admit(Policy(approve=True), content)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["client", "apps", *words]) == 0
    return capsys.readouterr().out


def test_a_bundle_is_looked_at_and_approved(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "list").count("waiting") == 2
    assert "nothing that ran here" in said(capsys, "diff", sha(ONE)[:16])
    assert "approved: tests/tiny 1.0.0" in said(capsys, "approve", sha(ONE)[:16])
    assert Apps(device).admit(Policy(approve=True), ONE) == "approved"
    shown = said(capsys, "show", sha(TWO))
    assert f"sha256 {sha(TWO)}" in shown
    assert "         4 code.py" in shown
    compared = said(capsys, "diff", sha(TWO))
    assert "changed: code.py" in compared
    assert "-one\n+two\n" in compared


def test_every_command_that_shows_speaks_json(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(said(capsys, "list", "--format", "json"))
    assert {row["sha256"] for row in rows} == {sha(ONE), sha(TWO)}
    shown = json.loads(said(capsys, "show", sha(ONE), "--format", "json"))
    assert (shown["state"], shown["files"]["code.py"]) == ("waiting", 4)
    compared = json.loads(said(capsys, "diff", sha(ONE), "--format", "json"))
    assert (compared["old"], len(compared["changes"])) == (None, 2)
    decided = json.loads(said(capsys, "approve", sha(ONE), "--format", "json"))
    assert (decided["state"], decided["sha256"]) == ("approved", sha(ONE))


def test_a_rejected_bundle_is_forgotten_and_refused(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "rejected: tests/tiny 1.0.0" in said(capsys, "reject", sha(ONE))
    with pytest.raises(Refused, match="was rejected"):
        Apps(device).admit(Policy(approve=True), ONE)
    assert "rejected" in said(capsys, "list")
    assert "rejected: ?/? ? " in said(capsys, "reject", "0f" * 32)  # has not come yet


@pytest.mark.parametrize("words", [["approve", "00" * 32], ["show", "9f2c"], ["diff", "0" * 15]])
def test_what_names_no_bundle_is_one_line(
    device: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(["client", "apps", *words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "`umbel client apps list` has them" in line


def test_nothing_is_approved_where_the_policy_does_not_ask_for_it(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (device / "policy.toml").write_text("")
    assert cli.main(["client", "apps", "approve", sha(ONE)]) == 2
    assert "trust.approve: expected true in policy.toml" in capsys.readouterr().err
