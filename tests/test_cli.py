"""The command line: cheap help, one line for each way to be wrong, and its exit statuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import umbel
from umbel import cli
from umbel.host import lazy_group
from umbel.protocol.errors import SettingsError, StateError, TooFewMembers

if TYPE_CHECKING:
    from collections.abc import Callable

README = Path(__file__).resolve().parents[1] / "README.md"


def _umbel(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "umbel", *arguments],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def boom(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Run `umbel boom`, a subcommand that raises what it is told to."""

    def run(error: BaseException) -> int:
        def body() -> None:
            raise error

        monkeypatch.setitem(cli.PARTS, "boom", lazy_group.Part("nowhere", "Raise."))
        monkeypatch.setattr(lazy_group, "load", lambda _: click.Command("boom", callback=body))
        return cli.main(["boom"])

    return run


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["simulate-not"]])
def test_help_costs_no_framework(arguments: list[str]) -> None:
    program = (
        "import sys; from umbel.cli import main; main(sys.argv[1:])\n"
        "loaded = {'torch', 'flwr', 'numpy', 'grpc', 'cryptography', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"umbel {umbel.__version__}\n"


def test_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, part in cli.PARTS.items():
        assert re.search(rf"^  {name} +{re.escape(part.summary)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", cli.PARTS)
def test_every_parts_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: umbel {name} ")
    assert f"xample: umbel {name} " in " ".join(out.split())
    assert "--install-completion" not in out
    assert "\\[" not in out  # rich's escapes in plain text


@pytest.mark.parametrize("name", ["runs", "fleet", "server", "client"])
def test_no_line_about_a_command_is_cut(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert commands
    assert not [line for line in commands if line.endswith("...")]


def test_no_command_is_a_usage_error_that_shows_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: umbel ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulat"], "umbel: No such command 'simulat'; see `umbel --help`\n"),
        (["--fast"], "umbel: No such option '--fast'; see `umbel --help`\n"),
        (["new"], "umbel: Missing argument 'NAME'; see `umbel new --help`\n"),
        (["bench", "nothing"], "umbel: No such command 'nothing'; see `umbel bench --help`\n"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr() == ("", complaint)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            SettingsError("--drop", "a share below 1", 2),
            2,
            "--drop: expected a share below 1, got 2",
        ),
        (
            StateError("ledger", "a lock", "another process"),
            2,
            "ledger: expected a lock, got another",
        ),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "[Errno 2] No such file"),
        (TooFewMembers("round 3: 4 members,\nneeds 5"), 3, "round 3: 4 members, needs 5"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            KeyboardInterrupt("`umbel runs resume a` goes on"),
            130,
            "interrupted; `umbel runs resume a` goes on",
        ),
        (click.Abort(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_line_and_its_status(
    error: BaseException,
    status: int,
    line: str,
    boom: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert boom(error) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"umbel: {line}")
    assert captured.err.count("\n") == 1


def test_a_bug_keeps_its_traceback(boom: Callable[[BaseException], int]) -> None:
    with pytest.raises(ZeroDivisionError):
        boom(ZeroDivisionError())


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["new", "--help"], ["new"], ["bench", "--help"]])
def test_no_color_is_obeyed(arguments: list[str]) -> None:
    done = _umbel(*arguments, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


def test_every_public_name_can_be_had() -> None:
    for name in umbel.__all__:
        assert getattr(umbel, name).__name__ == name
        assert name in dir(umbel)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = umbel.nothing  # type: ignore[attr-defined]


def test_the_package_itself_imports_nothing_heavy() -> None:
    program = (
        "import sys, umbel\n"
        "loaded = {'torch', 'flwr', 'numpy', 'google'} & set(sys.modules)\n"
        "sys.exit(f'imported: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readme_names_only_commands_that_exist() -> None:
    named = set(re.findall(r"\bumbel ([a-z]+)\b", README.read_text("utf-8")))
    assert named <= set(cli.PARTS)
    assert {"simulate", "new"} <= named


@pytest.mark.parametrize("arguments", [["--version"], ["runs", "list"]])
def test_output_to_a_full_disk_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "umbel", *arguments],
            env=os.environ | {"UMBEL_HOME": str(tmp_path)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    line = "umbel: [Errno 28] No space left on device; free the disk, then try again\n"
    assert done.stderr == line
