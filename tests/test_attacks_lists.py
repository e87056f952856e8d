"""Attack 33: a server that hides who was removed, and asks for a secure round all the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from umbel.clients import member_file
from umbel.clients.session import Session
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.members import LIFE, MemberList
from umbel.protocol.membership import Membership
from umbel.server.invitation import start_of
from umbel.tests.actors import FEDERATION, NOW, authority, identity, policy
from umbel.tests.gateway import Gateway, Play, plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

DAY = timedelta(days=1)
OTHERS = Authority.create(FEDERATION, NOW)


def listed(
    epoch: int = 5,
    *gone: int,
    by: Authority | None = None,
    of: str = FEDERATION,
    at: datetime = NOW,
    life: timedelta = LIFE,
) -> bytes:
    signer = by or authority("ours")
    ids = frozenset(identity(index).id for index in gone)
    return MemberList(of, epoch, at, at + life, ids).sign(replace(signer, federation=of))


class Device:
    """Device 0 of three, which has seen no member list yet and keeps what it sees in a file."""

    def __init__(self, home: Path) -> None:
        self.home, self.now, self.root = home, NOW, authority("ours")
        self.gateway = Gateway(3, home, own=policy(required=False))
        self.restart()

    def restart(self) -> None:
        """Begin another process: what it knows is what lies on the disk."""
        self.gateway.logs[0].clear()
        known = Membership(
            self.root.certificate, FEDERATION, keep=partial(member_file.keep, self.home)
        )
        if (kept := member_file.read(self.home)) is not None:
            known.recall(kept, self.now)
        device = self.gateway.sessions[0]._device
        changed = replace(device, membership=known, clock=lambda: self.now)
        self.gateway.sessions[0] = Session(changed)

    def shown(self, raw: bytes, issuing: Authority | None = None) -> Device:
        """Let the gateway say who is a member."""
        ders = [issuing.der] if issuing is not None else []
        self.gateway.sessions[0].trust(pb.Trust(issuing=ders, members=raw))
        return self

    def asked(self, attempt: int = 0) -> str:
        """Let it be asked for a secure round; return why it refuses, or nothing."""
        play = Play(self.gateway, self.gateway.terms(attempt=attempt)).keys()
        return pb.Reason.Name(play.reasons()[0]) if play.reasons() else ""

    @property
    def said(self) -> str:
        """Its newest line; nothing where it had nothing to say."""
        return self.gateway.logs[0][-1] if self.gateway.logs[0] else ""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path)
    yield made
    made.gateway.close()


def test_a_server_that_shows_no_list_gets_no_keys(device: Device) -> None:
    assert device.asked() == "REASON_MEMBER_LIST"
    assert "none of this federation has come" in device.said
    device.shown(b"")
    assert device.asked(1) == "REASON_MEMBER_LIST"
    assert device.shown(listed()).asked(2) == ""


def test_a_server_that_shows_a_list_of_its_own_gets_no_keys(device: Device) -> None:
    device.shown(listed(by=OTHERS))
    assert "signature is not the issuing CA's" in device.said
    assert device.asked() == "REASON_MEMBER_LIST"


def test_a_server_that_brings_its_own_issuing_ca_gets_no_keys(device: Device) -> None:
    device.root, other = (
        Authority.create(FEDERATION, NOW, above_issuing=True) for _ in ("ours", "its own")
    )
    device.restart()
    below = other.issue_authority(NOW)
    device.shown(listed(by=below), below)
    assert "signature is not the issuing CA's" in device.said
    assert device.asked() == "REASON_MEMBER_LIST"


def test_a_root_that_signs_members_has_nobody_below_it(device: Device) -> None:
    below = device.root.issue_authority(NOW)
    device.shown(listed(by=below), below)
    assert "signature is not the issuing CA's" in device.said
    assert device.asked() == "REASON_MEMBER_LIST"


def test_a_server_that_shows_another_federations_list_gets_no_keys(device: Device) -> None:
    device.shown(listed(of="elsewhere"))
    assert "of the federation 'elsewhere'" in device.said
    assert device.asked() == "REASON_MEMBER_LIST"


def test_a_server_that_goes_back_to_an_older_list_is_not_followed(device: Device) -> None:
    device.shown(listed(6, 2)).shown(listed(5))
    assert "epoch 5 is older than 6" in device.said
    device.restart()
    device.shown(listed(5))
    assert "epoch 5 is older than 6" in device.said
    assert device.asked() == ""  # by the list that it kept


def test_a_server_that_withholds_the_next_list_gets_no_keys_after_the_expiry(
    device: Device,
) -> None:
    device.shown(listed(life=DAY))
    device.now = NOW + DAY
    assert device.asked() == "REASON_MEMBER_LIST"
    assert "expired on 2030-01-08 12:00" in device.said
    device.shown(listed(life=DAY))
    assert "expired on" in device.said


def test_a_server_that_waits_for_the_expiry_between_two_trips_gets_no_shares(
    device: Device,
) -> None:
    device.shown(listed(life=DAY))
    play = Play(device.gateway, device.gateway.terms()).keys()
    device.now = NOW + DAY
    play.shares()
    assert play.reasons() == {0: pb.REASON_MEMBER_LIST}


def test_a_server_that_puts_a_removed_node_into_a_roster_gets_no_shares(device: Device) -> None:
    device.shown(listed(5))
    play = Play(device.gateway, device.gateway.terms()).keys()
    device.shown(listed(6, 2))  # in the middle of the attempt
    play.shares()
    assert play.reasons() == {0: pb.REASON_CERTIFICATE}
    assert "is revoked" in device.said


def test_a_removal_that_a_later_list_forgets_is_not_forgotten(device: Device) -> None:
    device.shown(listed(6, 2)).shown(listed(7))
    play = Play(device.gateway, device.gateway.terms()).keys().shares()
    assert play.reasons() == {0: pb.REASON_CERTIFICATE}


def test_a_device_that_cannot_keep_a_list_takes_part_in_nothing(device: Device) -> None:
    device.home.joinpath(member_file.FILE).mkdir()
    device.shown(listed())
    assert device.asked() == "REASON_JOURNAL"
    start = start_of(plain(device.gateway.terms(attempt=1)), len(device.gateway.model()))
    assert device.gateway.start(0, start).refusal.reason == pb.REASON_JOURNAL


def test_a_plain_round_needs_no_list(device: Device) -> None:
    start = start_of(plain(device.gateway.terms()), len(device.gateway.model()))
    assert device.gateway.start(0, start).HasField("ready")
