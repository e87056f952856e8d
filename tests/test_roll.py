"""Who is here: the newest session of a node, and what it was sent."""

from __future__ import annotations

import pytest

from umbel.protocol.errors import BadCertificate, PeerError
from umbel.server.roll import Roll
from umbel.tests.rounds import NOW, cast


def test_the_newest_session_of_a_node_is_the_one() -> None:
    people = cast()
    roll, first = Roll(people.verifier), people.players[0]
    der = first.identity.certificate
    assert roll.enter(der, NOW) == (first.node, False)
    assert roll.enter(der, NOW) == (first.node, True)
    assert list(roll) == [first.node]
    assert roll[first.node].der == der
    assert roll.resumed(der, NOW) == first.node
    roll.leave(first.node)
    roll.leave(first.node)
    assert not roll
    with pytest.raises(PeerError, match="has no session to resume; join anew"):
        roll.resumed(der, NOW)


def test_no_member_is_let_in() -> None:
    roll = Roll(cast().verifier)
    with pytest.raises(BadCertificate):
        roll.enter(b"none", NOW)
    with pytest.raises(BadCertificate):
        roll.resumed(b"none", NOW)
    assert not roll


def test_a_certificate_is_sent_once_a_session() -> None:
    people = cast()
    roll, (one, two, *_) = Roll(people.verifier), people.players
    roll.enter(one.identity.certificate, NOW)
    assert not roll.knows(one.node, two.identity.fingerprint)
    assert roll.knows(one.node, two.identity.fingerprint)
    assert not roll.knows(one.node, one.identity.fingerprint)
    assert not roll.knows(two.node, two.identity.fingerprint)
    roll.enter(one.identity.certificate, NOW)
    assert not roll.knows(one.node, two.identity.fingerprint)
