"""A device that joins meets whoever stands between, and a CA or front that lies."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.clients import granted
from umbel.clients.device_files import DeviceFiles
from umbel.clients.enrol import check_free, enrol
from umbel.clients.front_line import root_of
from umbel.clients.policy import Policy
from umbel.clients.renew import _addresses
from umbel.protocol.certificates import Authority
from umbel.protocol.errors import PeerError, SettingsError
from umbel.tests.issuing import DAY, Keys, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.protocol.enrolment import EnrolAnswer


class Joined:
    """A federation and one node of it."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder)
        self.keys = Keys()
        self.root = x509.load_pem_x509_certificate(self.stage.issuer.ca())
        self.answer = self.stage.issuer.enrol(self.keys.enrol(self.stage.token()))

    def check(
        self, answer: EnrolAnswer, node: bytes | None = None, newest: bytes | None = None
    ) -> None:
        """Look at an answer as the device does."""
        own = granted.Keys(self.keys.tls, self.keys.signing)
        granted.check(answer, self.root, "wards", own, self.stage.clock.now, node, newest)


@pytest.fixture
def joined(tmp_path: Path) -> Joined:
    found = Joined(tmp_path / "federation")
    found.check(found.answer)
    return found


def test_a_root_that_is_not_the_tokens_is_not_pinned(joined: Joined) -> None:
    """Whoever stands between shows a root of its own, of the same federation's name."""
    known = sha256(joined.root.public_bytes(Encoding.DER)).digest()
    other = Authority.create("wards", joined.stage.clock.now, above_issuing=True).certificate
    assert root_of(joined.stage.issuer.ca(), "fl.example.org:443", known) == joined.root
    with pytest.raises(PeerError, match="got the root"):
        root_of(other.public_bytes(Encoding.PEM), "fl.example.org:443", known)


def test_an_answer_with_another_nodes_certificates_is_not_taken(joined: Joined) -> None:
    """The device would sign with keys that its certificates do not bear, or lend its name."""
    other = joined.stage.issuer.enrol(Keys().enrol(joined.stage.token("other")))
    for changed in (
        replace(joined.answer, tls=other.tls),
        replace(joined.answer, signing=other.signing),
        replace(other),
    ):
        with pytest.raises(PeerError, match="of this device's keys"):
            joined.check(changed)


def test_an_answer_under_another_id_is_not_taken(joined: Joined) -> None:
    other = joined.stage.issuer.enrol(Keys().enrol(joined.stage.token("other")))
    with pytest.raises(PeerError, match="expected node"):
        joined.check(joined.answer, node=other.id)
    with pytest.raises(PeerError, match="id of the message"):
        joined.check(replace(joined.answer, id=other.id))


def test_an_answer_of_another_federation_is_not_taken(joined: Joined) -> None:
    with pytest.raises(PeerError, match="expected the federation wards"):
        joined.check(replace(joined.answer, federation="others"))


def test_certificates_of_another_root_are_not_taken(joined: Joined, tmp_path: Path) -> None:
    other = Stage(tmp_path / "other")
    answer = other.issuer.enrol(joined.keys.enrol(other.token()))
    with pytest.raises(PeerError, match=r"member list|pinned root"):
        joined.check(answer)
    mixed = replace(answer, members=joined.answer.members, issuing=joined.answer.issuing)
    with pytest.raises(PeerError, match="pinned root"):
        joined.check(mixed)


def test_a_member_list_that_is_older_or_has_ended_is_not_taken(joined: Joined) -> None:
    """Else a node that was removed would be a member again, for a device that renews."""
    before = joined.answer.members
    gone = joined.stage.issuer.enrol(Keys().enrol(joined.stage.token("gone")))
    joined.stage.issuer.remove("gone")
    now = joined.stage.issuer.renew(joined.keys.renew(joined.answer.id))
    assert gone.id != now.id
    joined.check(now, now.id, before)
    with pytest.raises(PeerError, match="member list"):
        joined.check(replace(now, members=before), now.id, now.members)
    joined.stage.clock.now += 6 * DAY
    fresh = joined.stage.issuer.renew(joined.keys.renew(joined.answer.id))
    joined.stage.clock.now += 2 * DAY
    with pytest.raises(PeerError, match="member list"):
        joined.check(replace(fresh, members=before), fresh.id)


def test_a_gateway_outside_its_names_is_not_dialled(joined: Joined, tmp_path: Path) -> None:
    """A CA says where the gateway is; which names it may bear, a renewal does not."""
    with pytest.raises(PeerError, match="one of the names"):
        joined.check(replace(joined.answer, gateway="elsewhere.example.org:8444"))
    files = DeviceFiles(
        directory=tmp_path, federation="wards", id=joined.answer.id,
        gateway="fl.example.org:8444", superlink="fl.example.org:8443",
        policy=Policy(gateways=("fl.example.org",)),
    )  # fmt: skip
    moved = replace(joined.answer, gateway="b.example.org:1", gateways=("b.example.org",))
    joined.check(moved)
    with pytest.raises(PeerError, match=r"trust\.gateways"):
        _addresses(files, moved)


def test_a_token_takes_no_device_from_its_owner(tmp_path: Path) -> None:
    """Who talks an owner into a second token would have a new root pinned over the first."""
    (tmp_path / "device.toml").write_text("")
    with pytest.raises(SettingsError, match="enrolled"):
        check_free(tmp_path)


def test_a_folder_that_others_can_write_does_not_become_a_device(
    joined: Joined, tmp_path: Path
) -> None:
    """Another user of the machine made it before: it could exchange the device's files later."""
    staging = tmp_path / "devices" / ".wards.enrolling"
    staging.mkdir(parents=True)
    staging.chmod(0o777)
    with pytest.raises(SettingsError, match="a folder of this user alone"):
        enrol(joined.stage.token("press-9"), tmp_path / "devices" / "wards", Policy(), print)
    assert list(staging.iterdir()) == []
