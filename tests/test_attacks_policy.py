"""A lying server against a device's policy: bundles that may not run, hours, bytes, files."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.clients import landlock
from umbel.clients.app_view import changes
from umbel.clients.apps import APPROVED, REJECTED, Apps
from umbel.clients.bundle import Bundle
from umbel.clients.child import Child
from umbel.clients.confined import _check_roots, around
from umbel.clients.limits import Limits
from umbel.clients.policy import Policy
from umbel.clients.usage import FILE, Usage, Used
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.bundles import SIGNATURES, sign
from umbel.protocol.errors import Malformed, Refused, SettingsError
from umbel.strategies.app import AppRef
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings
from umbel.tests.fabs import PROJECT, fab, packed

PUBLISHER, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
TRUSTING = Policy(publishers=(PUBLISHER.public_key().public_bytes_raw(),))
ASKING = Policy(approve=True)
PLAIN = Bundle.read(fab(code__py=b"good\n"))
NOW = datetime(2030, 3, 1, 10, 30, tzinfo=UTC)


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


def signed(key: Ed25519PrivateKey, **changed: bytes) -> bytes:
    """Return a bundle signed by a key, and then changed."""
    files = {**PLAIN.files, SIGNATURES: sign(PLAIN.digests, key, None)}
    return packed({**files, **{name.replace("__", "."): data for name, data in changed.items()}})


def refused(device: Path, policy: Policy, content: bytes) -> None:
    with pytest.raises(Refused) as caught:
        Apps(device).admit(policy, content)
    assert caught.value.reason == pb.REASON_APP_NOT_ALLOWED


def test_a_server_that_changes_a_signed_bundle_runs_nothing(tmp_path: Path) -> None:
    assert Apps(tmp_path).admit(TRUSTING, signed(PUBLISHER)).startswith("signed")
    refused(tmp_path, TRUSTING, signed(PUBLISHER, code__py=b"evil\n"))
    refused(tmp_path, TRUSTING, signed(PUBLISHER, more__py=b"evil\n"))


def test_a_server_that_signs_a_bundle_itself_runs_nothing(tmp_path: Path) -> None:
    refused(tmp_path, TRUSTING, signed(STRANGER))


def test_a_server_that_sends_a_bundle_which_the_owner_has_not_seen_runs_nothing(
    tmp_path: Path,
) -> None:
    refused(tmp_path, ASKING, fab())
    refused(tmp_path, ASKING, fab())  # a second time is no approval
    refused(tmp_path, Policy(apps=()), fab())


def test_a_server_that_sends_what_was_rejected_again_runs_nothing(tmp_path: Path) -> None:
    refused(tmp_path, ASKING, signed(PUBLISHER))
    Apps(tmp_path).decide(sha256(signed(PUBLISHER)).hexdigest(), REJECTED)
    refused(tmp_path, TRUSTING, signed(PUBLISHER))


def test_a_server_that_had_a_bundle_approved_runs_that_one_only(tmp_path: Path) -> None:
    refused(tmp_path, ASKING, fab())
    Apps(tmp_path).decide(sha256(fab()).hexdigest(), APPROVED)
    assert Apps(tmp_path).admit(ASKING, fab()) == "approved"
    assert not Apps(tmp_path).still(Policy(apps=()), sha256(fab()).hexdigest(), "approved")
    refused(tmp_path, ASKING, fab(code__py=b"evil\n"))


def test_a_bundle_that_writes_outside_of_its_folder_is_not_unpacked() -> None:
    own = PROJECT.format(version="1").encode()
    with pytest.raises(Malformed):
        Bundle.read(packed({"pyproject.toml": own, "../../evil.py": b""}))


def test_a_bundle_that_is_a_zip_bomb_is_not_unpacked() -> None:
    with pytest.raises(Malformed):
        Bundle.read(fab(bomb__py=bytes(1 << 20)), 1 << 19)


def limits(file: Path | None = None, **policy: Any) -> Limits:
    return Limits(Policy(**policy), Usage(file, lambda: NOW), lambda: NOW)


def test_a_server_that_invites_outside_of_the_hours_gets_a_code() -> None:
    for hours in ((), ("00:00-00:01",)):
        with pytest.raises(Refused, match=r"limits\.hours"):
            limits(hours=hours).check()


def test_a_server_that_makes_a_device_restart_gets_no_more_bytes(tmp_path: Path) -> None:
    limits(tmp_path / FILE, bytes_per_day=10**8).begin(40_000_000)  # switched off in the middle
    with pytest.raises(Refused, match=r"limits\.bytes_per_day"):
        limits(tmp_path / FILE, bytes_per_day=10**8).check(20_000_000)


def test_a_server_that_makes_a_device_restart_gets_no_more_rounds(tmp_path: Path) -> None:
    usage = Usage(tmp_path / FILE, lambda: NOW)
    usage.add(Used(rounds=3))
    usage.close()
    assert limits(tmp_path / FILE).rounds() == 3


THIEF = """
import os, numpy as np, umbel

class Thief(umbel.Task):
    def model(self):
        return umbel.MLP(3, 4, 2)

    def train_data(self, site):
        open(os.environ["LOOT"], "rb").read()
        return np.zeros((4, 3), np.float32), np.zeros(4, int)
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_a_bundle_that_reads_beside_its_data_roots_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thief.py").write_text(THIEF)
    (tmp_path / "signing.key").write_text("secret")
    monkeypatch.setenv("LOOT", str(tmp_path / "signing.key"))
    policy = Policy(data_roots=("/srv",), threads=len(os.sched_getaffinity(0)))
    with Child(AppRef(home, "thief:Thief"), around=around(policy, home)) as child:
        arrays = child.arrays()
        with pytest.raises(Refused, match="the task raised"):
            child.train(arrays, Site(), Settings())


@pytest.mark.parametrize("place", ["/etc/umbel", "/usr/local/umbel", "/dev/shm", sys.prefix])  # noqa: S108
def test_a_bundle_with_data_roots_does_not_read_keys_that_lie_in_the_system(place: str) -> None:
    """Every task reads there, whatever the roots are."""
    policy = Policy(data_roots=("/srv/data",))
    _check_roots(policy, Path("/var/lib/umbel/devices/wards"))
    with pytest.raises(SettingsError, match="which every task reads"):
        _check_roots(policy, Path(place) / "devices" / "wards")


def test_a_bundle_hides_no_statement_from_whoever_approves_it() -> None:
    """Python runs all three; the lines must not read as a comment and a dead branch."""
    code = b"ran = []  # as before\rran.append(1)\nif False:\n    pass\n    \x0cran.append(2)\n"
    space: dict[str, list[int]] = {}
    exec(compile(code, "code.py", "exec"), space)  # noqa: S102 - what Python makes of it
    assert space["ran"] == [1, 2]
    shown = next(
        c.lines for c in changes(None, Bundle.read(fab(code__py=code))) if "code" in c.name
    )
    assert "+ran.append(1)" in shown
    assert "+ran = []  # as before\\r" in shown
    assert "+    \\x0cran.append(2)" in shown


def test_a_bundle_in_another_encoding_is_not_shown_as_what_it_is_not() -> None:
    code = b"# coding: utf-7\nran = []  # fine+AAo-ran.append(1)\n"
    space: dict[str, list[int]] = {}
    exec(compile(code, "code.py", "exec"), space)  # noqa: S102 - what Python makes of it
    assert space["ran"] == [1]
    shown = next(
        c.lines for c in changes(None, Bundle.read(fab(code__py=code))) if "code" in c.name
    )
    assert len(shown) == 1
    assert "not shown: no text of UTF-8" in shown[0]
