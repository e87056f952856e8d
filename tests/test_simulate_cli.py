"""`umbel simulate` as a person meets it: lines, JSON, exit statuses, Ctrl-C, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.simulation.drops import BOUNDARIES
from umbel.tests.apps import naughty

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

psutil = pytest.importorskip("psutil")  # it has no types
Run = tuple[int, str, str]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app of three rounds, and a state directory of its own."""
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    return naughty(tmp_path / "app")


@pytest.fixture
def simulate(app: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Run `umbel simulate APP ...` here and return status, stdout and stderr."""

    def run(*arguments: str) -> Run:
        status = cli.main(["simulate", str(app), *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


# ---- what it prints --------------------------------------------------------------------------


def test_text_for_people(simulate: Callable[..., Run], app: Path) -> None:
    status, out, err = simulate("--run", "first")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    home = app.parent / "home" / "runs" / "first"
    assert lines[0] == "first: 5 clients, 3 rounds, secure aggregation on (development CA)"
    for number in (1, 2, 3):
        pattern = rf"round {number}/3  5 of 5 clients  loss 0\.\d{{4}}  accuracy 0\.\d{{4}}  .* up"
        assert re.fullmatch(pattern, lines[number])
    assert lines[4].startswith("evaluation of the last model  5 of 5 clients  loss 0.")
    assert lines[5] == "round  clients     loss  accuracy  seconds  survivors"
    assert all(line.endswith("  0-4") for line in lines[6:10])
    assert lines[-5].startswith("test accuracy: 0.")
    assert lines[-4:] == [
        "secure aggregation: on (development CA)",
        f"run: first ({home})",
        f"model: {home}/rounds/000003/00000-of-00001.safetensors",
        "pictures: umbel runs report first",
    ]


def test_a_robust_rule_says_what_it_runs_on(simulate: Callable[..., Run]) -> None:
    settings = ("robust=median", "robust-byzantine=1")
    run = ("--secure", "off", "--in-process", "--rounds", "1")
    status, out, _ = simulate("--run", "r", *run, "-c", settings[0], "-c", settings[1])
    assert status == 0
    begin = "r: 5 clients, 1 rounds, secure aggregation off; robust rules run"
    assert out.startswith(f"{begin} on sorted columns\n")
    status, _, err = simulate("--run", "r2", "-c", settings[0])
    assert status == 2
    assert err.startswith("umbel: robust: expected a rule that needs only the sum of the updates")


def test_json_for_programs(simulate: Callable[..., Run]) -> None:
    status, out, err = simulate("--run", "r", "--format", "json", "--rounds", "1", "--in-process")
    assert status == 0
    found = json.loads(out)  # one object; the user's own prints are not in it
    assert out.count("\n") == 1
    assert (found["run"], found["security"], found["failure"]) == ("r", "on (development CA)", None)
    assert [record["outcome"] for record in found["rounds"]] == ["finished", "finished"]
    assert found["accuracy"] == found["rounds"][0]["metrics"]["test.accuracy"]
    assert "round 1/1  5 of 5 clients" in err
    assert "user prints" in err


def test_the_json_is_alone_whoever_writes_to_the_descriptor(
    app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (code,) = app.glob("*.py")
    code.write_text(f'{code.read_text()}\nos.system("echo SPOKEN")\n', encoding="utf-8")
    options = ("--format", "json", "--rounds", "1", "--secure", "off", "--tier", "T0")
    assert cli.main(["simulate", str(app), *options]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["failure"] is None
    assert "SPOKEN" in err


def test_away_from_a_terminal_there_is_no_escape_sequence(app: Path) -> None:
    env = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "simulate", app, "--rounds", "1"],
        env=env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr


def test_a_terminal_gets_one_live_line(app: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "umbel", "simulate", str(app)]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        out = _read(master)
    assert process.returncode == 0
    text = out.replace("\r\n", "\n")
    live, _, table = text.partition("round  clients     loss")
    shown = live.split("\r\x1b[2K")
    finished = [s for s in shown if re.match(r"round \d/3  5 of 5 clients", s)]
    assert len(finished) == 3
    for line in finished[:2]:
        assert re.search(r"  \d+(\.\d+)? kB up  ETA \d+ s$", line)
        assert "\n" not in line
    assert finished[2].endswith("ETA 0 s\n")
    assert any(re.match(r"round 1/3  \d of 5 trained", s) for s in shown)
    assert live.endswith(" up\n")  # the evaluation's line, and the table begins on its own
    assert "\x1b" not in table


def test_a_dumb_terminal_gets_lines(app: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "umbel", "simulate", str(app), "--rounds", "1"]
    dumb = {**os.environ, "TERM": "dumb"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=dumb):
        os.close(slave)
        out = _read(master)
    assert "\nround 1/1  5 of 5 clients" in out
    assert "\x1b" not in out


def _read(master: int) -> str:
    data = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(master, 1 << 16):
            data += part
    os.close(master)
    return data.decode()


def test_the_help_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ", ".join(BOUNDARIES) in out
    for option in ("--clients", "--secure [on|off]", "--policy FILE", "-c, --run-config KEY=VALUE"):
        assert option in out


# ---- settings by flag ------------------------------------------------------------------------


def test_run_config_has_toml_values(simulate: Callable[..., Run]) -> None:
    arguments = ["--format", "json", "--in-process", "--run", "r"]
    for text in ("rounds=2", "lr=0.5", "clients = 4", "deadline=30"):
        arguments += ["-c", text]
    status, out, err = simulate(*arguments)
    assert status == 0
    found = json.loads(out)
    assert [len(record["roster"]) for record in found["rounds"]] == [4, 4, 4]
    assert "round 1/2  4 of 4" in err  # the live line counts to the same number


def test_a_policy_file_is_enforced(simulate: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[secure]\nmin_members = 10\n")
    status, out, err = simulate("--policy", str(file), "--in-process")
    assert status == 3
    line = "clients 0-4: refused: policy: the run has 3, secure.min_members is 10"
    assert line in out.splitlines()
    assert "round 1 aborted: 0 members are ready" in err
    allowed = simulate("--policy", str(file), "--in-process", "--clients", "10", "--rounds", "1",
                       "-c", "min-members=10", "-c", "min-survivors=4")  # fmt: skip
    assert allowed[0] == 0


def test_secure_off_needs_more_than_the_flag(simulate: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[secure]\nrequired = true\n")
    off = ("--secure", "off", "--in-process", "--rounds", "1")
    status, out, err = simulate("--policy", str(file), *off)
    assert status == 3
    words = "plain refused: secure.required is true in this device's own policy"
    assert f"clients 0-4: refused: {words}" in out.splitlines()
    assert "5 x plain refused" in err
    status, out, _ = simulate(*off)
    assert status == 0
    assert "secure aggregation: off" in out.splitlines()


# ---- how it fails ----------------------------------------------------------------------------


def test_a_named_abort_is_status_3_and_one_line(simulate: Callable[..., Run]) -> None:
    status, out, err = simulate("--clients", "4", "--drop-at", "masked:1")
    assert status == 3
    assert err.count("\n") == 1
    assert err.startswith("umbel: round 2 aborted: ")
    assert "4 members tolerate 0 losses" in err
    assert err.endswith("; the model is that of round 1\n")
    assert "round 2/3  aborted: " in out
    assert out.splitlines()[-2].endswith("rounds/000001/00000-of-00001.safetensors")


def test_an_abort_is_in_the_json_too(simulate: Callable[..., Run]) -> None:
    status, out, err = simulate("--clients", "4", "--drop-at", "keys:2", "--format", "json")
    assert status == 3
    found = json.loads(out)
    assert found["failure"] in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--drop-at", "masked"], "--drop-at: expected BOUNDARY:N[@ROUND]"),
        (["--drop-at", "middle:1"], "--drop-at: expected BOUNDARY:N[@ROUND]"),
        (["--drop-at", "masked:6"], "--drop-at: expected 1 to 5 clients, got 6"),
        (["--drop-at", "masked:1@4"], "--drop-at: expected a round from 1 to 3, got 4"),
        (["--drop-at", "votes:1", "--secure", "off"], "--drop-at: expected BOUNDARY:N[@ROUND]"),
        (["-c", "rounds"], "--run-config: expected KEY=VALUE, got 'rounds'"),
        (["-c", "=3"], "--run-config: expected KEY=VALUE, got '=3'"),
        (["-c", "rounds=many"], "rounds: expected int, got 'many'"),
        (["-c", "roundz=3"], "run-config: expected one of alpha, "),
        (["--rounds", "0"], "rounds: expected 1 or more, got 0"),
        (["--clients", "2"], "clients: expected at least 3"),
        (["--run", "a b"], "run: expected letters, digits"),
        (["--rounds", "x"], "Invalid value for '--rounds': 'x' is not a valid int"),
        (["--secure", "maybe"], "Invalid value for '--secure': 'maybe' is not one of"),
        (["--policy", "nothing.toml"], "nothing.toml: expected a readable file"),
    ],
)
def test_a_wrong_flag_is_status_2_and_one_line(
    arguments: list[str], line: str, simulate: Callable[..., Run], tmp_path: Path
) -> None:
    status, out, err = simulate(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"umbel: {line}")
    assert err.count("\n") == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "expected an app's pyproject.toml, got 'No such file or directory'"),
        ("[tool.umbel", "expected valid TOML"),
        ("", "tool.umbel.task: expected 'package.module:attribute', got None"),
        ('[tool.umbel]\ntask = "x"', "tool.umbel.task: expected 'package.module:attribute'"),
        ('[tool.umbel]\ntask = "x:T"\nrounds = "two"', "rounds: expected int, got 'two'"),
    ],
)
def test_a_missing_or_broken_app(
    text: str | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert cli.main(["simulate", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
    assert captured.err.count("\n") == 1


def test_an_app_that_cannot_be_imported(
    tmp_path: Path, app: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", str(naughty(tmp_path / "bad", "import"))]) == 2
    err = capfd.readouterr().err
    assert "RuntimeError: no module today" in err  # the user's own trace
    assert err.endswith("\numbel: task failed: the task raised; its trace is above\n")
    assert not (tmp_path / "home" / "runs").exists()


def test_a_run_id_is_used_once(simulate: Callable[..., Run]) -> None:
    quick = ("--run", "twice", "--rounds", "1", "--in-process")
    assert simulate(*quick)[0] == 0
    status, _, err = simulate(*quick)
    assert status == 2
    assert "twice: expected a new run, got one that exists; choose another id" in err
    assert err.count("\n") == 1
    status, out, err = simulate(*quick, "--secure", "off")
    assert (status, err.count("\n")) == (2, 1)
    assert "tier" not in out  # it is refused before anybody tries how fast the task trains


def test_a_state_directory_that_cannot_be_written(
    simulate: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "file" / "home"))
    status, _, err = simulate("--in-process")
    assert status == 2
    assert "point UMBEL_HOME at a directory that you can write" in err
    assert err.count("\n") == 1


# ---- Ctrl-C ----------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_ends_it_at_once_with_its_child(terminal: bool, app: Path, tmp_path: Path) -> None:
    (app / "what").write_text("slow")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "umbel", "simulate", str(app)]
    streams: dict[str, Any] = (
        {"stdout": slave, "stderr": slave}
        if terminal
        else {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    )
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        os.close(slave)
        child = psutil.Process(_when(app / "pid"))
        assert child.ppid() == process.pid
        assert os.getpgid(child.pid) != process.pid  # the parent ends it, and it prints no trace
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        began = time.monotonic()
        if terminal:
            shown = _read(master)
            process.wait()
        else:
            os.close(master)
            out, err = process.communicate()
            shown = (out + err).decode()
    assert time.monotonic() - began < 40  # its child's training takes a minute
    assert process.returncode == 130
    assert "Traceback" not in shown
    last = shown.replace("\r\n", "\n").splitlines()[-1]
    assert re.fullmatch(r"umbel: interrupted; its rounds stay: `umbel runs show app-\S+`; .*", last)
    child.wait(timeout=60)  # it is gone, or this raises


def test_an_interrupted_population_says_how_it_goes_on(app: Path) -> None:
    command = [sys.executable, "-m", "umbel", "simulate", str(app), "--run", "cut"]
    many = ("--secure", "off", "--tier", "T3", "--rounds", "1000000")
    with subprocess.Popen(
        [*command, *many], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if re.match(r"round +3/", line))
        process.send_signal(signal.SIGINT)
        last = process.communicate(timeout=60)[1].splitlines()[-1]
    assert last == "umbel: interrupted; `umbel runs resume cut` goes on with it"
    assert process.returncode == 130


def _when(file: Path) -> int:
    """Wait for the child to say its process id."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if file.exists() and (text := file.read_text()):
            return int(text)
        time.sleep(0.02)
    raise TimeoutError(file)


# ---- the run that it leaves ------------------------------------------------------------------


def test_umbel_runs_knows_it(
    simulate: Callable[..., Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert simulate("--run", "mine", "--in-process", "--drop-at", "masked:1@3")[0] == 0
    assert (tmp_path / "home" / "runs" / "mine" / "ledger.sqlite").is_file()
    assert cli.main(["runs", "list"]) == 0
    _, listed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mine  \S+  3       finished", listed)
    assert cli.main(["runs", "show", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "secure aggregation: on (development CA)\n" in shown
    assert "chain intact" in shown
    assert re.search(r"^round 3\.0 train finished: 5 of 5 members", shown, re.MULTILINE)
    assert re.search(r"^event 3\.0 lost [0-9a-f]{32} ", shown, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["runs", "export", "mine", "--round", "2"]) == 0
    assert (tmp_path / "mine-2.safetensors").is_file()
