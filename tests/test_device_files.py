"""A device's directory: what may stand in it, and who may have written it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients.device_files import DeviceFiles, device_files, host, own_policy
from umbel.protocol.certificates import fingerprint
from umbel.protocol.errors import BadCertificate, SettingsError
from umbel.tests.federations import made

if TYPE_CHECKING:
    from pathlib import Path

# Later than any certificate made while the suite runs: this line is read when it is collected.
NOW = datetime.now(UTC) + timedelta(hours=2)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two devices."""
    folder = tmp_path_factory.mktemp("pristine") / "federation"
    made(folder, 2)
    return folder


@pytest.fixture
def device(pristine: Path) -> Path:
    """A device's directory, restored to what enrolment wrote."""
    kept = pristine.with_name("kept")
    if kept.exists():
        shutil.rmtree(pristine)
        shutil.copytree(kept, pristine)
    else:
        shutil.copytree(pristine, kept)
    return pristine / "nodes" / "edge-0"


def edited(device: Path, name: str, old: str, new: str) -> None:
    file = device / name
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def test_what_enrolment_wrote_is_read(device: Path) -> None:
    files = DeviceFiles.read(device)
    assert (files.federation, files.gateway, files.gateway_name) == (
        "tested", "127.0.0.1:1", "127.0.0.1"
    )  # fmt: skip
    assert (files.ddp, files.memory, files.journal) == (0, None, device / "journal")
    identity = files.identity(NOW)
    assert identity.id == files.id
    assert files.membership(NOW).verifier.member(identity.certificate, NOW).site == "edge-0"
    tls = files.tls(NOW)
    assert tls.root == (device / "ca.pem").read_bytes()
    assert b"PRIVATE KEY" in tls.key
    assert "PRIVATE" not in repr(tls)
    assert "Ed25519" not in repr(identity)


def test_the_ca_is_the_sha256_of_its_der(device: Path) -> None:
    pem = subprocess.run(
        ["openssl", "x509", "-in", device / "ca.pem", "-outform", "DER"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert DeviceFiles.read(device).ca() == fingerprint(pem)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gateway", "gatewey", r"device.toml:3: gatewey: expected one of the keys"),
        ('id = "', 'id = "x', r"device.toml:2: id: expected 32 lower-case hex digits"),
        ('federation = "tested"', "", r"federation: expected 1 to 63 .*got 'nothing'; enrol anew"),
        ('federation = "tested"', 'federation = "other"', r"trust.federation: expected other"),
        ("127.0.0.1:1", "127.0.0.1", r"gateway: expected 'host:port'"),
        ("127.0.0.1:1", "elsewhere:1", r"gateway: expected a name in trust.gateways"),
        ('id = "', 'memory = 10\nid = "', r"memory: expected an integer, 268435456 or more"),
        ("gateway", "[gateway", r"device.toml: expected valid TOML"),
    ],
)
def test_a_wrong_device_toml_names_its_line(device: Path, old: str, new: str, words: str) -> None:
    edited(device, "device.toml", old, new)
    with pytest.raises(SettingsError, match=words):
        DeviceFiles.read(device)


@pytest.mark.parametrize("name", ["device.toml", "policy.toml", "ca.pem", "signing.pem", "tls.pem"])
def test_a_file_that_others_may_write_is_refused(device: Path, name: str) -> None:
    (device / name).chmod(0o666)
    with pytest.raises(SettingsError, match=f"{name}: expected no write permission"):
        everything(device)


@pytest.mark.parametrize("name", ["signing.key", "tls.key"])
def test_a_key_that_others_may_read_is_refused(device: Path, name: str) -> None:
    (device / name).chmod(0o640)
    with pytest.raises(SettingsError, match=f"{name}: expected mode 0600, got 'mode 0640'"):
        everything(device)


@pytest.mark.parametrize("name", ["signing.key", "tls.key"])
def test_the_key_of_another_device_is_refused(device: Path, name: str) -> None:
    shutil.copy(device.with_name("edge-1") / name, device / name)
    with pytest.raises(SettingsError, match="the key of the certificate beside it"):
        everything(device)


def test_the_tls_certificate_of_another_device_is_refused(device: Path) -> None:
    for name in ("tls.pem", "tls.key"):
        shutil.copy(device.with_name("edge-1") / name, device / name)
    with pytest.raises(BadCertificate, match=r"tls.pem: node: expected"):
        everything(device)


def test_the_signing_certificate_of_another_device_is_refused(device: Path) -> None:
    for name in ("signing.pem", "signing.key"):
        shutil.copy(device.with_name("edge-1") / name, device / name)
    with pytest.raises(BadCertificate, match="id of the message"):
        everything(device)


def test_certificates_that_have_expired_are_refused(device: Path) -> None:
    files, later = DeviceFiles.read(device), NOW + timedelta(days=8)
    with pytest.raises(BadCertificate, match=r"tls.pem: it ended .*, 25 hours later: renew"):
        files.tls(later)
    with pytest.raises(BadCertificate, match="expired on"):
        files.identity(later)


def test_a_key_file_that_is_none_is_refused_without_quoting_it(device: Path) -> None:
    (device / "tls.key").write_text("SECRET", "utf-8")
    with pytest.raises(SettingsError, match="a PEM private key") as caught:
        everything(device)
    assert "SECRET" not in str(caught.value)


def test_a_key_that_openssl_stumbles_over_is_refused(device: Path) -> None:
    lines = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n"
    der = bytes.fromhex("3010020100300506032b657004060404a7c5fdb4")  # an Ed25519 key of 4 bytes
    (device / "signing.key").write_text(lines.format(b64encode(der).decode()), "utf-8")
    with pytest.raises(SettingsError, match="a PEM private key"):
        everything(device)


def test_a_certificate_whose_key_is_of_no_known_kind_is_refused(device: Path) -> None:
    pem = x509.load_pem_x509_certificate((device / "tls.pem").read_bytes())
    der = pem.public_bytes(Encoding.DER)
    kind = bytes.fromhex("06072a8648ce3d0201")  # id-ecPublicKey
    made = b64encode(der.replace(kind, kind[:-1] + b"\x7f"))
    text = b"-----BEGIN CERTIFICATE-----\n" + made + b"\n-----END CERTIFICATE-----\n"
    (device / "tls.pem").write_bytes(text)
    with pytest.raises(SettingsError, match="the certificate beside it cannot be read"):
        DeviceFiles.read(device).tls(NOW)


def test_without_a_trust_anchor_there_is_no_device(device: Path) -> None:
    (device / "policy.toml").unlink()
    with pytest.raises(SettingsError, match=r"trust.federation: expected what enrolment wrote"):
        DeviceFiles.read(device)


def test_the_environment_names_the_device(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = device_files({"UMBEL_DEVICE": str(device)})
    assert found is not None
    assert found.directory == device
    assert device_files({}) is None
    assert own_policy({"UMBEL_DEVICE": str(device)}) == found.policy


def test_without_a_device_the_users_own_policy_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    assert own_policy({}).required
    (tmp_path / "policy.toml").write_text("[secure]\nrequired = false\n", "utf-8")
    assert not own_policy({}).required


@pytest.mark.parametrize(
    ("address", "name"),
    [("a.example:1", "a.example"), ("[::1]:65535", "::1"), ("a.example", "a.example")],
)
def test_host(address: str, name: str) -> None:
    assert host(address) == name


def test_limits_hold_in_the_process_and_what_it_starts() -> None:
    program = (
        "from umbel.clients.device_files import no_core_dumps, limit_memory\n"
        "import resource, subprocess, sys\n"
        "no_core_dumps(); limit_memory(1 << 34)\n"
        "see = 'import resource as r; print(r.getrlimit(r.RLIMIT_CORE)[0], "
        "r.getrlimit(r.RLIMIT_AS)[0])'\n"
        "subprocess.run([sys.executable, '-c', see])\n"
    )
    soft = resource.getrlimit(resource.RLIMIT_AS)[1]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    bound = 1 << 34 if soft == resource.RLIM_INFINITY else min(1 << 34, soft)
    assert done.stdout.split() == ["0", str(bound)]


def everything(device: Path) -> None:
    """Read all that a session needs."""
    files = DeviceFiles.read(device)
    files.tls(NOW)
    files.identity(NOW)


def test_files_of_another_user_are_refused(device: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(device / "tls.key", 12345, -1)
    with pytest.raises(SettingsError, match="a file of this user or root"):
        everything(device)
