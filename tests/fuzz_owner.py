"""The files of a device that its owner's commands read: what agent and session say, the pause."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from umbel.clients.pause import PAUSED, Pause, paused
from umbel.clients.status_file import (
    AGENT,
    SESSION,
    AgentStatus,
    SessionStatus,
    read_agent,
    read_session,
)
from umbel.protocol.errors import StateError
from umbel.tests.fuzz_files import folder, of
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _file(name: str) -> Callable[[], Path]:
    return lambda: folder() / name


def _json(value: Any) -> bytes:
    return json.dumps(asdict(value)).encode()


AGENTS = (
    AgentStatus(state="up", program=7, restarts=1),
    AgentStatus(state="waiting", until=9.5, error="no SuperLink", error_at=8.0, move="wait"),
)
JOINED = SessionStatus(
    state="exchanging", run="r-1", gateway="fl.example.org:443", up=True, since=4.5, round=3,
    phase="train", members=20, doing=5.5, rounds=2, bytes_up=1 << 20,
)  # fmt: skip

OWNER = (
    Parser(
        name="status_file.read_agent", form="json", errors=(StateError,), again=_json,
        make=lambda: list(map(_json, AGENTS)),
        parse=of(_file(AGENT), lambda: read_agent(folder())),
    ),
    Parser(
        name="status_file.read_session", form="json", errors=(StateError,), again=_json,
        make=lambda: [_json(JOINED)], parse=of(_file(SESSION), lambda: read_session(folder())),
    ),
    Parser(
        name="pause.paused", form="json", errors=(), again=_json,
        make=lambda: [_json(Pause(since=1.5)), _json(Pause(since=1.5, until=1e10, now=True))],
        parse=of(_file(PAUSED), lambda: paused(folder(), 2.0) or Pause(since=2.0)),
    ),
)  # fmt: skip
