"""A backup in wrong hands: names that lead elsewhere, changed bytes, what must not return."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.enrolment import Declined
from umbel.protocol.errors import StateError
from umbel.protocol.members import MemberList
from umbel.server import backup_form as form
from umbel.server import sealing
from umbel.server.archive import MAGIC, Packer, Unpacker
from umbel.server.backup import backup
from umbel.server.federation_files import authority
from umbel.server.restore import restore
from umbel.server.sealing import PIECE, SALT, TAG
from umbel.tests.care_stage import made_server, restored
from umbel.tests.issuing import Keys

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.tests.issuing import Stage

SECRET = b"a passphrase of some length"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stage(home: Path) -> Stage:
    return made_server(home)


def members_of(file: Path) -> dict[str, bytes]:
    """Return what a backup holds, and b"" under the name `about`."""
    found: dict[str, io.BytesIO] = {}
    with open(file, "rb") as archive:
        Unpacker(archive, "b", None).unpack(
            form.known, lambda name, _: found.setdefault(name, io.BytesIO())
        )
    return {name: taken.getvalue() for name, taken in found.items()}


def forged(file: Path, members: list[tuple[str, bytes]], about: object = None) -> None:
    """Write an archive whose hashes are right, whatever it holds."""
    with open(file, "rb") as archive:
        told = Unpacker(archive, "b", None).unpack(form.known, lambda *_: None).about
    out = io.BytesIO()
    packer = Packer(out, None)
    for name, content in members:
        packer.add(name, io.BytesIO(content), len(content))
    packer.close(told if about is None else about)  # type: ignore[arg-type]
    file.write_bytes(out.getvalue())


@pytest.mark.parametrize(
    "name",
    [
        "federation/../../outside",
        "runs/../../outside/ledger.sqlite",
        "runs/r-1/rounds/000001/../../../../outside",
        "/outside",
        "federation/tickets/../../outside.key",
        "federation/tickets/.key",
        "federation/members.list",
        "federation/nodes/press-1/journal",
        "federation/ca.pem/x",
        "runs/r-1/ledger.sqlite\n",
    ],
)
def test_a_name_that_leads_elsewhere_is_written_nowhere(
    name: str, stage: Stage, home: Path, tmp_path: Path
) -> None:
    backup(stage.folder, home, tmp_path / "b")
    forged(tmp_path / "b", [*members_of(tmp_path / "b").items(), (name, b"evil")])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StateError, match="expected files of a federation, each once"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock)
    assert sorted(tmp_path.iterdir()) == before


def test_a_second_file_of_a_name_takes_not_the_firsts_place(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    backup(stage.folder, home, tmp_path / "b")
    members = members_of(tmp_path / "b")
    twice = ("federation/issuing.key", b"another key")
    forged(tmp_path / "b", [*members.items(), twice])
    with pytest.raises(StateError, match=r"each once, got 'federation/issuing\.key' twice"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock)


def test_a_member_that_was_exchanged_is_named(stage: Stage, home: Path, tmp_path: Path) -> None:
    """Same length, another content: the manifest knows."""
    backup(stage.folder, home, tmp_path / "b")
    data = (tmp_path / "b").read_bytes()
    key = members_of(tmp_path / "b")["federation/issuing.key"]
    other = key[:60] + (b"A" if key[60:61] != b"A" else b"B") + key[61:]
    (tmp_path / "b").write_bytes(data.replace(key, other))
    with pytest.raises(StateError, match=r"federation/issuing\.key as it was written, got other"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock)


def test_a_key_of_another_ca_is_found(stage: Stage, home: Path, tmp_path: Path) -> None:
    """Its hashes are right: whoever forged it could reckon them."""
    backup(stage.folder, home, tmp_path / "b")
    other = made_server(tmp_path / "other")
    members = members_of(tmp_path / "b")
    members["federation/issuing.key"] = (other.folder / "issuing.key").read_bytes()
    forged(tmp_path / "b", list(members.items()))
    with pytest.raises(StateError, match=r"the key of a certificate in issuing\.pem"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock)
    members["federation/ca.pem"] = (other.folder / "ca.pem").read_bytes()
    forged(tmp_path / "b", list(members.items()))
    with pytest.raises(StateError, match="one federation's files"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock)
    assert not (tmp_path / "new" / "federations" / "wards").exists()


def test_a_link_in_the_servers_directory_is_not_followed(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    """Else whoever may write a ticket's name could have the backup carry any file away."""
    (tmp_path / "shadow").write_text("root:secret")
    os.symlink(tmp_path / "shadow", stage.folder / "tickets" / "r-2.key")
    with pytest.raises(StateError, match=r"r-2\.key"):
        backup(stage.folder, home, tmp_path / "b")


def test_a_sealed_backup_that_was_cut_between_two_pieces_is_no_shorter_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sealing, "COST", 4)
    out = io.BytesIO()
    sealer = sealing.Sealer(out, SECRET, b"head")
    sealer.write(bytes(2 * PIECE + 5))
    sealer.close()
    start = SALT + 1
    for pieces in (1, 2):
        cut = io.BytesIO(out.getvalue()[: start + pieces * (PIECE + TAG)])
        with pytest.raises(StateError, match=f"damage in MiB {pieces}"):
            sealing.Unsealer(cut, SECRET, b"head", "b").read(4 * PIECE)


def test_a_sealed_backup_asks_for_no_more_memory_than_its_own_would() -> None:
    head = MAGIC + b"s" + bytes(SALT) + bytes((sealing.MOST_COST + 1,))
    with pytest.raises(StateError, match="a sealed backup"):
        Unpacker(io.BytesIO(head + bytes(100)), "b", SECRET)


def test_a_manifest_without_end_is_not_read() -> None:
    text = json.dumps({"about": {}, "members": []}).encode()
    data = MAGIC + b"p" + bytes(2) + struct.pack(">I", 1 << 31) + text
    with pytest.raises(StateError, match="a manifest of at most"):
        Unpacker(io.BytesIO(data + hashlib.sha256(text).digest()), "b", None).unpack(
            form.known, lambda *_: None
        )


def test_the_member_list_never_goes_back(stage: Stage, home: Path, tmp_path: Path) -> None:
    """A device saw a list that was signed after the backup; the restored one is newer still."""

    def listed() -> MemberList:
        key, raw = authority(stage.folder).key.public_key(), (stage.folder / "members.list")
        return MemberList.open(raw.read_bytes(), [key], "wards")

    stage.issuer.refresh()
    old = listed()
    file = tmp_path / "wards.umbel"
    backup(stage.folder, home, file)
    stage.clock.now += timedelta(minutes=5)
    stage.issuer.remove("press-2")
    seen = listed()
    restored(home, file, stage)
    assert old.epoch < seen.epoch < listed().epoch
    assert len(seen.revoked) == 2
    assert listed().revoked == old.revoked  # only the operator knows of the second


def test_a_token_is_not_used_twice_by_way_of_a_backup(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    token = stage.token("press-5")
    file = tmp_path / "wards.umbel"
    backup(stage.folder, home, file)
    stage.issuer.enrol(Keys().enrol(token))
    made = restored(home, file, stage)
    assert made.revoked == ("press-4", "press-5")
    with pytest.raises(Declined, match="token revoked"):
        stage.again().enrol(Keys().enrol(token))
    later = stage.again().enrol(Keys().enrol(stage.token("press-5")))
    assert later.name == "press-5"


def test_a_plain_backup_does_not_take_a_sealed_ones_place(
    stage: Stage, home: Path, tmp_path: Path
) -> None:
    """Who can write where backups lie has no passphrase, and needs none for a plain one."""
    backup(stage.folder, home, tmp_path / "b")
    with pytest.raises(StateError, match="that a passphrase seals, got a plain one"):
        restore(tmp_path / "b", tmp_path / "new", clock=stage.clock, passphrase=SECRET)
    assert not (tmp_path / "new").exists()
