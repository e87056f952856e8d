"""Invitations: who is asked with which ticket, when again, and by which name an error is told."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from umbel.protocol import messages_pb2 as pb
from umbel.server.deadlines import LEASE_S
from umbel.server.flower_invitations import (
    AGAIN_S,
    EVERY_S,
    LIMITED_S,
    LONGEST_S,
    PATIENCE_S,
)
from umbel.tests.federations import made
from umbel.tests.flower_grid import identified
from umbel.tests.inviting import Inviting

if TYPE_CHECKING:
    from umbel.simulation.dev_federation import DevFederation

NOBODY: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> DevFederation:
    """Three nodes: 101, 102 and 103 in Flower."""
    return made(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def inviting(federation: DevFederation, monkeypatch: pytest.MonkeyPatch) -> Inviting:
    """Nobody has been asked."""
    identified(monkeypatch)
    return Inviting(federation)


# ---- who, and with what --------------------------------------------------------------------------


def test_each_node_gets_the_ticket_of_its_own_certificate(
    inviting: Inviting, federation: DevFederation
) -> None:
    assert inviting.step() == [101, 102, 103]
    expected = [(n.id, n.tls_fingerprint, LEASE_S) for n in federation.nodes]
    assert inviting.mint.asked == expected
    for place, message in enumerate(inviting.desk.pushed):
        assert message.metadata.message_type == "train"
        assert message.metadata.ttl > LEASE_S  # the answer comes when the session has ended
        assert dict(message.content["config"]) == {"lr": 0.5, "seed": 3}
        assert dict(message.content["umbel.invite"]) == {
            "run": "run-1",
            "gateway": "localhost:443",
            "ca-sha256": bytes(range(32)).hex(),
            "ticket": f"3 {federation.nodes[place].id}".encode(),
            "lease": LEASE_S,
        }
        assert set(message.content) == {"config", "umbel.invite"}


def test_who_is_offline_or_has_a_session_is_not_asked(inviting: Inviting) -> None:
    inviting.desk.nodes[102].status = "offline"
    assert inviting.step(joined=[101]) == [103]
    inviting.desk.nodes[102].status = "online"
    assert inviting.step(EVERY_S, joined=[101]) == [102]


def test_it_looks_no_more_often_than_it_says(inviting: Inviting) -> None:
    inviting.step()
    for _ in range(10):
        inviting.step(EVERY_S / 20)
    assert inviting.desk.looks == 1
    inviting.step(EVERY_S)
    assert inviting.desk.looks == 2


def test_flower_is_left_alone_while_everybody_is_here(inviting: Inviting) -> None:
    inviting.step()
    for _ in range(10):
        assert inviting.step(1.0, joined=[101, 102, 103]) == []
    assert (inviting.desk.looks, len(inviting.desk.asked_for)) == (1, 0)


def test_an_unknown_node_is_named_once_and_not_asked(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    pem = b"-----BEGIN PUBLIC KEY-----\nanother"
    inviting.desk.nodes[999] = NodeInfo(node_id=999, public_key=pem, status="online")
    with caplog.at_level(logging.WARNING, "flwr"):
        for _ in range(4):
            assert 999 not in inviting.step(1.0)
    (line,) = [r.getMessage() for r in caplog.records]
    digest = sha256(pem).hexdigest()[:16]
    assert (
        line == f"Flower node 999 (key SHA-256 {digest}...) is in no enrolment of this federation"
    )


# ---- again ---------------------------------------------------------------------------------------


def test_a_silent_node_is_asked_again_when_patience_is_over(inviting: Inviting) -> None:
    inviting.step()
    assert inviting.step(PATIENCE_S - 0.1) == []
    assert inviting.step(EVERY_S) == [101, 102, 103]
    tickets = [m.content["umbel.invite"]["ticket"] for m in inviting.desk.to(101)]
    assert len(set(tickets)) == 2


def test_a_node_whose_session_ended_is_asked_again_after_its_answer(inviting: Inviting) -> None:
    inviting.step()
    inviting.step(60.0, joined=[101, 102])
    inviting.desk.answer(inviting.desk.to(101)[0])
    assert inviting.step(100.0, joined=[102]) == [103]  # the answer is taken now; 103 was silent
    assert inviting.step(AGAIN_S - 0.1, joined=[102]) == []
    assert inviting.step(EVERY_S, joined=[102]) == [101]


def test_a_node_that_lost_its_session_is_asked_at_once_though_it_never_answers(
    inviting: Inviting,
) -> None:
    inviting.step()
    inviting.step(2.0, joined=[101, 102, 103])
    assert inviting.step(1.0, joined=[102, 103]) == [101]  # well within the patience
    assert inviting.step(PATIENCE_S - 1.0, joined=[102, 103]) == []  # now it has its time


def test_a_node_outside_its_own_limits_is_asked_much_later(inviting: Inviting) -> None:
    inviting.step()
    gaps = []
    for _ in range(11):
        inviting.desk.answer(inviting.desk.to(101)[-1], pb.REASON_LIMITS)
        inviting.step(EVERY_S)
        gaps.append(inviting.gap(101, 400.0))
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, LIMITED_S, LIMITED_S]


def test_a_node_that_refuses_is_asked_ever_later(inviting: Inviting) -> None:
    inviting.step()
    gaps = []
    for _ in range(8):
        inviting.desk.answer(inviting.desk.to(101)[-1], pb.REASON_APP_NOT_ALLOWED)
        inviting.step(EVERY_S)
        gaps.append(inviting.gap(101))
    assert gaps == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S, LONGEST_S]
    inviting.step(EVERY_S, joined=[101])  # it has had a session: all is forgotten
    inviting.desk.answer(inviting.desk.to(101)[-1])
    inviting.step(EVERY_S)
    assert inviting.gap(101) == AGAIN_S


def test_what_flower_does_not_take_is_no_invitation(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    inviting.desk.takes = False
    with caplog.at_level(logging.WARNING, "flwr"):
        assert inviting.step() == []
    assert [r.getMessage().partition(": ")[2] for r in caplog.records] == [
        "Flower did not take its invitation"
    ] * 3
    inviting.desk.takes = True
    assert inviting.step(PATIENCE_S - 0.1) == []
    assert inviting.step(EVERY_S) == [101, 102, 103]
    assert None not in [i for ids in inviting.desk.asked_for for i in ids]


def test_no_list_of_ids_at_all_is_none_taken(
    inviting: Inviting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inviting.desk, "push_messages", lambda _messages: [])
    inviting.step()
    monkeypatch.undo()
    assert inviting.step(1.0) == []


# ---- names ---------------------------------------------------------------------------------------


def said(inviting: Inviting, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Look once and return the lines of it."""
    with caplog.at_level(logging.WARNING, "flwr"):
        inviting.step(1.0)
    return [r.getMessage() for r in caplog.records]


@pytest.mark.parametrize("code", [2, 7, 8])
def test_an_error_is_told_by_the_node_that_was_asked(
    inviting: Inviting, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    inviting.step()
    inviting.desk.fail(inviting.desk.to(102)[0], code)
    reply = inviting.desk.replies[0]
    assert reply.metadata.src_node_id == 1  # Flower's own node
    name = f"edge-1 ({inviting.ids[1][:8]})"
    assert said(inviting, caplog) == [f"node {name}: its ClientApp failed, code {code}"]
    assert inviting.invitations.why() == f"edge-1 its ClientApp failed, code {code}"
    assert inviting.invitations.declined == [(inviting.ids[1], f"CLIENTAPP {code}")]


def test_a_node_that_went_offline_has_said_nothing_of_its_own(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    inviting.step()
    inviting.desk.fail(inviting.desk.to(102)[0], 5)
    name = f"edge-1 ({inviting.ids[1][:8]})"
    assert said(inviting, caplog) == [f"node {name}: went offline before it answered"]
    assert inviting.invitations.declined == []


def test_a_refusal_is_told_with_its_code_as_words(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    inviting.step()
    inviting.desk.answer(inviting.desk.to(103)[0], pb.REASON_PLAIN_REFUSED)
    assert said(inviting, caplog) == [f"node edge-2 ({inviting.ids[2][:8]}): left: plain refused"]
    assert inviting.invitations.declined == [(inviting.ids[2], "REASON_PLAIN_REFUSED")]


def test_who_failed_twice_is_not_counted_on_until_it_has_a_session(inviting: Inviting) -> None:
    inviting.step()
    for expected in (3, 2):
        inviting.desk.fail(inviting.desk.to(101)[-1], 2)
        inviting.step(EVERY_S)
        assert inviting.invitations.possible() == expected
        inviting.gap(101)
    inviting.desk.answer(inviting.desk.to(102)[-1])  # an ordinary end
    inviting.step(EVERY_S)
    assert inviting.invitations.possible() == 2
    inviting.step(EVERY_S, joined=[101])
    assert inviting.invitations.possible() == 3


def test_a_node_in_another_runs_session_is_asked_once_and_named(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    inviting.mint.elsewhere = {node: "run-0" for node in inviting.ids[:2]}
    with caplog.at_level(logging.WARNING, "flwr"):
        assert inviting.step() == [101, 102, 103]
        assert inviting.invitations.busy() == {"edge-0": "run-0", "edge-1": "run-0"}
        for _ in range(4):
            assert inviting.step(PATIENCE_S) == [103]
    said = [r.getMessage() for r in caplog.records]
    assert said == ["edge-0, edge-1: busy in run run-0; they come when that is over"]
    inviting.mint.elsewhere = dict.fromkeys(inviting.ids, "")
    assert inviting.step(EVERY_S) == []
    assert inviting.step(PATIENCE_S) == [101, 102, 103]
    assert inviting.invitations.busy() == {}
    inviting.mint.elsewhere = {inviting.ids[0]: "run-0"}
    assert inviting.step(PATIENCE_S, joined=[101]) == [102, 103]
    assert inviting.invitations.busy() == {}  # it is here all the same


def test_an_ordinary_end_is_no_news(inviting: Inviting, caplog: pytest.LogCaptureFixture) -> None:
    inviting.step()
    inviting.desk.answer(inviting.desk.to(101)[0])
    assert said(inviting, caplog) == []


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"metrics": MetricRecord({"num-examples": 3})}),
        RecordDict({"umbel.session": ConfigRecord({"rounds": 1})}),
        RecordDict({"umbel.session": ConfigRecord({"code": "23"})}),
        RecordDict({"umbel.session": ConfigRecord({"code": 4711})}),
        RecordDict({"umbel.session": MetricRecord({"code": 23})}),
    ],
)
def test_an_app_without_umbel_is_told_as_one(
    inviting: Inviting, caplog: pytest.LogCaptureFixture, content: RecordDict
) -> None:
    inviting.step()
    inviting.desk.replies.append(Message(content, reply_to=inviting.desk.to(101)[0]))
    (line,) = said(inviting, caplog)
    assert line.endswith("answered its invitation without a session: it runs no Umbel ClientApp")


def test_an_answer_to_nothing_is_passed_over(
    inviting: Inviting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inviting.step()
    stray = Message(RecordDict(), dst_node_id=101, message_type="train")
    stray.metadata.__dict__["_message_id"] = "another"
    reply = Message(RecordDict(), reply_to=stray)
    monkeypatch.setattr(inviting.desk, "pull_messages", lambda _ids: [reply])
    assert said(inviting, caplog) == []
