"""The ServerApp's end of core.sock: against the real core, and against a peer that misbehaves."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import tickets
from umbel.protocol.errors import Malformed, StateError
from umbel.server import core_client, core_wire
from umbel.server.core_client import CoreClient
from umbel.tests.core_peer import CTX, Peer, Told, intake, opened
from umbel.tests.federations import core, made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

NODE, OTHER = "0a" * 16, "0b" * 16


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> DevFederation:
    """Certificates; no core."""
    return made(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def peer(federation: DevFederation, tmp_path: Path) -> Iterator[Peer]:
    """A peer that answers `open` well."""
    found = Peer(federation, tmp_path)
    found.answers["open"] = [opened(federation)]
    yield found
    found.close()


@pytest.fixture
def client(peer: Peer) -> Iterator[CoreClient]:
    """A connection to the peer."""
    with CoreClient.open(peer.folder, "run-1", "A") as found:
        yield found


# ---- opening -----------------------------------------------------------------------------------


def test_an_open_connection_knows_gateway_and_federation(peer: Peer, client: CoreClient) -> None:
    assert (client.run, client.gateway) == ("run-1", "gw:443")
    assert client.verifier is not None
    assert len(client.ca) == 32
    assert dict(peer.got[0].fields) == {"run": "run-1", "scheme": "A"}


@pytest.mark.parametrize(
    "changes",
    [
        {"names": []},
        {"names": "gw"},
        {"names": [7]},
        {"port": "443"},
        {"port": None},
        {"port": True},
    ],
)
def test_an_answer_that_names_no_gateway_is_refused(
    peer: Peer, federation: DevFederation, changes: dict[str, object]
) -> None:
    peer.answers["open"] = [opened(federation, **changes)]
    with pytest.raises(Malformed, match="core: opened: expected names and port of the gateway"):
        CoreClient.open(peer.folder, "run-1", "A")


def test_a_core_with_another_ca_is_not_used(peer: Peer, federation: DevFederation) -> None:
    peer.answers["open"] = [opened(federation, ca="00" * 32)]
    with pytest.raises(StateError, match="the federation's CA was made anew"):
        CoreClient.open(peer.folder, "run-1", "A")


@pytest.mark.parametrize("name", ["ca.pem", "core.json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff{", b"[]"])
def test_a_file_that_is_missing_or_damaged_is_named(
    peer: Peer, name: str, content: bytes | None
) -> None:
    if content is None:
        (peer.folder / name).unlink()
    else:
        (peer.folder / name).write_bytes(content)
    with pytest.raises(StateError, match=rf"{name}: expected ") as caught:
        CoreClient.open(peer.folder, "run-1", "A")
    assert str(caught.value).endswith("start the core service: `umbel core up`, or `umbel up`")


def test_where_no_core_listens_one_line_says_so(peer: Peer) -> None:
    peer.close()
    with pytest.raises(StateError, match=r"core\.sock: expected the core service, got Connection"):
        CoreClient.open(peer.folder, "run-1", "A")


# ---- a peer that breaks off --------------------------------------------------------------------


@pytest.mark.parametrize("part", [0, 5, 12, 20])
def test_a_core_that_goes_away_is_noticed_wherever_it_does(
    peer: Peer, federation: DevFederation, part: int
) -> None:
    peer.answers["open"] = [opened(federation)[:part], None]
    with pytest.raises(StateError, match="expected the core service, got its connection closed"):
        CoreClient.open(peer.folder, "run-1", "A")


def test_a_core_that_says_nothing_is_given_up(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_client, "ANSWER_S", 0.2)
    peer.answers["open"] = []
    with pytest.raises(StateError, match="expected an answer to `open` in 0 s, got none"):
        CoreClient.open(peer.folder, "run-1", "A")


def test_a_core_that_stops_inside_a_message_is_given_up(
    peer: Peer, client: CoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_client, "ANSWER_S", 0.2)
    peer.say(core_wire.head("message", 1000, node=NODE), b"only this")
    with pytest.raises(StateError, match="expected the rest of a message in 0 s, got nothing"):
        client.events(5.0)


def test_silence_between_messages_is_no_fault(client: CoreClient) -> None:
    assert client.events(0.05) == []


def test_commands_to_a_core_that_is_gone_end_in_one_line(peer: Peer, client: CoreClient) -> None:
    peer.close()
    end = time.monotonic() + 60
    with pytest.raises(StateError, match=r"core\.sock: expected the core service, got "):  # noqa: PT012
        while time.monotonic() < end:
            client.post(NODE, bytes(100_000))


@pytest.mark.parametrize(
    "junk",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(12) + b"x",
        core_wire._SIZES.pack(2, 0) + b"[]",
        core_wire._SIZES.pack(15, 0) + b'{"op":"reboot"}',
        core_wire._SIZES.pack(4, 0) + b'{"op',
        core_wire._SIZES.pack(1 << 30, 0),
        core_wire._SIZES.pack(2, 1 << 60),
        core_wire.head("left", 9, node=NODE) + bytes(9),
    ],
)
def test_bytes_that_are_no_event_are_malformed(peer: Peer, client: CoreClient, junk: bytes) -> None:
    peer.say(junk)
    with pytest.raises(Malformed, match="core: "):
        client.events(5.0)


@pytest.mark.parametrize("count", [3, {}, {"up": 1}, {"up": -1, "down": 0}, {"up": "1", "down": 2}])
def test_counts_that_are_none_are_malformed(peer: Peer, client: CoreClient, count: object) -> None:
    peer.say(core_wire.head("left", node=NODE, bytes=count))
    with pytest.raises(Malformed, match="core: bytes: expected counts up and down"):
        client.events(5.0)


# ---- questions ---------------------------------------------------------------------------------


def test_events_that_come_before_an_answer_keep_their_order(peer: Peer, client: CoreClient) -> None:
    peer.answers["tickets"] = [
        core_wire.head("left", node=NODE),
        core_wire.head("message", 3, node=OTHER) + b"abc",
        core_wire.head("tickets", tickets={NODE: "beef"}),
        core_wire.head("left", node=OTHER),
    ]
    assert client.tickets([(NODE, "00" * 32)], 60.0) == {NODE: b"\xbe\xef"}
    assert dict(peer.commands(1)[0].fields) == {
        "nodes": [{"id": NODE, "tls_fingerprint": "00" * 32}], "seconds": 60.0
    }  # fmt: skip
    assert seen(client, 3) == [("left", NODE), ("message", OTHER), ("left", OTHER)]


def seen(client: CoreClient, count: int) -> list[tuple[str, str]]:
    """Return the next events as pairs of kind and node."""
    found: list[tuple[str, str]] = []
    while len(found) < count:
        new = client.events(5.0)
        assert new
        found += [(e.message.op, e.message.fields["node"]) for e in new]
    return found


@pytest.mark.parametrize(
    "answer", [None, [], {}, {OTHER: "be"}, {NODE: "xy"}, {NODE: 7}, {NODE: None}]
)
def test_an_answer_without_the_ticket_is_malformed(
    peer: Peer, client: CoreClient, answer: object
) -> None:
    peer.answers["tickets"] = [core_wire.head("tickets", tickets=answer)]
    with pytest.raises(Malformed, match="core: tickets: expected one for each node, in hex"):
        client.tickets([(NODE, "00" * 32)], 60.0)


def test_who_is_in_another_run_is_known_until_the_next_ticket(
    peer: Peer, client: CoreClient
) -> None:
    for busy, known in (({NODE: "run-0"}, {NODE: "run-0"}), ({}, {NODE: ""})):
        peer.answers["tickets"] = [core_wire.head("tickets", tickets={NODE: "beef"}, busy=busy)]
        client.tickets([(NODE, "00" * 32)], 60.0)
        assert client.elsewhere == known
    peer.answers["tickets"] = [core_wire.head("tickets", tickets={NODE: "beef"}, busy={NODE: 7})]
    with pytest.raises(Malformed, match="core: busy: expected runs by node"):
        client.tickets([(NODE, "00" * 32)], 60.0)


def test_a_command_that_the_core_refuses_says_which_and_why(peer: Peer, client: CoreClient) -> None:
    peer.answers["post"] = [core_wire.head("error", command="post", why="no room")]
    client.post(NODE, b"x")
    with pytest.raises(StateError, match="core: post: expected to be done, got no room; see"):
        client.events(5.0)


def test_traffic_is_what_passed_since_the_last_look(peer: Peer, client: CoreClient) -> None:
    assert client.traffic() == (0, 0)
    for count in ({"up": 10, "down": 4}, {"up": 17, "down": 4}):
        peer.say(core_wire.head("left", node=NODE, bytes=count))
        seen(client, 1)
    assert client.traffic() == (17, 4)
    peer.say(core_wire.head("left", node=NODE, bytes={"up": 18, "down": 9}))
    seen(client, 1)
    assert client.traffic() == (1, 5)


# ---- events ------------------------------------------------------------------------------------


def give(peer: Peer, client: CoreClient, told: Told, *events: bytes) -> list[tuple[Any, ...]]:
    """Send events, give them, and return what was told."""
    peer.say(*events)
    for _ in events:
        (event,) = client.events(5.0)
        coordinator: Any = told
        event.give(coordinator, 1.0)
    return told.calls


def test_each_event_is_one_call(peer: Peer, client: CoreClient) -> None:
    intake(client).expect(NODE, b"h" * 32)
    ctx = CTX.hex()
    assert give(
        peer, client, Told(),
        core_wire.head("joined", 3, node=NODE, resumed=False) + b"der",
        core_wire.head("message", 3, node=NODE) + b"abc",
        core_wire.head("whole", node=NODE, ctx=ctx),
        core_wire.head("bad", node=OTHER, ctx=ctx, why="w" * 300, attack=True),
        core_wire.head("left", node=NODE),
    ) == [
        ("join", b"der"), ("message", NODE, b"abc", 1.0), ("whole", NODE, b"h" * 32, 1.0),
        ("expel", OTHER, "w" * 256, 1.0), ("leave", NODE, 1.0),
    ]  # fmt: skip


def test_progress_says_until_when_uploads_are_waited_for(peer: Peer, client: CoreClient) -> None:
    opened = intake(client)
    assert opened.alive_until == -math.inf
    assert give(peer, client, Told(), core_wire.head("progress", ctx=CTX.hex(), left=2.5)) == []
    assert opened.alive_until == 1.0 + 2.5  # events are given at 1.0 here
    late = core_wire.head("progress", ctx="00" * 32, left=9.0)
    assert give(peer, client, Told(), late) == []
    assert opened.alive_until == 3.5


@pytest.mark.parametrize("left", [None, "5", -1, 1e9])
def test_a_progress_that_no_round_has_is_malformed(
    peer: Peer, client: CoreClient, left: object
) -> None:
    intake(client)
    said = core_wire.head("progress", ctx=CTX.hex(), left=left)
    with pytest.raises(Malformed, match=r"^core: progress.left: expected 0..21600 s, got"):
        give(peer, client, Told(), said)


def test_a_late_word_about_a_closed_sum_is_nobodys(peer: Peer, client: CoreClient) -> None:
    late = [
        core_wire.head("whole", node=NODE, ctx=CTX.hex()),
        core_wire.head("bad", node=NODE, ctx=CTX.hex(), why="stalled", attack=False),
    ]
    first = intake(client)
    first.close()
    assert give(peer, client, Told(), *late) == []  # none is open
    intake(client, ctx=bytes(32)).expect(NODE, b"h" * 32)
    assert give(peer, client, Told(), *late) == []  # another is
    assert len(give(peer, client, Told(), core_wire.head("whole", node=NODE, ctx="00" * 32))) == 1


def test_who_resumes_a_session_of_a_predecessor_joins(peer: Peer, client: CoreClient) -> None:
    resumed = core_wire.head("joined", 3, node=NODE, resumed=True) + b"der"
    assert give(peer, client, Told(known=False), resumed) == [("join", b"der")]


def test_a_bearer_of_a_bad_certificate_is_noted_and_nothing_else(
    peer: Peer, client: CoreClient
) -> None:
    joined = core_wire.head("joined", 3, node=NODE, resumed=False) + b"der"
    assert give(peer, client, Told(member=False), joined) == [
        ("note", "refused", "", "node: expired")
    ]


# ---- the real core -----------------------------------------------------------------------------


def test_the_real_core(tmp_path: Path) -> None:
    federation = made(tmp_path / "dev")
    with core(federation) as port, CoreClient.open(federation.folder, "run-1", "A") as client:
        assert client.gateway == f"localhost:{port}"
        node = federation.nodes[0]
        made_ = client.tickets([(n.id, n.tls_fingerprint) for n in federation.nodes], 60.0)
        key = (federation.folder / "tickets" / "run-1.key").read_bytes()
        ticket = tickets.admit(
            key, made_[node.id], run="run-1", node_id=bytes.fromhex(node.id),
            tls_fingerprint=bytes.fromhex(node.tls_fingerprint), gateway="localhost",
            now=datetime.now(UTC),
        )  # fmt: skip
        assert 0 < ticket.expires - datetime.now(UTC).timestamp() <= 60.0
        client.post(node.id, pb.ToClient(goodbye=pb.Goodbye()).SerializeToString())  # not here
        client.command("fold", node=node.id)
        with pytest.raises(StateError, match="core: fold: expected to be done, got "):
            client.events(5.0)
        with CoreClient.open(federation.folder, "run-1", "A") as successor:
            with pytest.raises(StateError, match="its connection closed"):
                client.events(5.0)
            assert successor.tickets([(node.id, node.tls_fingerprint)], 60.0)
            successor.goodbye()
            with pytest.raises(StateError, match="its connection closed"):
                successor.events(5.0)
        with pytest.raises(StateError, match="its connection closed"):
            CoreClient.open(federation.folder, "no/such run", "A")
        assert not (federation.folder / "tickets" / "run-1.key").exists()
