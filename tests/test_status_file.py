"""What agent and session say of themselves: exact files, and whether their writer still runs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients.status_file import (
    AGENT,
    SESSION,
    AgentStatus,
    SessionStatus,
    alive,
    process_mark,
    read_agent,
    read_session,
    write_agent,
    write_session,
)
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

JOINED = SessionStatus(state="idle", run="r-1", gateway="fl.example.org:443", up=True, since=1.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_agent(tmp_path) is None
    assert read_session(tmp_path) is None
    agent = AgentStatus(state="waiting", until=7.5, error="no SuperLink", move="look at its log")
    write_agent(tmp_path, agent)
    write_session(tmp_path, JOINED)
    assert (read_agent(tmp_path), read_session(tmp_path)) == (agent, JOINED)
    assert sorted(os.listdir(tmp_path)) == [AGENT, SESSION]
    assert stat.S_IMODE((tmp_path / AGENT).stat().st_mode) == 0o600


def test_its_writer_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    write_session(tmp_path, JOINED)
    assert alive(JOINED)
    assert not alive(replace(JOINED, pid=1))
    assert not alive(replace(JOINED, mark=""))
    program = "import sys; sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    said = replace(JOINED, pid=other.pid, mark=process_mark(other.pid))
    assert alive(said)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it waits to be reaped
    assert not alive(said)
    other.communicate()
    assert not alive(said)


def test_texts_are_one_line_and_bounded(tmp_path: Path) -> None:
    write_agent(tmp_path, AgentStatus(state="up", error="a\nb\x1b[31m" + "c" * 5000))
    found = read_agent(tmp_path)
    assert found is not None
    assert found.error.startswith("a b\\x1b[31mccc")
    assert len(found.error) == 1000


def _written(**values: Any) -> bytes:
    return json.dumps(asdict(AgentStatus(state="up")) | values).encode()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "expected JSON"),
        (b"[]", "expected the fields state, detail"),
        (b"{}", "expected the fields state, detail"),
        (_written(more=1), "expected the fields state, detail"),
        (_written(state="asleep"), "expected one of starting, up"),
        (_written(program=-1), "program: expected a int"),
        (_written(program=True), "program: expected a int"),
        (_written(program=2**60), "program: expected a int"),
        (_written(until=-0.5), "until: expected a float"),
        (_written(until="0"), "until: expected a float"),
        (_written(detail="a\nb"), "detail: expected a str"),
        (_written(detail="a" * 1001), "detail: expected a str"),
        (_written(detail="a" * 70_000), "expected at most 65536 bytes"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes, cause: str) -> None:
    (tmp_path / AGENT).write_bytes(content)
    with pytest.raises(StateError) as caught:
        read_agent(tmp_path)
    assert cause in str(caught.value)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    write_agent(tmp_path, AgentStatus(state="up"))
    (tmp_path / AGENT).rename(tmp_path / "elsewhere")
    (tmp_path / AGENT).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="expected a readable file"):
        read_agent(tmp_path)


def test_who_writes_needs_no_framework() -> None:
    program = (
        "import sys, umbel.clients.status_file, umbel.clients.pause\n"
        "loaded = {'flwr', 'grpc', 'numpy', 'cryptography', 'typer'} & set(sys.modules)\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
