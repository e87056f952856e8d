"""Who could have written a policy file, and on which line a key stands."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from umbel.clients.policy_file import line_of, read_owned
from umbel.protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.toml"
    file.write_text("[secure]\n")
    file.chmod(0o644)
    return file


def refusal(path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        read_owned(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o444, 0o755])
def test_a_file_that_others_may_only_read_is_read(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert read_owned(path) == "[secure]\n"


@pytest.mark.parametrize("mode", [0o622, 0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    wanted = f"expected no write permission but the owner's, got 'mode {mode:04o}'; chmod go-w"
    assert wanted in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 12345, -1)
    assert "expected a file of this user or root, got 'user 12345'" in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(path: Path) -> None:
    os.chown(path.parent, 12345, -1)
    with pytest.raises(SettingsError, match="a directory of this user or root, got 'user 12345'"):
        read_owned(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_file_of_root_serves_every_user(path: Path) -> None:
    for folder in (path.parent, *path.parents[1:3]):
        folder.chmod(0o755)
    user = os.fork()
    if user == 0:
        try:
            os.seteuid(12345)
            os._exit(0 if read_owned(path) == "[secure]\n" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(user, 0)[1]) == 0


def test_a_symbolic_link_is_refused_by_its_target(path: Path) -> None:
    link = path.with_name("link.toml")
    link.symlink_to(path)
    assert f"expected a file, got 'a symbolic link'; name the file itself: {path}" in refusal(link)
    path.unlink()  # also one that leads nowhere
    assert "got 'a symbolic link'" in refusal(link)


def test_a_directory_in_which_others_may_replace_it_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(
        SettingsError, match="a directory only its owner may change, got 'mode 0777'"
    ):
        read_owned(path)
    path.parent.chmod(0o1777)  # sticky: only the owner of a file may replace it
    assert read_owned(path) == "[secure]\n"


def test_what_is_no_file_is_refused(path: Path) -> None:
    assert "expected a readable file, got 'No such file or directory'" in refusal(
        path.with_name("absent")
    )
    assert "expected a readable file, got 'Is a directory'" in refusal(path.parent)
    pipe = path.with_name("pipe")
    os.mkfifo(pipe, 0o600)  # opening it must not wait for a writer
    assert "expected a regular file, got 'prw-------'" in refusal(pipe)


def test_what_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"[secure]\n# \xff\n")
    assert refusal(path) == f"{path}:2: expected UTF-8, got 'other bytes'"
    path.write_bytes(b"#" * (1 << 20))
    assert len(read_owned(path)) == 1 << 20
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert "expected at most 1048576 bytes, got 'more'" in refusal(path)


TEXT = """\
# min_members = 1
update.max_weight = 3

[ secure ]   # a comment
required = true
"min_members" = 4
schemes = [
  "A",
]
[limits]
 rounds_per_day=1
[clear]
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("update", 2),
        ("update.max_weight", 2),
        ("secure", 4),
        ("secure.required", 5),
        ("secure.min_members", 6),
        ("secure.schemes", 7),
        ("limits.rounds_per_day", 11),
        ("clear", 12),
        ("absent", 1),
    ],
)
def test_a_key_has_its_line(key: str, line: int) -> None:
    assert line_of(TEXT, key) == line


def test_a_line_of_sixty_thousand_blanks_takes_no_time() -> None:
    blank = " " * 60_000
    began = time.process_time()
    assert line_of(f"[secure]\n{blank}\n{blank}x\nmin_members = 1", "secure.min_members") == 4
    assert time.process_time() - began < 1.0  # a regular expression that splits blanks takes days


def test_an_inline_table_has_the_line_of_its_table() -> None:
    assert line_of("\n\nsecure = {min_members = 1}\n", "secure.min_members") == 3
