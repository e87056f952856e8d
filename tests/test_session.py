"""The device's session, driven with real bytes by a gateway made by hand (handmade.py)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients.session import Fetch, Upload
from umbel.protocol import journal as records
from umbel.protocol import keys
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.codec import Codec
from umbel.protocol.context import Terms, context
from umbel.protocol.digest import model_digest
from umbel.protocol.frames import Kind, frames
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.tests.handmade import (
    METRICS,
    PARAMS,
    Gateway,
    Place,
    Stub,
    devices,
    identity,
    model_of,
    refusal,
    sent,
    start,
    written,
)
from umbel.tests.opened import mean, opened

if TYPE_CHECKING:
    from umbel.clients.session import Action

MODEL = model_of(Stub())


def begin(place: Place, **terms: Any) -> list[Action]:
    return Gateway([place], **terms).begin(place)


# ---- the order of steps ----------------------------------------------------------------------


def test_five_trips_end_in_the_sum() -> None:
    gate = Gateway(devices(3))
    releases = gate.finish()
    assert all(len(share) == 32 for release in releases for share in release.shares)
    names = [type(r).__name__ for r in written(gate.places[0])]
    assert names == ["Keyed", "Masked", "Voted", "Released"]
    # Pair masks cancel in the sum; what is left of it are the self masks, so no vector is plain.
    layout = MessageLayout(Manifest.of(Stub().arrays()), METRICS["train"], "train")
    with pytest.raises(Exception, match="masks did not cancel"):
        opened(layout, gate.vectors[0], 1, Codec(3, 0.5, 40))


def test_the_context_is_computed_from_what_the_device_holds() -> None:
    gate = Gateway(devices(3))
    gate.gather_shares()
    manifest = Manifest.of(Stub().arrays())
    device = gate.places[0].session._device
    terms = Terms(
        scheme="A",
        ca=device.ca,
        app=bytes(32),
        run="run",
        round=1,
        phase="train",
        attempt=0,
        model=model_digest(MODEL),
        config={"server-round": 1},
        params=PARAMS.table(),
        layout=manifest.layout_digest(METRICS["train"]),
    )
    root = hashlib.sha256(gate.roster(0).entries).digest()
    assert gate.ctx == context(terms.ctx0(), root)


def test_a_plain_attempt_sends_the_encoded_update_and_its_signature() -> None:
    places = devices(1, policy_required=False)
    gate = Gateway(places, scheme="plain")
    ready = sent(gate.begin(places[0]))
    assert ready.WhichOneof("body") == "ready"
    message, upload = gate.give(0, {"roster": pb.Roster(members=4)}, ready.ctx)
    assert isinstance(upload, Upload)
    header = sent([message]).masked.header
    assert header.y_hash == hashlib.sha256(upload.buffer).digest()
    who = identity(0)
    fields = (ready.ctx, who.id, header.y_hash)
    assert keys.verify(who.signing.public_key(), header.signature, "plain", *fields)
    layout = MessageLayout(Manifest.of(Stub().arrays()), METRICS["train"], "train")
    sums = opened(layout, upload.buffer, 1, codec := Codec(4, 0.5, 40))
    assert (sums.weight, sums.metrics) == (7, {"eval.examples": 7, "eval.loss": 1.5})
    step = 1 / codec.scale / 7
    assert np.abs(mean(layout, sums, codec)["w"] - 0.25).max() <= step
    # A second roster finds the update used up: nothing is encoded twice.
    assert refusal(gate.give(0, {"roster": pb.Roster(members=4)}, ready.ctx)) == (
        "REASON_ATTEMPT_CLOSED",
        "",
    )


def test_an_evaluation_sends_no_update() -> None:
    gate = Gateway(devices(3), phase=pb.PHASE_EVALUATE)
    gate.finish()
    stub = gate.places[0].trainer
    assert isinstance(stub, Stub)
    assert (stub.trained, stub.evaluated) == (0, 1)
    assert len(gate.vectors[0]) == 8 * (4 + len(METRICS["evaluate"]))


@pytest.mark.parametrize("body", ["roster", "inbox", "survivors", "votes"])
def test_before_a_start_every_message_is_of_another_context(body: str) -> None:
    message = pb.ToClient(ctx=bytes(31) + b"\1")
    getattr(message, body).SetInParent()
    assert refusal(Place(0).session.receive(message.SerializeToString())) == (
        "REASON_CTX_DIFFERS",
        "",
    )


def test_no_context_at_all_is_no_way_in() -> None:
    """The zeros that a session without an attempt has for a context open nothing."""
    for body in ({"roster": pb.Roster(members=3)}, {"inbox": pb.Inbox()}, {"votes": pb.Votes()}):
        place = Place(0)
        message = pb.ToClient(ctx=bytes(32), **body)
        code, _ = refusal(place.session.receive(message.SerializeToString()))
        assert code == "REASON_ATTEMPT_CLOSED"


@pytest.mark.parametrize(
    ("after", "body", "code"),
    [
        ("gather_keys", {"inbox": pb.Inbox()}, "REASON_SHARES"),
        ("gather_keys", {"votes": pb.Votes()}, "REASON_VOTES"),
        ("gather_shares", {"roster": pb.Roster()}, "REASON_ROSTER"),
        ("gather_shares", {"survivors": pb.Survivors(u=b"\7")}, "REASON_SURVIVORS"),
        ("gather_vectors", {"inbox": pb.Inbox(u2=b"\7")}, "REASON_ATTEMPT_CLOSED"),
        ("gather_vectors", {"votes": pb.Votes()}, "REASON_VOTES"),
        ("gather_votes", {"survivors": pb.Survivors(u=b"\3")}, "REASON_SURVIVORS"),
        ("finish", {"votes": pb.Votes()}, "REASON_VOTES"),
    ],
)
def test_a_step_out_of_its_turn_ends_the_attempt(
    after: str, body: dict[str, Any], code: str
) -> None:
    gate = Gateway(devices(3))
    getattr(gate, after)()
    assert refusal(gate.give(0, body)) == (code, "")
    assert gate.places[0].session._member is None
    assert isinstance(written(gate.places[0])[-1], records.Closed)


def test_a_vote_needs_the_whole_vector_to_have_left() -> None:
    gate = Gateway(devices(3))
    gate.gather_shares()
    for i in range(3):
        message, _ = gate.give(i, {"inbox": gate.inbox(i)})
        gate.headers.append(sent([message]).masked.header)
    assert refusal(gate.give(0, {"survivors": gate.survivors(0)})) == ("REASON_SURVIVORS", "")


def test_outside_the_survivors_a_device_says_nothing_and_forgets() -> None:
    gate = Gateway(devices(5))
    gate.gather_vectors()
    assert gate.give(0, {"survivors": gate.survivors(0, [1, 2, 3, 4])}) == []
    assert gate.places[0].log == ["not among the survivors of this attempt"]
    assert refusal(gate.give(0, {"votes": pb.Votes()}))[0] == "REASON_CTX_DIFFERS"


# ---- the model -------------------------------------------------------------------------------


def test_the_model_is_fetched_once_for_each_digest() -> None:
    place = Place(0)
    first = place.session.receive(pb.ToClient(start=start(MODEL)).SerializeToString())
    assert first == [Fetch(model_digest(MODEL), len(MODEL))]
    again = pb.ToClient(start=start(MODEL)).SerializeToString()
    assert refusal(place.session.receive(again))[0] == "REASON_ATTEMPT_CLOSED"
    # Half a model is no model: it is fetched whole.
    second = place.session.receive(pb.ToClient(start=start(MODEL, attempt=1)).SerializeToString())
    assert second == first
    assert sent(list(place.session.frame(*frames(Kind.MODEL, model_digest(MODEL), MODEL)))).keys
    third = place.session.receive(pb.ToClient(start=start(MODEL, attempt=2)).SerializeToString())
    assert sent(third).WhichOneof("body") == "keys"
    other = bytes([MODEL[0] ^ 1]) + MODEL[1:]
    fourth = place.session.receive(pb.ToClient(start=start(other)).SerializeToString())
    assert fourth == [Fetch(model_digest(other), len(other))]


def test_a_cached_model_is_hashed_again_at_load() -> None:
    place = Place(0)
    begin(place)
    place.session._model[3] ^= 1
    terms = pb.ToClient(start=start(MODEL, attempt=1)).SerializeToString()
    assert place.session.receive(terms) == [Fetch(model_digest(MODEL), len(MODEL))]


def test_a_model_that_does_not_hash_is_not_trained_on() -> None:
    place = Place(0)
    digest = model_digest(MODEL)
    place.session.receive(pb.ToClient(start=start(MODEL)).SerializeToString())
    other = bytes([MODEL[0] ^ 1]) + MODEL[1:]
    answer = place.session.frame(*frames(Kind.MODEL, digest, other))
    assert refusal(answer) == ("REASON_CTX_DIFFERS", "")
    assert isinstance(place.trainer, Stub)
    assert place.trainer.trained == 0


# ---- attempts and rounds ---------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_an_attempt_number_grows(attempt: int) -> None:
    place = Place(0)
    begin(place, attempt=2)
    assert refusal(begin(place, attempt=attempt)) == ("REASON_ATTEMPT_CLOSED", "")
    assert sent(begin(place, attempt=3)).WhichOneof("body") == "keys"
    assert sent(begin(place, attempt=0, run="another")).WhichOneof("body") == "keys"


def test_rounds_per_day() -> None:
    place = devices(1, policy_rounds_per_day=2)[0]
    begin(place, attempt=0)
    place.wait(hours=12)
    begin(place, attempt=1)
    place.wait(hours=11.9)
    assert refusal(begin(place, attempt=2)) == ("REASON_LIMITS", "limits.rounds_per_day")
    place.wait(hours=0.2)  # the first is a day old now
    assert sent(begin(place, attempt=3)).WhichOneof("body") == "keys"
    assert refusal(begin(place, attempt=4)) == ("REASON_LIMITS", "limits.rounds_per_day")


def test_the_close_of_an_old_attempt_is_ignored() -> None:
    gate = Gateway(devices(3))
    gate.gather_keys()
    old = gate.ctx
    later = gate.next()
    later.gather_keys()
    assert gate.give(0, {"close": pb.Close(reason=pb.REASON_ATTEMPT_CLOSED)}, old) == []
    assert sent(later.give(0, {"roster": later.roster(0)})).WhichOneof("body") == "shares"
    assert later.give(0, {"close": pb.Close()}, later.ctx) == []  # ctx0: it is past that
    assert later.places[0].session._member is not None


def test_an_attempt_that_is_closed_while_its_model_is_on_its_way_is_not_trained_for() -> None:
    gate = Gateway(devices(1))
    place, ctx0 = gate.places[0], sent(begin(devices(1)[0])).ctx
    terms = pb.ToClient(start=gate.terms).SerializeToString()
    assert isinstance(place.session.receive(terms)[0], Fetch)
    assert gate.give(0, {"close": pb.Close(reason=pb.REASON_ATTEMPT_CLOSED)}, ctx0) == []
    assert place.session.start is None
    assert isinstance(place.trainer, Stub)
    assert (place.trainer.trained, written(place)) == (0, [])
    assert sent(gate.next().begin(place)).WhichOneof("body") == "keys"


@pytest.mark.parametrize("how", ["goodbye", "close", "close message", "next start"])
def test_the_secrets_of_an_attempt_go_with_it(how: str) -> None:
    gate = Gateway(devices(3))
    gate.gather_vectors()
    session = gate.places[0].session
    member = session._member
    assert member is not None
    assert member._mask is not None
    assert member._seal is not None
    pairs = [half for pair in member._held.values() for half in pair]
    secrets = [member._seed, member._mask.secret, member._seal.secret, *pairs]
    assert len(secrets) == 7
    assert all(any(secret) for secret in secrets)
    if how == "goodbye":
        assert session.receive(pb.ToClient(goodbye=pb.Goodbye()).SerializeToString()) == []
    elif how == "close":
        session.close()
    elif how == "close message":
        assert gate.give(0, {"close": pb.Close()}) == []
    else:
        begin(gate.places[0], attempt=1)
    assert not any(any(secret) for secret in secrets)
    assert session._member is not member
    assert session._vector == bytearray()
    assert records.Closed(gate.ctx) in written(gate.places[0])
