"""`umbel server up` before anything is started: flags, the federation, tokens."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from umbel.cli import main
from umbel.host.answer_form import Format
from umbel.host.processes import Supervisor
from umbel.protocol.enrolment_token import Token
from umbel.protocol.errors import SettingsError
from umbel.server import up_cli
from umbel.server.app_plan import FLOORS, plan_app
from umbel.server.flower_programs import Place
from umbel.server.issuer_wire import ask
from umbel.server.server_toml import ServerSettings

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which a command ends."""
    assert main(["server", "up", *arguments]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_a_wrong_flag_is_one_line_and_makes_no_federation(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--names", "fl.example.org")
    for arguments, said in (
        ((), "--names: expected DNS names or IP addresses by which devices reach this machine"),
        ((*given, "--clients", "3"), "--clients: expected an app"),
        ((*given, "-c", "rounds=3"), "--run-config: expected an app"),
        ((str(DIGITS), *given, "-c", "rounds"), "--run-config: expected KEY=VALUE"),
        ((str(DIGITS), *given, "--clients", "4"), "clients: expected at least 5"),
        ((str(DIGITS), *given, "-c", "clients=9"), "run-config: expected --clients"),
        ((*given, "--token", "a", "--expires", "soon"), "--expires: expected a number and"),
        ((*given, "--ranks", "-1"), "--ranks: expected"),
        ((str(home), *given), "pyproject.toml"),
        (("--names", "FL.example.org"), "names: expected"),
    ):
        assert said in refused(capsys, *arguments)
    assert not (home / "federations").exists()


def test_the_federation_is_made_once_and_found_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say = up_cli._Speaker(Format.TEXT)
    folder = up_cli._made(None, "", "fl.example.org, 192.0.2.7", say)
    assert folder == home / "federations" / "fleet"
    settings = ServerSettings.read(folder)
    assert (settings.names, settings.front) == (
        ("fl.example.org", "192.0.2.7"), "fl.example.org:8443",
    )  # fmt: skip
    assert f"made the federation fleet: {folder}" in capsys.readouterr().out
    assert up_cli._made(None, "", "", say) == folder
    assert up_cli._made(None, "fleet", "fl.example.org,192.0.2.7", say) == folder
    assert up_cli._made(folder, "", "", say) == folder
    assert capsys.readouterr().out == ""
    assert "those of the federation: fl.example.org,192.0.2.7" in refused(
        capsys, "--names", "other.example.org"
    )
    other = up_cli._made(None, "wards", "10.0.0.1", say)
    with pytest.raises(SettingsError, match="one federation's directory"):  # now there are two
        up_cli._made(None, "", "", say)
    assert up_cli._made(None, "wards", "", say) == other


def test_a_second_server_of_a_federation_is_refused_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = up_cli._made(None, "", "127.0.0.1", up_cli._Speaker(Format.TEXT))
    with Supervisor(folder):
        line = refused(capsys)
    assert f"{folder}: expected no other" in line


def test_tokens_are_printed_for_those_who_have_neither_joined_nor_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say = up_cli._Speaker(Format.JSON)
    folder = up_cli._made(None, "", "127.0.0.1", say)
    where = Place(home=home, folder=folder)
    up_cli._print_tokens(where, [("a", 3600), ("b", 3600)], b"the bundle", say)
    up_cli._print_tokens(where, [("a", 3600)], b"", say)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("node") for line in lines] == [None, "a", "b", None]
    assert "a has a token that nobody has used yet" in lines[-1]["line"]
    token = Token.parse(lines[1]["token"])
    assert (token.federation, token.address) == ("fleet", "127.0.0.1:8443")
    assert token.apps == (sha256(b"the bundle").digest(),)
    assert {row["name"] for row in ask(folder, "tokens")} == {"a", "b"}


def test_a_run_promises_what_an_unchanged_policy_demands() -> None:
    plan = plan_app(DIGITS, {"rounds": 3}, None, secure=True)
    assert plan.clients == 5  # what the app says
    assert plan.config == {"rounds": 3}
    assert plan.settings == {"min-members": 5, "min-survivors": 4, "clients": 5}
    lower = plan_app(DIGITS, {"min-members": 3, "min-survivors": 3}, 3, secure=True)
    assert (lower.clients, lower.settings["min-members"]) == (3, 3)
    with pytest.raises(SettingsError, match="at least 5"):
        plan_app(DIGITS, {}, 3, secure=True)
    plain = plan_app(DIGITS, {}, 3, secure=False)
    assert not FLOORS.keys() & plain.settings.keys()
