"""`umbel client support`: secrets planted on a device, and none of them in the bundle."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from umbel import cli
from umbel.clients import doctor
from umbel.clients.history import History
from umbel.clients.history_file import Entry
from umbel.clients.status_file import AgentStatus, write_agent
from umbel.clients.support import gather
from umbel.protocol.errors import StateError
from umbel.tests.federations import made
from umbel.tests.test_attacks_support import contents

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "the-owners-own-words-7731"  # noqa: S105 - planted


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device with an account of itself in which somebody wrote what must stay there."""
    monkeypatch.setattr(doctor, "probes", lambda _: [])  # test_doctor*.py has them
    place = made(tmp_path / "f", 1).device("edge-0")
    policy = place / "policy.toml"
    hook = f'\n[limits]\nready_hook = ["/usr/bin/true", "{SECRET}"]\n'
    text = policy.read_text()
    policy.write_text(text.replace("\n[limits]\n", hook))
    write_agent(place, AgentStatus(state="up", error=SECRET, detail=SECRET, move=SECRET))
    record, now = History(place, pytest.fail), time.time()
    record.add(
        Entry(kind="attempt", at=now, until=now, run="r-1", outcome="refused", code="limits",
              key="limits.memory", reason=f"saw {SECRET}")
    )  # fmt: skip
    record.close()
    monkeypatch.setenv("UMBEL_DEVICE", str(place))
    return place


def test_what_stays_on_the_device_is_in_no_part(device: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.zip"
    assert cli.main(["client", "support", str(out)]) == 0
    parts = contents(out)
    assert parts.keys() == {
        "README.txt", "versions.json", "doctor.json", "status.json", "policy.json", "history.json",
    }  # fmt: skip
    everything = b"\n".join([*parts.values(), out.read_bytes()])
    for secret in (SECRET.encode(), b"PRIVATE KEY", str(device).encode()):
        assert secret not in everything
    for key in ("tls.key", "signing.key", "flower"):
        for line in (device / key).read_bytes().splitlines()[1:-1]:
            assert line not in everything
    (row,) = json.loads(parts["history.json"])
    assert (row["run"], row["code"], row["key"]) == ("r-1", "limits", "limits.memory")
    assert json.loads(parts["policy.json"])["min_members"] == 3
    assert json.loads(parts["status.json"])["agent"]["state"] == "up"


def test_a_key_that_came_into_the_record_ends_it(device: Path, tmp_path: Path) -> None:
    key = (device / "signing.key").read_text().splitlines()[1]
    record, now = History(device, pytest.fail), time.time()
    record.add(Entry(kind="attempt", at=now, until=now, run=key))
    record.close()
    with pytest.raises(StateError, match=r"expected no secret, got signing\.key"):
        gather(device).write(tmp_path / "report.zip")
    assert not (tmp_path / "report.zip").exists()
