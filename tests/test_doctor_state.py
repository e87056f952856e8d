"""What a device's doctor finds of owner, policy, apps and agent, each finding provoked."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from umbel.clients import doctor_state as state
from umbel.clients.doctor_files import Known
from umbel.clients.pause import Pause, write_pause
from umbel.clients.status_file import AgentStatus, write_agent
from umbel.protocol.certificates import Authority
from umbel.protocol.members import MemberList
from umbel.tests.federations import made
from umbel.tests.provoked import shown
from umbel.tests.test_doctor_files import edited

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from umbel.host.doctor import Finding

NOW = datetime.now(UTC)
SHA = "ab" * 32


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "federation"
    made(folder, 1)
    return folder


@pytest.fixture
def device(pristine: Path, tmp_path: Path) -> Path:
    """A device's directory of its own for a test, in its federation."""
    shutil.copytree(pristine, tmp_path / "federation")
    folder = tmp_path / "federation" / "nodes" / "edge-0"
    edited(folder / "policy.toml", str(pristine), str(tmp_path / "federation"))
    return folder


def listed(device: Path, *revoked: bytes, days: float = 0, other: bool = False) -> list[Finding]:
    """Return what is found of a member list that was signed so many days ago."""
    federation = device.parents[1]
    key = load_pem_private_key((federation / "ca.key").read_bytes(), None)
    root = x509.load_pem_x509_certificate((federation / "ca.pem").read_bytes())
    ours = Authority("tested", root, key)  # type: ignore[arg-type]
    signed = NOW - timedelta(days=days)
    wanted = MemberList("tested", 7, signed, signed + timedelta(days=7), frozenset(revoked))
    (device / "members.list").write_bytes(
        wanted.sign(Authority.create("tested", NOW) if other else ours)
    )
    (device / "members.list").chmod(0o600)
    return list(state.members(Known.read(device), NOW))


def limited(device: Path, *lines: str) -> list[Finding]:
    edited(device / "policy.toml", "[limits]\n", "[limits]\n" + "\n".join(lines) + "\n")
    return list(state.limits(Known.read(device)))


def never(device: Path) -> list[Finding]:
    return limited(device, "hours = []")


def no_such_hook(device: Path) -> list[Finding]:
    return limited(device, 'ready_hook = ["/no/such/hook"]')


def indexed(device: Path, text: str) -> list[Finding]:
    (device / "apps").mkdir(mode=0o700)
    (device / "apps" / "index.json").write_text(text)
    (device / "apps" / "index.json").chmod(0o600)
    return list(state.apps(device))


def waiting(device: Path) -> list[Finding]:
    row = {"state": "waiting", "app": "umbel/digits", "release": "1.0.0", "at": 1}
    return indexed(device, json.dumps({"version": 1, "apps": {SHA: row}}))


def said(device: Path, **about: object) -> list[Finding]:
    write_agent(device, AgentStatus(**{"state": "up", **about}))  # type: ignore[arg-type]
    return list(state.agent(device))


def unreadable(device: Path) -> list[Finding]:
    (device / "agent.json").write_text("{")
    return list(state.agent(device))


def paused(device: Path) -> list[Finding]:
    write_pause(device, Pause(since=time.time()))
    return list(state.owner(device))


def left(device: Path) -> list[Finding]:
    (device / "left").write_text("")
    return list(state.owner(device))


CASES: dict[str, Callable[[Path], list[Finding]]] = {
    "left": left,
    "paused": paused,
    "list.none": lambda device: list(state.members(Known.read(device), NOW)),
    "list.bad": lambda device: listed(device, other=True),
    "list.ended": lambda device: listed(device, days=8),
    "list.removed": lambda device: listed(device, Known.read(device).id),
    "list.ok": lambda device: listed(device, bytes(16)),
    "limits.now": never,
    "limits.bad": no_such_hook,
    "limits.ok": lambda device: list(state.limits(Known.read(device))),
    "apps.bad": lambda device: indexed(device, "["),
    "apps.waiting": waiting,
    "agent.none": lambda device: list(state.agent(device)),
    "agent.error": lambda device: said(device, error="no route", move="see the network"),
    "agent.bad": unreadable,
    "agent.ok": said,
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, device: Path) -> None:
    shown(name, CASES[name](device))


def test_the_key_that_refuses_now_is_named(device: Path) -> None:
    finding = shown("limits.now", never(device))
    assert finding.fix == "wait, or policy.toml: limits.hours"


def test_a_bundle_that_was_decided_is_no_finding(device: Path) -> None:
    row = {"state": "approved", "app": "umbel/digits", "release": "1.0.0", "at": 1}
    assert indexed(device, json.dumps({"version": 1, "apps": {SHA: row}})) == []


def test_the_agent_of_an_earlier_start_is_none(device: Path) -> None:
    shown("agent.none", said(device, pid=1, mark="gone/1"))


def test_looking_at_the_limits_writes_no_account(device: Path) -> None:
    before = sorted(device.iterdir())
    shown("limits.ok", limited(device, "bytes_per_day = 1000000"))
    assert sorted(device.iterdir()) == before
