"""`umbel keygen` and `umbel sign`: a real app, bundled by Flower's own rules."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from umbel import cli
from umbel.clients.bundle import Bundle
from umbel.server.flower_control import build_bundle
from umbel.tests.flower_task import bundle

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's use of pathspec


def made_key(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str = "p.key") -> str:
    assert cli.main(["keygen", str(tmp_path / name)]) == 0
    return capsys.readouterr().out.strip()


def test_a_signed_app_is_signed_until_it_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = tmp_path / "app"
    bundle(app, "app = 1\n")
    public = made_key(tmp_path, capsys)
    assert stat.S_IMODE((tmp_path / "p.key").stat().st_mode) == 0o600
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "p.key")]) == 0
    found = Bundle.read(build_bundle(app))
    assert {key.hex() for key in found.signers()} == {public}
    out = capsys.readouterr().out
    assert public in out
    assert found.digest.hex() in out
    (app / "tiny" / "client_app.py").write_text("app = 2\n")
    assert Bundle.read(build_bundle(app)).signers() == frozenset()
    second = made_key(tmp_path, capsys, "second.key")
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "second.key")]) == 0
    assert {key.hex() for key in Bundle.read(build_bundle(app)).signers()} == {second}
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "p.key")]) == 0
    both = {key.hex() for key in Bundle.read(build_bundle(app)).signers()}
    assert both == {public, second}


def test_an_app_whose_rules_keep_the_signatures_out_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = tmp_path / "app"
    bundle(app, "app = 1\n")
    (app / ".gitignore").write_text("*.json\n")
    made_key(tmp_path, capsys)
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "p.key")]) == 2
    assert "in its bundle, got 'none'; let the app's .gitignore" in capsys.readouterr().err


def test_a_key_is_never_overwritten_and_never_open_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_key(tmp_path, capsys)
    before = (tmp_path / "p.key").read_bytes()
    assert cli.main(["keygen", str(tmp_path / "p.key")]) == 2
    assert (tmp_path / "p.key").read_bytes() == before
    app = tmp_path / "app"
    bundle(app, "app = 1\n")
    (tmp_path / "p.key").chmod(0o644)
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "p.key")]) == 2
    assert "expected mode 0600, got 'mode 0644'" in capsys.readouterr().err
    (tmp_path / "p.key").write_text("no key")
    assert cli.main(["sign", str(app), "--key", str(tmp_path / "p.key")]) == 2
    assert "expected a key of `umbel keygen`" in capsys.readouterr().err
