"""The way to a core service that is not there yet: what killed a ServerApp may have killed both."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import StateError
from umbel.server.draining import Drain
from umbel.server.flower_sittings import opened
from umbel.server.settings import RunSettings
from umbel.tests.federations import PARAMS, core, made

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.core_client import CoreClient
    from umbel.simulation.dev_federation import DevFederation

RUN = RunSettings(run="later", rounds=1, params=PARAMS)


@pytest.fixture
def federation(tmp_path: Path) -> DevFederation:
    """A federation whose core service does not run."""
    return made(tmp_path / "f")


def test_a_core_service_that_comes_back_is_waited_for(federation: DevFederation) -> None:
    found: list[CoreClient] = []
    waiting = threading.Thread(target=lambda: found.append(opened(federation.folder, RUN, 60.0)))
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive()
    with core(federation) as port:
        waiting.join(30)
        assert [client.gateway for client in found] == [f"localhost:{port}"]
        found[0].close()


def test_one_that_stays_away_is_named(federation: DevFederation) -> None:
    with pytest.raises(StateError, match=r"core service: expected it back within 1 s, got .*core"):
        opened(federation.folder, RUN, 0.6)


def test_a_new_run_waits_for_none(federation: DevFederation) -> None:
    with pytest.raises(StateError, match="start the core service"):
        opened(federation.folder, RUN, 0.0)


def test_whoever_tells_the_run_to_end_is_heard(federation: DevFederation) -> None:
    began, drain = time.monotonic(), Drain()
    drain.asked = "SIGTERM"
    with pytest.raises(StateError, match="expected it back"):
        opened(federation.folder, RUN, 60.0, drain)
    assert time.monotonic() - began < 30
