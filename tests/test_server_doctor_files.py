"""What the server's doctor finds in a federation's directory, each of its findings provoked."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.certificates import Authority
from umbel.server import doctor_files as files
from umbel.server.doctor_files import Place
from umbel.server.federation_files import authority, server_leaf
from umbel.tests.federations import made
from umbel.tests.issuing import DAY, NOW, Stage, settings
from umbel.tests.provoked import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from umbel.host.doctor import Finding


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation as `umbel server init` makes it, with a token and a member list."""
    stage = Stage(tmp_path_factory.mktemp("pristine") / "wards")
    stage.token("press-17")
    stage.issuer.refresh()
    return stage.folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(pristine, tmp_path / "wards")


def looked(folder: Path, later: timedelta = timedelta(0)) -> list[Finding]:
    place, now = Place.read(folder), NOW + later
    return [
        *files.directory(place), *files.authorities(place, now), *files.servers(place, now),
        *files.members(place, now), *files.books(place, now),
    ]  # fmt: skip


def after(later: timedelta, only: str = "") -> Callable[[Path], list[Finding]]:
    return lambda folder: [one for one in looked(folder, later) if only in one.line]


def without(*names: str) -> Callable[[Path], list[Finding]]:
    def provoke(folder: Path) -> list[Finding]:
        for name in names:
            (folder / name).unlink()
        return looked(folder)

    return provoke


def spoilt(name: str, data: bytes) -> Callable[[Path], list[Finding]]:
    def provoke(folder: Path) -> list[Finding]:
        (folder / name).write_bytes(data)
        return looked(folder)

    return provoke


def development(folder: Path) -> list[Finding]:
    made(folder.with_name("dev"), 1)
    return looked(folder.with_name("dev"))


def other_key(folder: Path) -> list[Finding]:
    shutil.copy(folder / "front.key", folder / "gateway.key")
    return looked(folder)


def other_names(folder: Path) -> list[Finding]:
    file = folder / "server.toml"
    file.write_text(file.read_text().replace("192.0.2.7", "fl2.example.org"))
    return [one for one in looked(folder) if "front" in one.line]


def other_ca(folder: Path) -> list[Finding]:
    stranger = Authority.create("wards", NOW)
    (folder / "gateway.pem").unlink()
    names = settings().names_of("gateway")
    server_leaf(stranger, folder, "gateway", names, NOW, NOW)
    return looked(folder)


def roots_soon(folder: Path) -> list[Finding]:
    return [one for one in looked(folder, 3400 * DAY) if one.id.startswith("ca.")]


CASES: dict[str, Callable[[Path], list[Finding]]] = {
    "federation.ok": looked,
    "federation.bad": spoilt("server.toml", b"nam = 'wards'\n"),
    "federation.development": development,
    "ca.bad": spoilt("ca.pem", b"no certificate"),
    "ca.soon": roots_soon,
    "ca.key-here": looked,
    "ca.key-away": without("root/ca.key"),
    "issuing.ok": looked,
    "issuing.bad": spoilt("issuing.key", b"no key"),
    "issuing.soon": after(320 * DAY, "issuing"),
    "server.ok": lambda folder: [one for one in looked(folder) if "front" in one.line],
    "server.missing": without("front.pem"),
    "server.ended": after(91 * DAY, "gateway"),
    "server.soon": after(80 * DAY, "gateway"),
    "server.names": other_names,
    "server.chain": other_ca,
    "server.key": other_key,
    "members.ok": looked,
    "members.bad": after(8 * DAY),
    "members.soon": after(5 * DAY),
    "nodes.ok": looked,
    "nodes.bad": spoilt("nodes.json", b"{}"),
    "books.ok": looked,
    "books.bad": spoilt("issuer.sqlite", b"SQLite format 3\0" + bytes(5000)),
    "tokens.open": looked,
}


@pytest.mark.parametrize("name", CASES)
def test_each_finding_is_provoked(name: str, folder: Path) -> None:
    shown(name, CASES[name](folder))


def test_a_federation_as_init_made_it_has_no_problem(folder: Path) -> None:
    found = looked(folder)
    assert {one.severity for one in found} == {"ok", "note"}, found


def test_a_key_that_others_read_is_found(folder: Path) -> None:
    (folder / "issuing.key").chmod(0o640)
    finding = shown("files.open", looked(folder))
    assert finding.fix.startswith(f"chmod 0600 {folder}/issuing.key")


def test_the_names_that_lack_are_listed(folder: Path) -> None:
    finding = shown("server.names", other_names(folder))
    assert "bears fl.example.org, 192.0.2.7, localhost, 127.0.0.1, ::1" in finding.line
    assert finding.line.endswith("but not fl2.example.org")


def test_an_empty_directory_is_no_fault_of_the_doctors(tmp_path: Path) -> None:
    found = {one.id for one in looked(tmp_path)}
    assert found >= {"federation.bad", "ca.bad", "issuing.bad", "server.missing", "members.bad",
                     "nodes.bad", "books.bad"}  # fmt: skip


def test_the_look_changes_nothing(folder: Path) -> None:
    def state() -> dict[str, bytes]:
        return {
            str(file.relative_to(folder)): file.read_bytes()
            for file in folder.rglob("*") if file.is_file()
        }  # fmt: skip

    before = state()
    looked(folder)
    assert state() == before


def test_no_secret_is_said(folder: Path) -> None:
    secrets = [
        line
        for name in ("root/ca.key", "issuing.key", "front.key", "gateway.key", "superlink.key")
        for line in (folder / name).read_text("ascii").splitlines()[1:-1]
    ]
    for name in ("issuing.key", "front.key"):
        os.chmod(folder / name, 0o644)
    said = " ".join(f"{one.line} {one.fix}" for one in looked(folder))
    assert not any(secret in said for secret in secrets)


def test_the_newest_of_two_issuing_cas_counts(folder: Path) -> None:
    """After a roll-over devices still bear what the older one signed."""
    root_key = authority(folder)
    assert shown("issuing.ok", looked(folder)).line.endswith(
        f"{root_key.certificate.not_valid_after_utc:%Y-%m-%d}"
    )
