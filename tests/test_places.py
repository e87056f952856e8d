"""The state directory: which variable wins, its mode, and what is no directory."""

import stat
from pathlib import Path

import pytest

from umbel.host.places import umbel_home
from umbel.protocol.errors import StateError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("UMBEL_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


def test_umbel_home_wins_and_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert umbel_home() == tmp_path / "a" / "b"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert not (tmp_path / "xdg").exists()


def test_xdg_then_the_users_own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert umbel_home() == tmp_path / "user" / ".local" / "state" / "umbel"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert umbel_home() == tmp_path / "xdg" / "umbel"


def test_a_relative_xdg_value_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # XDG base directory specification: "all paths set in these variables must be absolute",
    # a relative one is invalid and ignored.
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert umbel_home() == tmp_path / "user" / ".local" / "state" / "umbel"


def test_an_existing_mode_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o750)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "shared"))
    assert stat.S_IMODE(umbel_home().stat().st_mode) == 0o750


def test_a_file_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "file"))
    with pytest.raises(StateError, match=r"file: expected a state directory.*UMBEL_HOME"):
        umbel_home()
