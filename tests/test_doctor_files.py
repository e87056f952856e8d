"""What a doctor finds in a device's directory, each of its findings provoked."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from umbel.clients import doctor_files as files
from umbel.clients.doctor_files import Known
from umbel.tests.federations import made
from umbel.tests.provoked import shown
from umbel.tests.wire_federation import key_pem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from umbel.host.doctor import Finding

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two devices, and another one."""
    folder = tmp_path_factory.mktemp("pristine")
    made(folder / "federation", 2)
    made(folder / "other", 1)
    return folder


@pytest.fixture
def device(pristine: Path, tmp_path: Path) -> Path:
    """A device's directory of its own for a test."""
    folder = tmp_path / "device"
    shutil.copytree(pristine / "federation" / "nodes" / "edge-0", folder)
    edited(folder / "policy.toml", str(pristine / "federation" / "nodes" / "edge-0"), str(folder))
    shutil.copytree(pristine / "federation" / "nodes" / "edge-1", tmp_path / "neighbour")
    shutil.copytree(pristine / "other" / "nodes" / "edge-0", tmp_path / "stranger")
    return folder


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def looked(device: Path) -> list[Finding]:
    return list(files.directory_of(Known.read(device)))


def leaves(device: Path, later: timedelta = timedelta(0)) -> list[Finding]:
    return list(files.leaves(Known.read(device), datetime.now(UTC) + later))


def without(name: str) -> Callable[[Path], list[Finding]]:
    def provoke(device: Path) -> list[Finding]:
        (device / name).unlink()
        return leaves(device)

    return provoke


def written(name: str, data: bytes) -> Callable[[Path], list[Finding]]:
    def provoke(device: Path) -> list[Finding]:
        (device / name).write_bytes(data)
        return leaves(device)

    return provoke


def of_neighbour(*names: str, who: str = "neighbour") -> Callable[[Path], list[Finding]]:
    def provoke(device: Path) -> list[Finding]:
        for name in names:
            shutil.copy(device.parent / who / name, device / name)
        return leaves(device)

    return provoke


def badly_addressed(device: Path) -> list[Finding]:
    edited(device / "device.toml", "127.0.0.1:1", "fl.example.org:1")
    return looked(device)


def loose_policy(device: Path) -> list[Finding]:
    edited(device / "policy.toml", "[secure]", "[secure]\nrequire = true")
    return looked(device)


def open_policy(device: Path) -> list[Finding]:
    edited(device / "policy.toml", "required = true", "required = false")
    return looked(device)


def open_key(device: Path) -> list[Finding]:
    (device / "tls.key").chmod(0o644)
    return looked(device)


def of_another_user(device: Path) -> list[Finding]:
    os.chown(device / "signing.key", 12345, -1)
    return looked(device)


@contextmanager
def held(device: Path) -> Iterator[None]:
    with (device / "journal").open("wb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        yield


def held_journal(device: Path) -> list[Finding]:
    with held(device):
        return list(files.journal(device))


def damaged_journal(device: Path) -> list[Finding]:
    (device / "journal").write_bytes(b"keyed 00 11\nkeyed 00 22\n")
    return list(files.journal(device))


CASES: dict[str, Callable[[Path], Iterable[Finding]]] = {
    "device.ok": looked,
    "device.bad": badly_addressed,
    "policy.bad": loose_policy,
    "policy.open": open_policy,
    "files.open": open_key,
    "files.owner": of_another_user,
    "root.bad": without("ca.pem"),
    "leaf.ok": leaves,
    "leaf.missing": without("tls.pem"),
    "leaf.ended": lambda device: [one for one in leaves(device, 8 * DAY) if "tls" in one.line],
    "leaf.future": lambda device: [one for one in leaves(device, -DAY) if "tls" in one.line],
    "leaf.soon": lambda device: [one for one in leaves(device, 6 * DAY) if "tls" in one.line],
    "leaf.id": of_neighbour("tls.pem", "tls.key"),
    "leaf.key": of_neighbour("tls.key"),
    "leaf.chain": of_neighbour("tls.pem", "tls.key", who="stranger"),
    "flower.key": written("flower", b"no key"),
    "journal.ok": files.journal,
    "journal.held": held_journal,
    "journal.bad": damaged_journal,
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, device: Path) -> None:
    if name == "files.owner" and os.geteuid():
        pytest.skip("only root can give a file to another user")
    shown(name, CASES[name](device))


def test_a_device_as_enrolment_made_it_has_no_problem(device: Path) -> None:
    found = [*looked(device), *leaves(device), *files.journal(device)]
    assert {one.severity for one in found} == {"ok", "note"}


def test_what_is_broken_is_found_where_everything_else_is_broken_too(device: Path) -> None:
    for name in ("device.toml", "policy.toml", "signing.pem", "signing.key", "flower"):
        (device / name).unlink()
    (device / "tls.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n")
    found = {one.id for one in [*looked(device), *leaves(device), *files.journal(device)]}
    assert found >= {"device.bad", "leaf.missing", "flower.key", "journal.ok"}


def test_nothing_at_all_is_no_fault_of_the_doctors(tmp_path: Path) -> None:
    found = [*looked(tmp_path), *leaves(tmp_path), *files.journal(tmp_path)]
    assert {one.id for one in found} >= {"device.bad", "root.bad", "leaf.missing", "flower.key"}


def test_the_clock_is_named_with_the_number(device: Path) -> None:
    behind = shown("leaf.future", [one for one in leaves(device, -DAY) if "tls" in one.line])
    assert "at least 23 hours behind" in behind.line
    ended = shown("leaf.ended", [one for one in leaves(device, 10 * DAY) if "tls" in one.line])
    assert "3 days later" in ended.line or "2 days later" in ended.line


def test_a_look_at_the_journal_lets_a_session_have_it(device: Path) -> None:
    with held(device):
        pass
    shown("journal.ok", files.journal(device))
    with held(device):  # would raise if the look still held it
        assert (device / "journal").exists()


def test_the_look_changes_no_byte(device: Path) -> None:
    before = {file: file.read_bytes() for file in device.iterdir() if file.is_file()}
    looked(device), leaves(device), list(files.journal(device))
    assert {file: file.read_bytes() for file in device.iterdir() if file.is_file()} == before


def test_a_key_of_another_kind_is_said(device: Path) -> None:
    (device / "flower").write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1())))
    finding = shown("flower.key", leaves(device))
    assert "OpenSSH" in finding.line
