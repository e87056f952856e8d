"""`umbel server support`: secrets planted everywhere, and none of them in the bundle."""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import zipfile
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel import cli
from umbel.host.bundle import LEFT_OUT, LOG_TAIL, Bundle
from umbel.host.known_secrets import Secrets
from umbel.protocol.errors import StateError
from umbel.server import doctor, support
from umbel.server.ledger import Ledger, RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.tests.care_stage import made_server

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.tests.issuing import Stage

PASSPHRASE = "correct horse battery staple"  # noqa: S105 - planted
APP_SECRET = "app-key-3f9a77c1d2"  # noqa: S105 - in an app's own configuration


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "probes", lambda _: [])  # test_doctor*.py has them
    return tmp_path / "home"


@pytest.fixture
def stage(home: Path) -> Stage:
    """A server with logs, a passphrase that somebody left there, and a run."""
    made = made_server(home)
    (made.folder / "logs").rmdir()
    (made.folder / "logs").mkdir(mode=0o700)
    private(made.folder / "pass.txt", PASSPHRASE.encode() + b"\n")
    (made.folder / "tickets" / "r-1.key").chmod(0o600)
    with RunDirectory.create(home, "r-1") as run:
        config = {
            "flower-run": "77", "federation": "wards", "rounds": 3,
            "config": {"wandb-key": APP_SECRET}, "started": {"app": f"/apps/{APP_SECRET}"},
        }  # fmt: skip
        run.ledger.create_run("r-1", "2027-03-01T12:00:00Z", config, "on")
        run.ledger.event("late", round=1, attempt=0, node="ab" * 16, code="x", detail={"bytes": 7})
        run.ledger.event("tested", round=1, attempt=0, code="5e" * 32, detail={"loss": 0.12345})
        record = RoundRecord(
            round=1, attempt=0, phase="train", outcome="finished", metrics={"loss": 0.54321}
        )
        run.ledger.commit_round(record)
    return made


def private(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def number_of(file: Path) -> int:
    key = load_pem_private_key(file.read_bytes(), None)
    return int(key.private_numbers().private_value)  # type: ignore[union-attr]


def planted(stage: Stage) -> list[bytes]:
    """Return every secret of the server as somebody could have written it down."""
    ticket = bytes(range(32))
    found = [
        PASSPHRASE.encode(), base64.b64encode(PASSPHRASE.encode()), stage.token("x").text.encode(),
        ticket, ticket.hex().encode(), base64.b64encode(ticket), APP_SECRET.encode(),
    ]  # fmt: skip
    for path in stage.folder.rglob("*.key"):
        if path.parent.name != "tickets":
            number = number_of(path)
            found += path.read_bytes().split(b"\n")[1:4]
            found += [f"{number:x}".encode(), f"{number:X}".encode(), str(number).encode()]
            found.append(base64.b64encode(b"xx" + number.to_bytes(32, "big")))
    return found


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_key_whose_number_begins_with_zeros_is_known_without_them(tmp_path: Path) -> None:
    number = int("b5" * 30, 16)  # two bytes shorter than a key of P-256 may be
    key = ec.derive_private_key(number, ec.SECP256R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    private(tmp_path / "a.key", text)
    secrets = Secrets()
    secrets.add_directory(tmp_path, re.compile("none"))
    for digits in (f"{number:x}", f"{number:X}", f"{number:064x}"):
        assert secrets.found_in(f"the key is {digits}".encode()) == "a.key"
    assert not secrets.found_in(f"the key is {number - 1:x}".encode())


def test_planted_secrets_are_in_no_part(stage: Stage, home: Path, tmp_path: Path) -> None:
    secrets = planted(stage)
    for name in (*support.LOGS, "serverapp", "superexec"):
        lines = [b"core: all is well", *(b"says " + secret + b"!" for secret in secrets[:-1])]
        lines.append((stage.folder / "issuing.key").read_bytes())
        (stage.folder / "logs" / f"{name}.log").write_bytes(b"\n".join(lines).replace(
            APP_SECRET.encode(), b"nothing"
        ))  # fmt: skip
    text = (stage.folder / "server.toml").read_text()
    private(stage.folder / "server.toml", f"# {PASSPHRASE}\n{text}".encode())
    out = tmp_path / "report.zip"
    support.gather(stage.folder, home).write(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    parts = contents(out)
    assert parts.keys() == {
        "README.txt", "versions.json", "doctor.json", "status.json", "server.toml", "files.json",
        "runs/r-1.json", *(f"logs/{name}.log" for name in support.LOGS),
    }  # fmt: skip
    everything = b"\n".join([*parts.values(), out.read_bytes()])
    for secret in secrets:
        assert secret not in everything, secret
    for part in (b"0.54321", b"0.12345", b"PRIVATE KEY", str(home).encode()):
        assert part not in everything
    log = parts["logs/core.log"]
    assert log.startswith(b"core: all is well\n" + LEFT_OUT)
    assert b"name = " in parts["server.toml"]
    run = json.loads(parts["runs/r-1.json"])
    assert run["settings"] == {"rounds": 3}
    assert [(e["kind"], e["detail"]) for e in run["events"]] == [
        ("late", {"bytes": 7}), ("tested", {}),
    ]  # fmt: skip
    names = {item["path"] for item in json.loads(parts["files.json"])}
    assert {"pass.txt", "issuing.key", "tickets/r-1.key"} <= names


@pytest.mark.parametrize("where", ["cause", "site"])
def test_a_secret_that_came_in_by_an_open_door_ends_it(
    where: str, stage: Stage, home: Path, tmp_path: Path
) -> None:
    """Somebody wrote it into a record, or gave it as a node's site."""
    if where == "site":
        stage.token("y", site=PASSPHRASE)
    else:
        with Ledger(home / "runs" / "r-1" / "ledger.sqlite") as ledger:
            record = RoundRecord(
                round=2, attempt=0, phase="train", outcome="void", cause=f"it said {PASSPHRASE}"
            )
            ledger.commit_round(record)
    bundle = support.gather(stage.folder, home)
    with pytest.raises(StateError, match=r"expected no secret, got pass\.txt") as error:
        bundle.write(tmp_path / "report.zip")
    assert PASSPHRASE not in str(error.value)
    assert not (tmp_path / "report.zip").exists()


def test_the_command_says_what_it_wrote(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "report.zip")
    assert cli.main(["server", "support", out, "--format", "json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert set(about["parts"]) == contents(tmp_path / "report.zip").keys()
    assert cli.main(["server", "support", out]) == 2
    assert "expected a file that is not there" in capsys.readouterr().err
    versions = json.loads(contents(tmp_path / "report.zip")["versions.json"])
    assert versions["packages"]["flwr"].startswith("1.42")
    assert "UMBEL_HOME" in versions["variables"]  # its name, not what it says


# ---- what is found -------------------------------------------------------------------------------


@given(secret=st.binary(min_size=24, max_size=60), before=st.binary(max_size=5), after=st.binary())
@settings(max_examples=200, derandomize=True, deadline=None)
def test_base64_hides_nothing_wherever_a_secret_begins(
    secret: bytes, before: bytes, after: bytes
) -> None:
    known = Secrets()
    known.add(secret, "it")
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        assert known.found_in(encode(before + secret + after)) == "it"
    assert known.found_in(before + secret + after) == "it"
    assert known.found_in((before + secret + after).hex().encode()) == "it"


def test_what_is_no_secret_is_none(tmp_path: Path) -> None:
    private(tmp_path / "short", b"umbel")
    private(tmp_path / "core.json", b'{"port": 1234567890}')
    (tmp_path / "public").write_bytes(b"everybody may read this")
    (tmp_path / "public").chmod(0o644)
    private(tmp_path / "large", b"x" * (1 << 17))
    os.symlink("/etc/passwd", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    known = Secrets()
    known.add_directory(tmp_path, support.HARMLESS)
    for text in (b"umbel", b'{"port": 1234567890}', b"everybody may read this", b"root:x:0:0"):
        assert known.found_in(text) == ""
    assert known.found_in(b"umbel1-" + b"A" * 60) == "a token"


def test_logs_are_bounded_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "long.log").write_bytes(b"first\n" + b"line\n" * LOG_TAIL + b"last\n")
    os.symlink(tmp_path / "long.log", tmp_path / "link.log")
    bundle = Bundle(Secrets(), {})
    for name in ("long.log", "link.log", "absent.log"):
        bundle.add_log(name, tmp_path / name)
    bundle.write(tmp_path / "out.zip")
    found = contents(tmp_path / "out.zip")
    assert found.keys() == {"long.log"}
    assert len(found["long.log"]) <= LOG_TAIL + 100
    assert found["long.log"].startswith(b"[older lines are left out]\n")
    assert found["long.log"].endswith(b"last\n")
