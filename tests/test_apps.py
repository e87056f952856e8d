"""Which bundles may run, and that what waits is bounded and stays as it came."""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.clients import apps as apps_module
from umbel.clients.apps import APPROVED, MOST_WAITING, REJECTED, Apps
from umbel.clients.bundle import Bundle
from umbel.clients.policy import Policy
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.bundles import SIGNATURES, sign
from umbel.protocol.errors import Refused, StateError
from umbel.tests.fabs import fab, packed

if TYPE_CHECKING:
    from pathlib import Path

ONE = fab("1.0.0", code__py=b"one\n")
TWO = fab("1.0.1", code__py=b"two\n")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = KEY.public_key().public_bytes_raw()
ASKING = Policy(approve=True)


def sha(content: bytes) -> str:
    return sha256(content).hexdigest()


def signed(content: bytes, key: Ed25519PrivateKey = KEY) -> bytes:
    found = Bundle.read(content)
    return packed({**found.files, SIGNATURES: sign(found.digests, key, None)})


def refused(apps: Apps, policy: Policy, content: bytes) -> str:
    with pytest.raises(Refused) as caught:
        apps.admit(policy, content)
    assert (caught.value.reason, caught.value.key) == (pb.REASON_APP_NOT_ALLOWED, "trust.apps")
    return str(caught.value)


@pytest.fixture
def apps(tmp_path: Path) -> Apps:
    return Apps(tmp_path)


@pytest.mark.parametrize(
    ("policy", "content", "rule"),
    [
        ({}, ONE, "open"),
        ({}, b"no bundle", "open"),
        ({"apps": (sha256(ONE).digest(),)}, ONE, "listed"),
        ({"apps": (sha256(b"no bundle").digest(),)}, b"no bundle", "listed"),
        ({"publishers": (PUBLIC,)}, signed(ONE), f"signed {PUBLIC.hex()}"),
        ({"publishers": (PUBLIC,), "approve": True}, signed(ONE), f"signed {PUBLIC.hex()}"),
        ({"publishers": (bytes(32), PUBLIC), "apps": ()}, signed(ONE), f"signed {PUBLIC.hex()}"),
    ],
)
def test_what_may_run(apps: Apps, policy: dict[str, Any], content: bytes, rule: str) -> None:
    assert apps.admit(Policy(**policy), content) == rule
    assert apps.still(Policy(**policy), sha(content), rule)


@pytest.mark.parametrize(
    ("policy", "content", "why"),
    [
        ({"apps": ()}, ONE, "is not in trust.apps, nor signed"),
        ({"apps": (sha256(TWO).digest(),)}, ONE, "is not in trust.apps, nor signed"),
        ({"publishers": ()}, signed(ONE), "nor signed by one of trust.publishers"),
        ({"publishers": (bytes(32),)}, signed(ONE), "nor signed by one of trust.publishers"),
        ({"publishers": (PUBLIC,)}, ONE, "nor signed by one of trust.publishers"),
        ({"publishers": (PUBLIC,)}, b"no bundle", "is none that can be read"),
        ({"approve": True}, b"no bundle", "is none that can be read"),
        ({"approve": True}, ONE, "of tests/tiny 1.0.0 waits for approval: `umbel client apps"),
    ],
)
def test_what_may_not(apps: Apps, policy: dict[str, Any], content: bytes, why: str) -> None:
    said = refused(apps, Policy(**policy), content)
    assert why in said
    assert said.endswith("nothing of it was installed")
    assert not apps.still(Policy(**policy), sha(content), "open")


def test_one_changed_byte_takes_the_signature_away(apps: Apps) -> None:
    found = Bundle.read(signed(ONE))
    changed = packed({**found.files, "code.py": b"onE\n"})
    refused(apps, Policy(publishers=(PUBLIC,)), changed)


def test_a_bundle_waits_is_approved_and_one_changed_byte_waits_again(apps: Apps) -> None:
    refused(apps, ASKING, ONE)
    refused(apps, ASKING, ONE)
    assert [known.state for known in apps.known().values()] == ["waiting"]
    assert apps.read(sha(ONE)) == ONE
    apps.decide(sha(ONE), APPROVED)
    assert apps.admit(ASKING, ONE) == "approved"
    assert apps.still(ASKING, sha(ONE), "approved")
    assert "waits for approval" in refused(apps, ASKING, TWO)
    assert apps.before(sha(TWO)) == sha(ONE)
    refused(apps, Policy(apps=()), ONE)  # an approval counts only where the policy asks for one


def test_who_is_rejected_does_not_run_whoever_lists_or_signs_it(apps: Apps) -> None:
    refused(apps, ASKING, ONE)
    apps.decide(sha(ONE), REJECTED)
    assert not (apps.folder / f"{sha(ONE)}.fab").exists()
    for policy in (Policy(), Policy(apps=(sha256(ONE).digest(),)), ASKING):
        assert "was rejected by this device's owner" in refused(apps, policy, ONE)


def test_a_signed_bundle_is_known_and_an_unseen_one_can_be_rejected(apps: Apps) -> None:
    trusting = Policy(publishers=(PUBLIC,))
    apps.admit(trusting, signed(ONE))
    assert apps.known()[sha(signed(ONE))].state == "signed"
    for content in (signed(ONE), signed(TWO)):  # the second has never come
        apps.decide(sha(content), REJECTED)
        refused(apps, trusting, content)
    with pytest.raises(StateError, match="a kept bundle"):
        apps.decide("00" * 32, APPROVED)


def test_what_waits_is_private_and_bounded_in_number(apps: Apps) -> None:
    many = [fab(f"1.0.{n}") for n in range(MOST_WAITING + 3)]
    for n, content in enumerate(many):
        refused(apps, ASKING, content)
        _aged(apps, sha(content), n)
    kept = {path.name for path in apps.folder.glob("*.fab")}
    assert kept == {f"{sha(content)}.fab" for content in many[3:]}
    assert apps.known().keys() == {sha(content) for content in many[3:]}
    assert stat.S_IMODE(apps.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in apps.folder.iterdir()} == {0o600}


def test_what_is_kept_is_bounded_in_bytes(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    third = fab("1.0.2", code__py=b"six\n")
    monkeypatch.setattr(apps_module, "MOST_BYTES", len(ONE) + max(len(TWO), len(third)))
    refused(apps, ASKING, ONE)
    apps.decide(sha(ONE), APPROVED)
    refused(apps, ASKING, TWO)
    refused(apps, ASKING, third)  # the approved one stays, the one that waited makes room
    assert {path.stem for path in apps.folder.glob("*.fab")} == {sha(ONE), sha(third)}
    apps.decide(sha(third), APPROVED)
    with pytest.raises(StateError, match="reject approved bundles"):
        apps.admit(ASKING, TWO)


def test_what_runs_by_another_rule_is_kept_to_be_compared_with(apps: Apps) -> None:
    policy = Policy(apps=(sha256(ONE).digest(),), approve=True)
    assert apps.admit(policy, ONE) == "listed"
    refused(apps, policy, TWO)
    assert apps.before(sha(TWO)) == sha(ONE)
    refused(apps, ASKING, ONE)  # kept is not approved


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"version": 2, "apps": {}}', '{"version": 1, "apps": []}',
        '{"version": 1, "apps": {"9f": {}}}',
        json.dumps({"version": 1, "apps": {"00" * 32: {"state": "approved"}}}),
        json.dumps({"version": 1, "apps": {"00" * 32: {
            "state": "fine", "app": "a/b", "release": "1", "at": 1}}}),
        json.dumps({"version": 1, "apps": {"00" * 32: {
            "state": "approved", "app": "a/b", "release": "1", "at": "now"}}}),
        json.dumps({"version": 1, "apps": {"00" * 32: {
            "state": "approved", "app": "a/\x1b[2J", "release": "1", "at": 1}}}),
    ],
)  # fmt: skip
def test_a_damaged_index_lets_nothing_run(apps: Apps, text: str) -> None:
    apps.folder.mkdir(mode=0o700)
    (apps.folder / "index.json").write_text(text)
    with pytest.raises(StateError, match="an index of bundles"):
        apps.admit(ASKING, ONE)


def test_an_index_that_others_could_have_written_approves_nothing(apps: Apps) -> None:
    refused(apps, ASKING, ONE)
    apps.decide(sha(ONE), APPROVED)
    (apps.folder / "index.json").chmod(0o666)
    with pytest.raises(StateError, match="no write permission but the owner's"):
        apps.admit(ASKING, ONE)


def test_a_kept_bundle_that_was_changed_is_neither_shown_nor_approved(apps: Apps) -> None:
    refused(apps, ASKING, ONE)
    (apps.folder / f"{sha(ONE)}.fab").write_bytes(TWO)
    with pytest.raises(StateError, match="the bytes that its name says"):
        apps.decide(sha(ONE), APPROVED)
    assert "waits" in refused(apps, ASKING, ONE)


def _aged(apps: Apps, digest: str, at: int) -> None:
    """Say that a bundle came at this second."""
    file = apps.folder / "index.json"
    tree = json.loads(file.read_text())
    tree["apps"][digest]["at"] = at
    file.write_text(json.dumps(tree))
    os.chmod(file, 0o600)
