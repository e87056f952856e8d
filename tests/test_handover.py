"""Sessions that make room for their nodes' next ones before a round, and the round that waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.verification import Member
from umbel.server.handover import AHEAD_S, BACK_S, Handover
from umbel.server.invitation import Joined
from umbel.server.registry import Node, Registry
from umbel.tests.federations import made

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DEADLINE = 600.0
HOUR = 3600.0
A, B = "a" * 32, "b" * 32


class Server:
    """A run with two nodes, whose sessions and registered certificates a test changes."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        """Let both join now, with leaves of a day, the ones that the registry has."""
        self.now, self.gone, self.lines = 0.0, list[str](), list[str]()
        self.here: dict[str, Joined] = {}
        self.registered: dict[str, Node] = {}
        for node in (A, B):
            self.renew(node, 1)
            self.join(node, 1, days=1)
        self.handover = Handover(
            deadline,
            registered=lambda: self.registered,
            let_go=self.gone.append,
            wall=lambda: NOW + timedelta(seconds=self.now),
            note=self.lines.append,
        )

    def join(self, node: str, number: int, *, days: float) -> None:
        """Begin a session with certificate `number` of a node."""
        ends = NOW + timedelta(days=days)
        member = Member(bytes.fromhex(node), "ward 7", None, bytes([number]) * 32, ends)  # type: ignore[arg-type]
        self.here[node] = Joined(member, b"")

    def renew(self, node: str, number: int) -> None:
        """Put certificate `number` into the registry."""
        self.registered[node] = Node(
            name=f"node-{node[0]}", id=node, site="s", flower_key=node, tls_fingerprint="",
            signing_fingerprint=(bytes([number]) * 32).hex(),
        )  # fmt: skip

    def ready(self, seconds: float = 0.0) -> bool:
        """Ask whether a round may begin, so much later."""
        self.now += seconds
        return self.handover(self.here, self.now)


def test_a_session_whose_certificate_outlasts_the_round_is_left_alone() -> None:
    server = Server()
    server.renew(A, 2)
    assert server.ready()
    assert server.gone == []


def test_a_renewed_certificate_is_taken_up_before_the_old_one_ends_in_a_round() -> None:
    server = Server()
    assert server.ready()
    server.now = 24 * HOUR - DEADLINE - AHEAD_S + 1
    server.handover._began = {}  # its sessions are young
    server.renew(A, 2)
    assert not server.ready()
    assert server.gone == [A]
    assert server.lines == [
        "node-a: its certificate ends soon, and it has another one; "
        "it is invited anew before the next round"
    ]
    assert not server.ready(1.0)  # the old session is there yet
    del server.here[A]
    assert not server.ready(1.0)
    server.join(A, 2, days=2)
    assert server.ready(1.0)
    assert server.gone == [A]


def test_who_has_no_other_certificate_is_not_let_go_for_nothing() -> None:
    server = Server()
    server.join(A, 1, days=DEADLINE / 86400 / 2)
    assert server.ready()
    del server.registered[B]
    server.join(B, 1, days=0.0001)
    assert server.ready()
    assert server.gone == []


def test_who_does_not_come_back_is_waited_for_and_then_not_any_more() -> None:
    server = Server()
    server.join(A, 1, days=0.001)
    server.renew(A, 2)
    assert not server.ready()
    del server.here[A]
    assert not server.ready(BACK_S - 0.1)
    assert server.ready(0.2)
    assert server.gone == [A]


def test_no_round_meets_the_end_of_a_lease_and_all_are_let_go_in_one_pause() -> None:
    server = Server()
    assert server.ready()
    assert server.ready(6 * HOUR - 2 * DEADLINE - AHEAD_S)
    assert not server.ready(1.0)
    assert server.gone == [A, B]
    for node in (A, B):
        server.join(node, 1, days=1)
    assert server.ready(5.0)
    assert server.ready(HOUR)
    assert server.gone == [A, B]


@pytest.mark.parametrize("deadline", [600.0, 3 * HOUR, 6 * HOUR])
def test_a_session_serves_for_a_while_whatever_the_deadline(deadline: float) -> None:
    server = Server(deadline)
    assert server.ready()
    assert server.ready(1.4 * HOUR)
    assert server.gone == []


# ---- the registry, read anew -------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path: Path) -> DevFederation:
    return made(tmp_path / "f")


def test_the_registry_is_what_its_file_says_now(federation: DevFederation) -> None:
    warned: list[str] = []
    found = Registry(federation.folder, warned.append)
    before = found()
    assert found() is before
    assert {node.name for node in found.by_id().values()} == {"edge-0", "edge-1", "edge-2"}
    file = federation.folder / "nodes.json"
    renewed = file.read_text().replace(federation.nodes[0].signing_fingerprint, "ab" * 32)
    (beside := file.with_suffix(".new")).write_text(renewed)
    beside.replace(file)
    assert found.by_id()[federation.nodes[0].id].signing_fingerprint == "ab" * 32
    file.unlink()
    assert len(found()) == 3
    file.write_text("[")
    assert len(found()) == 3
    assert len(warned) == 2
    assert "the nodes that were known before stay" in warned[0]
