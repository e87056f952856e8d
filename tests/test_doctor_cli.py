"""`umbel client doctor` and `umbel server doctor` as commands: which place, what status."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from umbel import cli
from umbel.host.doctor import Finding
from umbel.tests.federations import made
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    monkeypatch.delenv("UMBEL_DEVICE", raising=False)
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Finding]]:
    """Return status and findings of a doctor."""
    status = cli.main([*arguments, "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    return status, [Finding(**one) for one in told["findings"]]


def test_without_a_device_that_is_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = asked(capsys, "client", "doctor")
    assert status == 2
    assert len(findings) == 1
    shown("device.missing", findings)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("side", ["client", "server"])
def test_another_users_directory_is_not_looked_at(
    side: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    flag = "--device" if side == "client" else "--federation"
    status, findings = asked(capsys, side, "doctor", flag, str(folder))
    assert status == 2
    assert len(findings) == 1
    assert "setpriv --reuid=12345" in shown("user.other", findings).fix


CASES = {
    "device.missing": test_without_a_device_that_is_the_finding,
    "user.other": test_another_users_directory_is_not_looked_at,
}


def test_several_devices_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("north", "south"):
        (home / "devices" / name).mkdir(parents=True)
    assert cli.main(["client", "doctor"]) == 2
    assert f"{home}/devices/north, {home}/devices/south" in capsys.readouterr().err


def test_an_empty_directory_is_looked_at(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "devices" / "north").mkdir(parents=True, mode=0o700)
    status, findings = asked(capsys, "client", "doctor")
    assert status == 2
    for name in ("device.bad", "root.bad", "flower.key", "journal.ok", "versions.ok"):
        shown(name, findings)


def test_the_servers_doctor_takes_the_only_federation(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["server", "doctor"]) == 2
    assert "name one" in capsys.readouterr().err
    made(home / "federations" / "north", 1)
    _, findings = asked(capsys, "server", "doctor")
    shown("platform.ok", findings)


def test_no_secret_is_in_what_it_says(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = made(home / "federations" / "north", 1).device("edge-0")
    for name in ("tls.key", "signing.key", "flower"):
        (device / name).chmod(0o644)
    _, findings = asked(capsys, "client", "doctor", "--device", str(device))
    said = json.dumps([(one.line, one.fix) for one in findings])
    for name in ("tls.key", "signing.key", "flower"):
        for line in (device / name).read_text("ascii").splitlines()[1:-1]:
            assert line not in said
