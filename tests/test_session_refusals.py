"""What the device's session refuses: a code each, and before it costs anybody anything."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.canonical import settings_to_pb
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import Malformed, PeerError, Refused
from umbel.protocol.frames import Kind, frames
from umbel.protocol.manifest import Manifest
from umbel.server.invitation import start_of
from umbel.strategies.trainer import TrainResult
from umbel.tests.actors import NOW, agreed, authority
from umbel.tests.fuzz_roles import Bare, session
from umbel.tests.handmade import (
    Gateway,
    Place,
    Stub,
    devices,
    model_of,
    refusal,
    sent,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from umbel.clients.session import Action

MODEL = model_of(Stub())


HISTOGRAM = settings_to_pb({"server-round": 1, "histogram": 2})


def begin(place: Place, **terms: Any) -> list[Action]:
    return Gateway([place], **terms).begin(place)


# ---- refusals: a code each -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "terms", "expected"),
    [
        ({}, {"protocol": 0}, ("REASON_PROTOCOL_TOO_OLD", "")),
        ({}, {"protocol": 2}, ("REASON_PROTOCOL_TOO_OLD", "")),
        ({"apps": (b"\1" * 32,)}, {}, ("REASON_APP_NOT_ALLOWED", "")),
        ({}, {"scheme": "plain"}, ("REASON_PLAIN_REFUSED", "")),
        ({}, {"scheme": "a"}, ("REASON_SCHEME", "")),
        ({}, {"scheme": ""}, ("REASON_SCHEME", "")),
        ({"model_bytes": 63}, {}, ("REASON_LIMITS", "limits.model_bytes")),
        ({}, {"model_bytes": 65}, ("REASON_CTX_DIFFERS", "")),
        ({"min_members": 4}, {}, ("REASON_POLICY", "secure.min_members")),
        ({"min_survivors": 4}, {}, ("REASON_POLICY", "secure.min_survivors")),
        ({"max_weight": 39}, {}, ("REASON_POLICY", "update.max_weight")),
        ({"max_value_range": 0.4}, {}, ("REASON_POLICY", "update.max_value_range")),
        ({"max_corrupt_members": 2}, {}, ("REASON_POLICY", "secure.max_corrupt_members")),
        ({}, {"config": HISTOGRAM}, ("REASON_POLICY", "update.histogram")),
        ({}, {"params": {"alpha": 0.05}}, ("REASON_POLICY", "secure.corrupt")),
        ({}, {"params": {"delta": 0.2}}, ("REASON_POLICY", "secure.dropout")),
        ({}, {"params": {"alpha": None}}, ("REASON_POLICY", "params.alpha")),
        ({}, {"params": {"ring-bits": 64}}, ("REASON_POLICY", "params.ring-bits")),
        ({}, {"params": {"clip": 1}}, ("REASON_POLICY", "params.clip")),
    ],
)
def test_terms_that_this_device_does_not_accept(
    own: dict[str, Any], terms: dict[str, Any], expected: tuple[str, str]
) -> None:
    places = devices(1, **{f"policy_{key}": value for key, value in own.items()})
    assert refusal(begin(places[0], **terms)) == expected
    assert isinstance(stub := places[0].trainer, Stub)
    assert stub.trained == 0
    assert not places[0].session._model  # not a byte of the announced model was made room for
    assert sent(begin(Place(0))).WhichOneof("body") == "keys"  # the same, unchanged, is accepted


def test_a_histogram_is_counted_where_the_owner_allows_it() -> None:
    place = devices(1, policy_histogram=True)[0]
    assert sent(begin(place, config=HISTOGRAM)).WhichOneof("body") == "keys"
    none = settings_to_pb({"server-round": 1, "histogram": 0})
    assert sent(begin(devices(1)[0], config=none)).WhichOneof("body") == "keys"


def test_a_wrong_size_makes_no_room_for_the_model() -> None:
    place = devices(1, policy_model_bytes=1 << 50)[0]
    assert refusal(begin(place, model_bytes=1 << 49)) == ("REASON_CTX_DIFFERS", "")
    with pytest.raises(PeerError, match="not asked for"):
        place.session.frame(next(frames(Kind.MODEL, model_digest(MODEL), MODEL)))


def _undeclared() -> TrainResult:
    return TrainResult(Stub().result().deltas, 7, {"eval.examples": 7, "eval.loss": 1.5, "x": 1})


def _nan() -> TrainResult:
    deltas = {"w": np.full((2, 3), 0.25), "b": np.array([0, 0, np.nan, 0], np.float32)}
    return TrainResult(deltas, 7, {"eval.examples": 7, "eval.loss": 1.5})


def _integers() -> TrainResult:
    deltas = {"w": np.zeros((2, 3)), "b": np.zeros(4, np.int64)}
    return TrainResult(deltas, 7, {"eval.examples": 7, "eval.loss": 1.5})


def _short() -> TrainResult:
    return TrainResult({"w": np.zeros((2, 3))}, 7, {"eval.examples": 7, "eval.loss": 1.5})


def _raises() -> TrainResult:
    raise Refused(pb.REASON_TASK_FAILED, "the task raised; its trace is above")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (_nan, "REASON_NOT_FINITE"),
        (_integers, "REASON_TASK_FAILED"),
        (_short, "REASON_TASK_FAILED"),
        (_raises, "REASON_TASK_FAILED"),
    ],
)
def test_a_bad_update_ends_before_the_roster(result: Callable[[], TrainResult], code: str) -> None:
    """A device that joined and then failed would count as a loss, and 4 members bear none."""
    stub = Stub()
    stub.result = result
    place = Place(0, trainer=stub)
    assert refusal(begin(place)) == (code, "")
    assert written(place) == []
    stub.result = Stub().result
    assert sent(begin(place, attempt=1)).WhichOneof("body") == "keys"


def test_an_undeclared_metric_never_leaves() -> None:
    gate = Gateway(devices(3))
    stub = gate.places[0].trainer
    assert isinstance(stub, Stub)
    stub.result = _undeclared
    gate.gather_shares()
    assert refusal(gate.give(0, {"inbox": gate.inbox(0)})) == ("REASON_UNDECLARED_METRIC", "")


def test_rule_1_and_the_certificates() -> None:
    def roster_with(change: Callable[[pb.Roster], object]) -> str:
        gate = Gateway(devices(3))
        gate.gather_keys()
        roster = gate.roster(0)
        change(roster)
        return refusal(gate.give(0, {"roster": roster}))[0]

    def swap(roster: pb.Roster) -> None:
        first, second, third = (roster.entries[i : i + 112] for i in (0, 112, 224))
        roster.entries = first + third + second

    def forged(roster: pb.Roster) -> None:
        good = roster.certificates[1]
        roster.certificates[1] = good[:-1] + bytes([good[-1] ^ 1])

    def unreadable(roster: pb.Roster) -> None:
        """Of another purpose: the library stumbles over the subject when it says whose it is."""
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        leaf = authority("ours").issue_tls(key, bytes(16), "site", NOW)
        roster.certificates[1] = leaf.public_bytes(Encoding.DER).replace(b"site", b"\xff" * 4)

    assert roster_with(unreadable) == "REASON_CERTIFICATE"
    assert roster_with(swap) == "REASON_ROSTER"  # the signatures stand in the ring's order
    assert roster_with(forged) == "REASON_CERTIFICATE"
    assert roster_with(lambda r: r.certificates.pop()) == "REASON_CERTIFICATE"
    assert roster_with(lambda r: r.keys_signatures.pop()) == "REASON_ROSTER"


def test_good_certificates_beside_a_bad_one_are_kept() -> None:
    """The gateway sends each once: lost ones would keep this device out of every later round."""
    gate = Gateway(devices(3))
    gate.gather_keys()
    roster = gate.roster(0)
    roster.certificates.insert(0, b"\0" * 100)
    assert refusal(gate.give(0, {"roster": roster})) == ("REASON_CERTIFICATE", "")
    again = gate.next()
    again.gather_keys()
    roster = again.roster(0)
    del roster.certificates[:]
    assert sent(again.give(0, {"roster": roster})).WhichOneof("body") == "shares"


def test_rules_2_to_4_have_their_codes() -> None:
    gate = Gateway(devices(5))
    gate.gather_shares()
    assert refusal(gate.give(0, {"inbox": gate.inbox(0, [0, 1, 2])})) == ("REASON_SHARES", "")
    gate = Gateway(devices(5))
    gate.gather_vectors()
    few = gate.survivors(0, [0, 1, 2])
    assert refusal(gate.give(0, {"survivors": few})) == ("REASON_SURVIVORS", "")
    gate = Gateway(devices(5))
    gate.gather_votes()
    assert refusal(gate.give(0, {"votes": gate.counted([0, 1, 2])})) == ("REASON_VOTES", "")


def test_another_context_is_refused_and_ends_the_attempt() -> None:
    gate = Gateway(devices(3))
    gate.gather_shares()
    wrong = bytes([gate.ctx[0] ^ 1]) + gate.ctx[1:]
    assert refusal(gate.give(0, {"inbox": gate.inbox(0)}, wrong)) == ("REASON_CTX_DIFFERS", "")
    assert gate.places[0].session._member is None


def test_after_a_vote_only_the_same_members_are_summed_again() -> None:
    gate = Gateway(devices(3))
    gate.gather_votes()
    wider = Gateway([*gate.places, Place(3)], attempt=1)
    wider.gather_keys()
    answer = wider.give(0, {"roster": wider.roster(0)})
    assert refusal(answer) == ("REASON_WOULD_DIFFERENCE", "")
    assert all(share for release in gate.next(attempt=2).finish() for share in release.shares)


def test_an_unreadable_message_is_the_connections_end() -> None:
    place = Place(0)
    for data in (b"", b"\xff\xff", pb.ToClient(ctx=b"short", close=pb.Close()).SerializeToString()):
        with pytest.raises(Malformed):
            place.session.receive(data)


def test_a_model_for_which_there_is_no_memory_is_refused() -> None:
    """A run's manifest may say any size to an app that has no model of its own."""
    manifest = Manifest.lay_out([("w", (1 << 36,), "float32")])
    device = session(0, Bare(), most=1 << 40)
    start = start_of(agreed(), manifest.total_bytes, manifest.to_json())
    now, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 37, hard))
    try:
        answer = sent(device.receive(pb.ToClient(start=start).SerializeToString()))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (now, hard))
    assert answer.refusal.reason == pb.REASON_LIMITS
    assert answer.refusal.key == "limits.model_bytes"
