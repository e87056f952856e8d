"""Attacks on the roster: keys, certificates, Sybils, floors, other terms.

Attacks 4 to 8 and 13 of docs/protocol.md, section 10.2.

The server writes the roster, so each attack here is one that it can try, alone or in league
with a member. What members try against an honest server stands in test_attacks_members.py.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.protocol import keys
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.context import RosterEntry
from umbel.protocol.entropy import os_entropy
from umbel.protocol.keys import KeyPair
from umbel.protocol.verification import Verifier
from umbel.tests.actors import (
    NOW,
    PARAMS,
    Game,
    agreed,
    authority,
    enrolled,
    identity,
    names,
    policy,
    refuses,
    rewritten,
    signed_keys,
    verified,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from umbel.protocol.standpoint import Identity


def _pair() -> KeyPair:
    return KeyPair.generate(entropy=os_entropy)


def _entries(roster: pb.Roster) -> list[RosterEntry]:
    return RosterEntry.unpack_all(roster.entries)


def _refused(game: Game, roster: pb.Roster, reason: pb.Reason, words: str) -> None:
    """Let member 0 see the roster; the honest one would have been accepted."""
    refuses(reason, lambda: game.members[0].roster(roster), words)


# ---- 4, 5: keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["mask_pk", "seal_pk"])
def test_a_server_that_puts_its_own_key_in_a_neighbours_place_gets_no_shares(role: str) -> None:
    game = Game(5)
    roster = game.gather()[0]
    swapped = _entries(roster)[2]._replace(**{role: _pair().public})
    _refused(game, rewritten(roster, 2, swapped), pb.REASON_ROSTER, "did not sign these keys")


def test_a_server_that_substitutes_keys_and_signs_them_itself_gets_no_shares() -> None:
    game = Game(5)
    roster = game.gather()[0]
    mask, seal = _pair().public, _pair().public
    own = signed_keys(replace(identity(2), signing=Ed25519PrivateKey.generate()), b"", b"", b"")
    changed = rewritten(roster, 2, _entries(roster)[2]._replace(mask_pk=mask, seal_pk=seal))
    changed.keys_signatures[1] = own.signature
    _refused(game, changed, pb.REASON_ROSTER, "did not sign these keys")


def _missing(roster: pb.Roster) -> None:
    del roster.keys_signatures[3]


def _surplus(roster: pb.Roster) -> None:
    roster.keys_signatures.append(roster.keys_signatures[0])


def _swapped(roster: pb.Roster) -> None:
    first, second = roster.keys_signatures[:2]
    roster.keys_signatures[0], roster.keys_signatures[1] = second, first


def _flipped(roster: pb.Roster) -> None:
    signature = bytearray(roster.keys_signatures[1])
    signature[40] ^= 1
    roster.keys_signatures[1] = bytes(signature)


def _empty(roster: pb.Roster) -> None:
    roster.keys_signatures[1] = b""


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (_missing, "3 `keys` signatures"),
        (_surplus, "5 `keys` signatures"),
        (_swapped, "did not sign"),
        (_flipped, "did not sign"),
        (_empty, "did not sign"),
    ],
)
def test_a_server_with_forged_missing_or_surplus_key_signatures_gets_no_shares(
    forge: Callable[[pb.Roster], None], words: str
) -> None:
    game = Game(5)
    roster = game.gather()[0]
    forge(roster)
    _refused(game, roster, pb.REASON_ROSTER, words)


def test_a_server_that_replays_a_members_keys_of_an_earlier_attempt_gets_no_shares() -> None:
    earlier, now = Game(5), Game(5, terms=agreed(attempt=1))
    old, roster = earlier.gather()[0], now.gather()[0]
    replayed = rewritten(roster, 1, _entries(old)[1])
    replayed.keys_signatures[0] = old.keys_signatures[0]
    _refused(now, replayed, pb.REASON_ROSTER, "did not sign these keys for this round")


DOUBLED: dict[str, Callable[[list[RosterEntry]], RosterEntry]] = {
    "a key occurs twice": lambda e: e[2]._replace(mask_pk=e[3].mask_pk),
    "a seal key as a mask key": lambda e: e[2]._replace(mask_pk=e[3].seal_pk),
    "one key in both roles": lambda e: e[2]._replace(mask_pk=e[2].seal_pk),
    "the reader's own key": lambda e: e[2]._replace(seal_pk=e[0].mask_pk),
    "an id occurs twice": lambda e: e[2]._replace(id=e[3].id),
    "a certificate occurs twice": lambda e: e[2]._replace(fingerprint=e[3].fingerprint),
    "a whole entry twice": lambda e: e[3],
}


@pytest.mark.parametrize("which", DOUBLED)
def test_a_server_that_lists_anything_twice_gets_no_shares(which: str) -> None:
    """In league with the member whose entry it is, so that the keys are signed for."""
    game = Game(5)
    roster = game.gather()[0]
    new = DOUBLED[which](_entries(roster))
    changed = _vouched(game, roster, new, game.people[3 if new.id == identity(3).id else 2])
    _refused(game, changed, pb.REASON_ROSTER, "occurs twice")


def _vouched(game: Game, roster: pb.Roster, new: RosterEntry, signer: Identity) -> pb.Roster:
    """Return member 0's roster with another entry at place 2, whose keys somebody signed."""
    changed = rewritten(roster, 2, new)
    speaker = replace(signer, id=new.id)
    forged = signed_keys(speaker, game.terms.ctx0(), new.mask_pk, new.seal_pk)
    changed.keys_signatures[1] = forged.signature
    return changed


def test_a_member_that_is_listed_with_its_old_and_its_renewed_certificate_is_seen() -> None:
    """Both are valid and its own; counted twice it would be two of the A that may be corrupt."""
    game = Game(5)
    roster = game.gather()[0]
    renewed = enrolled(identity(3).id)
    game.certificates[renewed.fingerprint] = renewed.certificate
    new = RosterEntry(renewed.id, renewed.fingerprint, _pair().public, _pair().public)
    _refused(game, _vouched(game, roster, new, renewed), pb.REASON_ROSTER, "an id occurs twice")


@pytest.mark.parametrize("field", ["id", "fingerprint", "mask_pk", "seal_pk"])
def test_a_server_that_alters_a_members_own_entry_gets_no_shares(field: str) -> None:
    game = Game(5)
    roster = game.gather()[0]
    who = enrolled(b"somebody-else-xx")
    other = {"id": who.id, "fingerprint": who.fingerprint}
    new = _entries(roster)[0]._replace(**{field: other.get(field, _pair().public)})
    _refused(game, rewritten(roster, 0, new), pb.REASON_ROSTER, "own entry")


def test_a_server_that_sends_half_an_entry_gets_no_shares() -> None:
    game = Game(5)
    roster = game.gather()[0]
    roster.entries = roster.entries[:-1]
    _refused(game, roster, pb.REASON_ROSTER, "a multiple of 112 bytes")


# ---- 7: Sybils and certificates ------------------------------------------------------------------


def _sybil(which: str) -> tuple[bytes, Identity]:
    """Return a fingerprint that a roster may claim, and the identity behind it."""
    node = b"sybil-0123456789"
    who = {
        "none": enrolled(node),
        "of another CA": enrolled(node, ca="somebody else's"),
        "expired": enrolled(node, now=NOW - timedelta(days=8)),
        "not yet valid": enrolled(node, now=NOW + timedelta(days=1)),
    }
    return who[which].fingerprint, who[which]


@pytest.mark.parametrize("which", ["none", "of another CA", "expired", "not yet valid"])
def test_a_server_that_invents_a_member_without_a_valid_certificate_gets_no_shares(
    which: str,
) -> None:
    """It holds the keys of this Sybil, and so would know every mask that is made with it."""
    game = Game(5)
    roster = game.gather()[0]
    _, who = _sybil(which)
    if which != "none":
        game.certificates[who.fingerprint] = who.certificate
    body = signed_keys(who, game.terms.ctx0(), _pair().public, _pair().public)
    new = RosterEntry(who.id, who.fingerprint, body.mask_pk, body.seal_pk)
    changed = rewritten(roster, 2, new)
    changed.keys_signatures[1] = body.signature
    _refused(game, changed, pb.REASON_CERTIFICATE, "")


def test_a_server_that_shows_a_tls_certificate_or_a_ca_as_a_member_gets_no_shares() -> None:
    game = Game(5)
    roster = game.gather()[0]
    der = authority("ours").certificate.public_bytes(Encoding.DER)
    print_ = verified(identity(7)).fingerprint
    game.certificates[print_] = der
    new = _entries(roster)[2]._replace(fingerprint=print_, id=identity(7).id)
    _refused(game, rewritten(roster, 2, new), pb.REASON_CERTIFICATE, "")


@pytest.mark.parametrize("field", ["id", "fingerprint"])
def test_a_server_that_lends_a_members_certificate_to_another_id_gets_no_shares(
    field: str,
) -> None:
    """A certificate speaks for one id, also where its bearer would sign for another one."""
    game = Game(5)
    roster = game.gather()[0]
    stranger = identity(9)
    game.certificates[stranger.fingerprint] = stranger.certificate
    new = _entries(roster)[2]._replace(**{field: getattr(stranger, field)})
    bearer = stranger if field == "fingerprint" else identity(2)
    changed = _vouched(game, roster, new, bearer)
    _refused(game, changed, pb.REASON_CERTIFICATE, "bears another certificate")


def test_a_server_that_answers_a_fingerprint_with_another_certificate_gets_no_shares() -> None:
    game = Game(5)
    roster = game.gather()[0]
    game.certificates[identity(2).fingerprint] = identity(9).certificate
    _refused(game, roster, pb.REASON_CERTIFICATE, "bears another certificate")


def test_a_server_that_lists_a_revoked_member_gets_no_shares() -> None:
    game = Game(5)
    roster = game.gather()[0]
    own = Verifier(authority("ours").certificate, "attacks")
    own.revoke([identity(2).id])
    member = game.members[0]
    member._at = replace(member._at, resolve=lambda p: own.member(game.certificates[p], NOW))
    _refused(game, roster, pb.REASON_CERTIFICATE, "revoked")


# ---- 6, 7: floors and thresholds -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"min_members": 6}, pb.REASON_ROSTER),
        ({"corrupt_min": 2}, pb.REASON_POLICY),
        ({"corrupt": 0.4}, pb.REASON_POLICY),
        ({"max_corrupt_members": 2}, pb.REASON_POLICY),
    ],
)
def test_a_server_whose_roster_is_weaker_than_the_policy_gets_no_shares(
    own: Mapping[str, float], reason: pb.Reason
) -> None:
    game = Game(5, own=policy(**own))
    roster = game.gather()[0]
    _refused(game, roster, reason, "")


def test_a_server_that_allows_more_losses_than_the_policy_gets_no_shares() -> None:
    game = Game(40, own=policy(dropout=0.05))
    roster = game.gather()[0]
    _refused(game, roster, pb.REASON_POLICY, "D = 4 for n = 40, this device's own is 2")


def test_a_server_that_outnumbers_the_bound_on_corrupt_members_gets_no_shares() -> None:
    """N - D < F + 2, with the losses as the round has them."""
    own = policy(max_corrupt_members=5)
    refuses(pb.REASON_POLICY, lambda: own.check_roster(7, 1), "less 1")
    own.check_roster(7, 0)
    own.check_roster(8, 1)


def test_a_server_with_fewer_members_than_the_parameters_promise_gets_no_shares() -> None:
    game = Game(5, terms=agreed(replace(PARAMS, min_members=4)))
    roster = game.gather()[0]
    entries = _entries(roster)[:3]
    roster.entries = b"".join(one.pack() for one in entries)
    _refused(game, roster, pb.REASON_ROSTER, "at least 4 members")


@pytest.mark.parametrize(
    ("own", "words"),
    [({"min_survivors": 6}, "at least 6"), ({"min_sites": 5}, "survivors of 4 sites")],
)
def test_a_server_with_fewer_survivors_or_sites_than_the_policy_gets_no_vote(
    own: Mapping[str, int], words: str
) -> None:
    game = Game(7, own=policy(**own)).to_masked()
    with pytest.raises(Exception, match=words):
        game.vote(0, game.call(0, range(5 if "min_survivors" in own else 7)))


def test_a_server_with_fewer_survivors_than_the_parameters_promise_gets_no_vote() -> None:
    game = Game(7, terms=agreed(replace(PARAMS, min_survivors=6))).to_masked()
    refuses(pb.REASON_SURVIVORS, lambda: game.vote(0, game.call(0, range(5))), "at least 6")


# ---- 8: other terms ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"model": b"\x01" * 32},
        {"config": {"lr": 0.2}},
        {"params": {**PARAMS.table(), "value-range": 0.25}},
        {"layout": b"\x01" * 32},
        {"round": 2},
        {"attempt": 1},
        {"phase": "evaluate"},
        {"run": "another"},
        {"ca": b"\x01" * 32},
        {"app": b"\x01" * 32},
        {"scheme": "B"},
        {"protocol": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_server_that_shows_clients_different_models_or_terms_gets_no_shares(
    change: dict[str, object],
) -> None:
    """Model inconsistency: half of the members train on another model than the others."""
    game = Game(6)
    other = replace(game.terms, **change)  # type: ignore[arg-type]
    game.members[3:] = [game.newcomer(who, other) for who in game.people[3:]]
    bodies = [member.begin().message.keys for member in game.members]
    for place in range(3, 6):  # an honest server names them at once
        who = game.people[place]
        names(who.id, partial(game.server.keys, verified(who), bodies[place]), "ctx0")
    entries = [
        RosterEntry(w.id, w.fingerprint, b.mask_pk, b.seal_pk)
        for w, b in zip(game.people, bodies, strict=True)
    ]
    for place, member in enumerate(game.members):
        around = [(place + step) % 6 for step in range(1, 6)]
        roster = pb.Roster(
            entries=b"".join(one.pack() for one in entries),
            keys_signatures=[bodies[v].signature for v in around],
        )
        refuses(pb.REASON_ROSTER, partial(member.roster, roster))
        assert member.ctx == b""


# ---- 13: points of low order ---------------------------------------------------------------------


def _in_league(game: Game, role: str, monkeypatch: pytest.MonkeyPatch) -> list[pb.Roster]:
    """Let a server take a key of zeros from member 2, which signed for it, and freeze."""
    monkeypatch.setattr(keys, "check_public", lambda *_: None)
    for who, member in zip(game.people, game.members, strict=True):
        body = member.begin().message.keys
        if who is game.people[2]:
            getattr(member, role).public = bytes(32)
            body = signed_keys(who, game.terms.ctx0(), *(pair.public for pair in member._keys()))
        game.server.keys(verified(who), body)
    rosters = game.server.freeze()
    return [rosters[who.id] for who in game.people]


def test_a_server_that_lets_a_seal_key_of_low_order_in_gets_no_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of the blob, and with it the shares inside, would be known to everyone."""
    game = Game(5)
    rosters = _in_league(game, "_seal", monkeypatch)
    _refused(game, rosters[0], pb.REASON_ROSTER, "low order")


def test_a_server_that_lets_a_mask_key_of_low_order_in_gets_no_vector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pair mask would be a stream that everybody can compute."""
    game = Game(5)
    game.deal(_in_league(game, "_mask", monkeypatch))
    refuses(pb.REASON_SHARES, lambda: game.mask(0), "low order")
    assert 0 not in game.masked
