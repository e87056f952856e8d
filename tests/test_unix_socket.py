"""Sockets of one machine: who may connect, and what is said when nobody can."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from umbel.host.unix_socket import connected, listen
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_listening_end_is_the_owners_alone_and_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    assert connected(path, 5, "somebody") is None
    with listen(path, 1):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        stream = connected(path, 5, "somebody")
        assert stream is not None
        stream.close()
    assert connected(path, 5, "somebody") is None  # the file of one that is gone
    with listen(path, 1) as again:
        assert not again.getblocking()


def test_a_path_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="at most 107 bytes"):
        listen(tmp_path / ("d" * 108), 1)
    with pytest.raises(StateError, match="a socket that can be made, got No such file"):
        listen(tmp_path / "none" / "a.sock", 1)
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="expected somebody, got Not a directory"):
        connected(tmp_path / "file" / "a.sock", 5, "somebody")
