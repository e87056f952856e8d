"""A hook of the owner's answers by its exit status, in time, and is the owner's own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.clients.hooks import answer
from umbel.protocol.errors import SettingsError

KEY = "limits.ready_hook"


def hook(tmp_path: Path, body: str) -> tuple[str, ...]:
    file = tmp_path / "hook"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return (str(file), "one argument", "$HOME;exit 3")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [("exit 0", 0, "exit status 0"), ("exit 7", 7, "exit status 7"),
     ("kill -9 $$", None, "signal 9")],
)  # fmt: skip
def test_the_exit_status_decides(tmp_path: Path, body: str, status: int | None, words: str) -> None:
    assert answer(hook(tmp_path, body), KEY) == (status, words)


def test_no_shell_reads_the_arguments_and_no_secret_is_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_SECRET", "7")
    body = f'printf "%s|%s" "$1" "$2" > {tmp_path}/said; env > {tmp_path}/env; read x && exit 5'
    assert answer(hook(tmp_path, f"{body}; exit 0"), KEY)[0] == 0
    assert (tmp_path / "said").read_text() == "one argument|$HOME;exit 3"
    assert "UMBEL_SECRET" not in (tmp_path / "env").read_text()


def test_who_is_silent_is_ended_with_what_it_started(tmp_path: Path) -> None:
    body = f"sleep 61 & echo $! > {tmp_path}/child; sleep 62"
    status, words = answer(hook(tmp_path, body), KEY, 1.5)
    assert (status, words) == (None, "no answer within 1.5 s")
    child, until = int((tmp_path / "child").read_text()), time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_hook_that_is_not_there_or_not_the_owners_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected a program that is there"):
        answer(("/nonexistent/hook",), KEY)
    own = hook(tmp_path, "exit 0")
    Path(own[0]).chmod(0o777)
    with pytest.raises(SettingsError, match="a file of this user or root alone"):
        answer(own, KEY)
    Path(own[0]).chmod(0o600)
    with pytest.raises(SettingsError, match="a program that can be run"):
        answer(own, KEY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_hook_of_another_user_is_refused(tmp_path: Path) -> None:
    own = hook(tmp_path, "exit 0")
    os.chown(own[0], 12345, -1)
    with pytest.raises(SettingsError, match="a file of this user or root alone, got 'user 12345"):
        answer(own, KEY)
