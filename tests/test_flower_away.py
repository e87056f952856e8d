"""A SuperLink that does not answer: nobody waits for it, and it is named once."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from umbel.server import registry
from umbel.server.flower_invitations import AWAY_S, LONGEST_S, Invitations
from umbel.tests.federations import made
from umbel.tests.flower_grid import Desk, identified
from umbel.tests.inviting import Inviting, Mint

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


def test_nobody_waits_for_a_superlink_that_does_not_answer(
    inviting: Inviting, caplog: pytest.LogCaptureFixture
) -> None:
    inviting.pool.held = []
    with caplog.at_level(logging.INFO, "flwr"):
        for _ in range(100):
            assert inviting.step(1.0) == []
        assert len(inviting.pool.held) == 1  # one question at a time
        assert inviting.desk.looks == 0
        inviting.pool.release()
        assert inviting.step(0.05) == [101, 102, 103]
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        "the SuperLink is away (no answer): nodes without a session are invited when it is back, "
        "the others go on",
        "the SuperLink answers again",
    ]


def test_a_short_wait_is_no_news(inviting: Inviting, caplog: pytest.LogCaptureFixture) -> None:
    inviting.pool.held = []
    with caplog.at_level(logging.INFO, "flwr"):
        inviting.step()
        inviting.step(AWAY_S)
        inviting.pool.release()
        assert inviting.step(0.05) == [101, 102, 103]
    assert caplog.records == []


def test_a_superlink_that_refuses_is_asked_ever_later_and_named_once(
    inviting: Inviting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse() -> None:
        asked.append(inviting.now)
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(inviting.desk, "get_nodes", refuse)
    with caplog.at_level(logging.INFO, "flwr"):
        while inviting.now < 1100.0:
            assert inviting.step(0.25) == []
        monkeypatch.undo()
        identified(monkeypatch)
        while not inviting.desk.pushed:
            inviting.step(0.25)
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S]
    said = [r.getMessage() for r in caplog.records]
    assert [line.partition(":")[0] for line in said] == [
        "the SuperLink is away (connection refused)",
        "the SuperLink answers again",
    ]


def test_flower_is_asked_in_another_thread(
    federation: DevFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    identified(monkeypatch)
    desk, mint, here = Desk(federation), Mint(), threading.Event()
    threads = []

    def stuck() -> Any:
        threads.append(threading.current_thread())
        assert here.wait(30)
        return list(desk.nodes.values())

    monkeypatch.setattr(desk, "get_nodes", stuck)
    core: Any = mint
    nodes = registry.read(federation.folder)
    invitations = Invitations(desk, lambda: nodes, core, {})
    for _ in range(10):
        invitations.step(NOBODY, time.monotonic())
    assert desk.pushed == []
    here.set()
    end = time.monotonic() + 30
    while len(desk.pushed) < 3:
        assert time.monotonic() < end
        invitations.step(NOBODY, time.monotonic())
        time.sleep(0.01)
    assert threading.current_thread() not in threads
    invitations.close()
