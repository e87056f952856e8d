"""A development federation's files: modes, certificates, what is kept and what is renewed."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from umbel.clients.policy import Policy
from umbel.host.processes import Supervisor
from umbel.host.programs import Program
from umbel.protocol.errors import StateError
from umbel.protocol.membership import Membership
from umbel.protocol.verification import Verifier
from umbel.server.flower_programs import SUPEREXEC
from umbel.simulation.dev_federation import (
    Client,
    DevFederation,
    prepare,
    renew,
    write_devices,
)
from umbel.tests.issuing import Keys, Stage

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CLIENTS = (Client(name="edge-0"), Client(name="edge-1"), Client(name="gpu-0", ddp=2))
_PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
KEYS = {"ca.key", "gateway.key", "front.key", "superlink.key", "signing.key", "tls.key", "flower"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DevFederation:
    """A federation of three, made once."""
    folder = tmp_path_factory.mktemp("home") / "dev"
    federation = prepare(folder, "dev", CLIENTS, NOW)
    write_devices(
        federation,
        CLIENTS,
        gateway="127.0.0.1:7001",
        superlink="127.0.0.1:7002",
        app=b"a" * 32,
        secure=True,
        rounds=26,
    )
    return federation


def _copied(made: DevFederation, to: Path) -> Path:
    subprocess.run(["cp", "-a", str(made.folder), str(to)], check=True)
    return to


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _registry(federation: DevFederation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((federation.folder / "nodes.json").read_text())
    return found


def test_every_file_is_there_and_keys_are_private(made: DevFederation) -> None:
    expected = {f"{n}.{e}" for n in ("ca", "gateway", "front", "superlink") for e in ("pem", "key")}
    device = {"device.toml", "policy.toml", "ca.pem", "flower", "flower.pub"}
    device |= {f"{n}.{e}" for n in ("signing", "tls") for e in ("pem", "key")}
    for client in CLIENTS:
        expected |= {f"nodes/{client.name}/{name}" for name in device}
    assert set(_content(made.folder)) == expected | {"nodes.json", "members.list"}
    for path in [made.folder, *made.folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o022, path
        if path.is_dir() or path.name in KEYS:
            assert mode == (0o700 if path.is_dir() else 0o600), path


def test_members_verify_and_are_who_the_registry_says(made: DevFederation) -> None:
    verifier = Verifier(_certificate(made.ca), "dev")
    ids = set()
    for entry in _registry(made):
        leaf = _certificate(made.device(entry["name"]) / "signing.pem")
        member = verifier.member(leaf.public_bytes(Encoding.DER), NOW, bytes.fromhex(entry["id"]))
        assert (member.site, member.fingerprint.hex()) == (
            entry["site"],
            entry["signing_fingerprint"],
        )
        ids.add(entry["id"])
    assert [entry["name"] for entry in _registry(made)] == ["edge-0", "edge-1", "gpu-0"]
    assert len(ids) == 3


def test_every_key_belongs_to_its_certificate(made: DevFederation) -> None:
    pairs = [made.folder / "gateway", made.folder / "superlink", made.folder / "ca"]
    pairs += [made.device(c.name) / n for c in CLIENTS for n in ("signing", "tls")]
    publics = set()
    for pair in pairs:
        key = load_pem_private_key(pair.with_suffix(".key").read_bytes(), None)
        assert key.public_key() == _certificate(pair.with_suffix(".pem")).public_key()
        publics.add(pair.with_suffix(".key").read_bytes())
    assert len(publics) == len(pairs)


def test_servers_answer_to_their_names_for_openssl(made: DevFederation) -> None:
    authority = made.folder / "ca.pem"
    for name in ("gateway", "front", "superlink"):
        leaf = made.folder / f"{name}.pem"
        at = str(int(NOW.timestamp()))
        for option, host in (
            ("-verify_hostname", "localhost"),
            ("-verify_ip", "127.0.0.1"),
            ("-verify_ip", "::1"),
        ):
            done = subprocess.run(
                ["openssl", "verify", "-x509_strict", "-attime", at, "-purpose", "sslserver",
                 "-CAfile", str(authority), option, host, str(leaf)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(leaf, leaf.with_suffix(".key"))


def test_the_flower_key_is_what_ssh_keygen_makes(made: DevFederation) -> None:
    for entry in _registry(made):
        file = made.device(entry["name"]) / "flower"
        key = load_ssh_private_key(file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        assert load_ssh_public_key(file.with_suffix(".pub").read_bytes()) == key.public_key()
        assert load_pem_public_key(bytes.fromhex(entry["flower_key"])) == key.public_key()


def test_a_device_reads_its_policy_as_it_was_meant(made: DevFederation) -> None:
    for client, entry in zip(CLIENTS, _registry(made), strict=True):
        folder = made.device(client.name)
        policy = Policy.load(folder / "policy.toml")
        assert policy.required
        assert policy.apps == (b"a" * 32,)
        assert (policy.min_members, policy.min_survivors) == (3, 3)
        assert policy.rounds_per_day == 1000  # the built-in value is enough for 26 rounds
        assert Path(str(policy.ca)).read_bytes() == made.ca.read_bytes()
        lines = (folder / "device.toml").read_text().splitlines()
        assert f'id = "{entry["id"]}"' in lines
        assert ("ddp = 2" in lines) == (client.name == "gpu-0")


def test_the_policy_of_a_plain_and_long_run(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    federation = prepare(folder, "dev", CLIENTS, NOW)
    write_devices(
        federation, CLIENTS, gateway="127.0.0.1:1", superlink="127.0.0.1:2", app=bytes(32),
        secure=False, rounds=5000,
    )  # fmt: skip
    policy = Policy.load(folder / "nodes" / "edge-0" / "policy.toml")
    assert (policy.required, policy.rounds_per_day) == (False, 5000)


def test_what_exists_is_kept(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    before = _content(folder)
    again = prepare(folder, "dev", CLIENTS, NOW + timedelta(days=4))
    changed = {name for name, content in _content(folder).items() if content != before[name]}
    assert changed == {"members.list"}
    assert again.nodes == made.nodes


def test_a_list_is_signed_for_a_week_at_each_start_and_none_is_older_than_one_before(
    made: DevFederation, tmp_path: Path
) -> None:
    folder = _copied(made, tmp_path / "dev")
    epochs = []
    for now in (NOW + timedelta(days=4), NOW, NOW):  # a clock that was set back, too
        prepare(folder, "dev", CLIENTS, now)
        known = Membership(_certificate(folder / "ca.pem"), "dev")
        assert known.take((folder / "members.list").read_bytes(), now)
        known.check(now + timedelta(days=6))
        epochs.append(known.epoch)
    assert epochs == sorted(set(epochs))


def test_once_a_day_the_list_is_signed_anew_and_leaves_are_renewed_near_their_end(
    made: DevFederation, tmp_path: Path
) -> None:
    folder = _copied(made, tmp_path / "dev")
    before = _content(folder)
    assert not renew(folder, NOW + timedelta(hours=23))
    assert _content(folder) == before
    assert renew(folder, NOW + timedelta(days=6))
    after = _content(folder)
    changed = {name for name, content in after.items() if content != before[name]}
    leaves = {f"nodes/{c.name}/{n}.pem" for c in CLIENTS for n in ("signing", "tls")}
    assert changed == leaves | {"nodes.json", "members.list"}
    assert not renew(folder, NOW + timedelta(days=6, hours=1))
    (folder / "members.list").unlink()
    assert renew(folder, NOW + timedelta(days=6, hours=1))


def test_a_keeper_signs_the_list_anew(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    prepare(folder, "dev", CLIENTS, datetime.now(UTC) - timedelta(days=2))
    command = (sys.executable, "-c", "import time; time.sleep(600)", "--runtime-api-address", "h:1")
    supervisor = Supervisor(folder)
    supervisor.start(Program(name=SUPEREXEC, command=command))
    old = (folder / "members.list").read_bytes()
    supervisor.hand_over()
    keeper = subprocess.Popen([sys.executable, "-m", "umbel.simulation.flower_keeper", str(folder)])
    try:
        until = time.monotonic() + 60
        while (folder / "members.list").read_bytes() == old:
            assert time.monotonic() < until, "nothing was signed"
            time.sleep(0.1)
    finally:
        keeper.terminate()
        keeper.wait(60)
        for run in supervisor._runs.values():  # the children of this process all the same
            assert run.child is not None
            run.child.wait(60)
    known = Membership(_certificate(folder / "ca.pem"), "dev")
    assert known.take((folder / "members.list").read_bytes(), datetime.now(UTC))


def test_leaves_are_renewed_near_their_end_with_id_and_key(
    made: DevFederation, tmp_path: Path
) -> None:
    folder = _copied(made, tmp_path / "dev")
    before = _content(folder)
    later = NOW + timedelta(days=6)
    renewed = prepare(folder, "dev", CLIENTS, later)
    after = _content(folder)
    changed = {name for name, content in after.items() if content != before[name]}
    leaves = {f"nodes/{c.name}/{n}.pem" for c in CLIENTS for n in ("signing", "tls")}
    assert changed == leaves | {"nodes.json", "members.list"}
    verifier = Verifier(_certificate(renewed.ca), "dev")
    for old, new in zip(made.nodes, renewed.nodes, strict=True):
        leaf = _certificate(renewed.device(new.name) / "signing.pem")
        verifier.member(
            leaf.public_bytes(Encoding.DER), later + timedelta(days=6), bytes.fromhex(old.id)
        )
        assert new.signing_fingerprint != old.signing_fingerprint


def test_servers_are_renewed_within_their_ninety_days(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    prepare(folder, "dev", CLIENTS, NOW + timedelta(days=61))
    for name in ("gateway", "front", "superlink"):
        assert _certificate(folder / f"{name}.pem").not_valid_after_utc == NOW + timedelta(days=151)
        assert (folder / f"{name}.key").read_bytes() == (made.folder / f"{name}.key").read_bytes()


def test_another_ca_issues_everything_anew(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    (folder / "ca.pem").unlink()
    federation = prepare(folder, "dev", CLIENTS, NOW)
    verifier = Verifier(_certificate(federation.ca), "dev")
    for old, new in zip(made.nodes, federation.nodes, strict=True):
        leaf = _certificate(federation.device(new.name) / "signing.pem")
        verifier.member(leaf.public_bytes(Encoding.DER), NOW, bytes.fromhex(old.id))
        pinned = federation.device(new.name) / "ca.pem"
        assert pinned.read_bytes() == federation.ca.read_bytes()


def test_the_registry_names_who_was_asked_for(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    federation = prepare(folder, "dev", (*CLIENTS[1:], Client(name="edge-9")), NOW)
    assert [entry["name"] for entry in _registry(federation)] == ["edge-1", "gpu-0", "edge-9"]
    assert federation.nodes[:2] == made.nodes[1:]
    assert (folder / "nodes" / "edge-0" / "tls.key").exists()


def test_a_damaged_file_is_one_line(made: DevFederation, tmp_path: Path) -> None:
    folder = _copied(made, tmp_path / "dev")
    (folder / "nodes" / "edge-0" / "tls.key").write_text("nonsense")
    with pytest.raises(StateError, match="remove the folder"):
        prepare(folder, "dev", CLIENTS, NOW)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nodes/edge-0/device.toml", "id = " + "[" * 100_000),
        ("nodes/edge-0/device.toml", "id = 7"),
        ("ca.key", _PEM.format("MBICAQAwBQYDK2VwBAYEBKfF/bQ=")),  # an Ed25519 key of four bytes
    ],
)
def test_a_file_that_a_reader_stumbles_over_is_one_line(
    made: DevFederation, tmp_path: Path, name: str, text: str
) -> None:
    folder = _copied(made, tmp_path / "dev")
    (folder / name).write_text(text)
    with pytest.raises(StateError, match="remove the folder"):
        prepare(folder, "dev", CLIENTS, NOW)


def test_a_ca_whose_key_is_another_is_made_anew(made: DevFederation, tmp_path: Path) -> None:
    """Whoever was killed between writing the one and the other left such a pair."""
    folder = _copied(made, tmp_path / "dev")
    other = prepare(tmp_path / "other", "dev", (), NOW)
    (folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes())
    again = prepare(folder, "dev", CLIENTS, NOW)
    verifier = Verifier(_certificate(again.ca), "dev")
    for client in CLIENTS:
        leaf = _certificate(again.device(client.name) / "signing.pem")
        verifier.member(leaf.public_bytes(Encoding.DER), NOW)


def test_a_real_federation_is_never_made_a_development_one(tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    made = Stage(folder)
    made.issuer.enrol(Keys().enrol(made.token()))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(StateError, match="one of `umbel server init`"):
        prepare(folder, "wards", [Client(name="edge-0")], datetime.now(UTC))
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
