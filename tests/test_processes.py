"""The supervisor: real processes, killed supervisors, pids that belong to somebody else."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host import process_tree, processes
from umbel.host.processes import Happening, Supervisor, end_leftovers, read_state
from umbel.host.programs import Program, environment, free_port, last_line
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON = sys.executable
SLEEP = (PYTHON, "-c", "import time; time.sleep(600)")
# Starts a grandchild in a session of its own, as the SuperLink does, and writes its pid.
DETACHING = (
    PYTHON,
    "-c",
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],\n"
    "                         start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n",
)
DEAF = (
    PYTHON,
    "-c",
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('deaf', flush=True)\n"
    "time.sleep(600)\n",
)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of a fresh folder."""
    with Supervisor(tmp_path / "up") as made:
        yield made


def _until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def _watch_until(supervisor: Supervisor, what: str, seconds: float = 60.0) -> list[Happening]:
    seen: list[Happening] = []

    def happened() -> bool:
        seen.extend(supervisor.watch())
        return any(item.what == what for item in seen)

    _until(happened, seconds)
    return seen


def _environment(pid: int, name: str) -> str:
    """Return a variable of a process; right after its start it has none yet."""
    return str(_until(lambda: psutil.Process(pid).environ().get(name)))


def _number(log: Path) -> int:
    return int(_until(lambda: log.read_text().strip()).split()[0])


def test_a_program_has_a_session_a_log_and_our_commands(supervisor: Supervisor) -> None:
    code = "import os, sys; print(os.getpid(), os.getsid(0), os.environ['PATH'], os.environ['X'])"
    supervisor.start(Program(name="one", command=(PYTHON, "-c", code), env={"X": "y"}))
    log = supervisor.log("one")
    pid, session, path, x = _until(lambda: log.read_text().split())
    assert (int(pid), pid, x) == (supervisor.pid("one"), session, "y")
    assert path.split(os.pathsep)[0] == str(Path(PYTHON).parent)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_the_state_is_private_and_names_pid_and_start(supervisor: Supervisor) -> None:
    supervisor.start(Program(name="one", command=SLEEP))
    path = supervisor.folder / "up.json"
    state = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (entry,) = state["programs"]
    assert (entry["pid"], entry["program"]["name"]) == (supervisor.pid("one"), "one")
    assert entry["started"] == psutil.Process(entry["pid"]).create_time()
    assert state["supervisor"]["pid"] == os.getpid()


def test_closing_ends_children_in_other_sessions_and_the_deaf(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "GRACE_S", 0.3)
    supervisor.start(Program(name="link", command=DETACHING))
    supervisor.start(Program(name="deaf", command=DEAF))
    grandchild = _number(supervisor.log("link"))
    _until(lambda: supervisor.log("deaf").read_text())
    found = [psutil.Process(supervisor.pid("link")), psutil.Process(supervisor.pid("deaf"))]
    found.append(psutil.Process(grandchild))
    assert os.getsid(grandchild) == grandchild
    supervisor.close()
    assert not any(process_tree.alive(process) for process in found)
    assert not (supervisor.folder / "up.json").exists()


def test_tiers_end_in_their_order(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.2)\n"
        f"    open({str(note)!r}, 'a').write(sys.argv[1])\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    for name, tier in (("c", 2), ("a", 0), ("b", 1)):
        supervisor.start(Program(name=name, command=(PYTHON, "-c", code, name), tier=tier))
        _until(supervisor.log(name).read_text)
    supervisor.close()
    assert note.read_text() == "abc"


def test_a_killed_program_is_started_again(tmp_path: Path) -> None:
    prepared = []
    with Supervisor(tmp_path, lambda program: prepared.append(program.name)) as supervisor:
        supervisor.start(Program(name="node", command=DETACHING, restart=True))
        grandchild = psutil.Process(_number(supervisor.log("node")))
        before = supervisor.pid("node")
        supervisor.kill("node")
        assert not process_tree.alive(grandchild)
        seen = _watch_until(supervisor, "restarted")
        assert [item.what for item in seen] == ["ended", "restarted"]
        assert seen[0].status == "was killed by signal 9"
        assert supervisor.pid("node") != before
        assert supervisor.alive("node")
        assert prepared == ["node"]


def test_what_a_dead_program_left_ends_before_it_starts_again(supervisor: Supervisor) -> None:
    supervisor.start(Program(name="node", command=DETACHING, restart=True))
    orphan = psutil.Process(_number(supervisor.log("node")))
    os.kill(supervisor.pid("node"), signal.SIGKILL)
    _watch_until(supervisor, "restarted")
    assert not process_tree.alive(orphan)


def test_a_program_that_cannot_stay_up_is_given_up(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PAUSE_S", 0.1)
    command = (PYTHON, "-c", "import sys; print('refused: exit 305'); sys.exit(1)")
    supervisor.start(Program(name="node", command=command, restart=True, patience=0.5))
    with pytest.raises(StateError, match=r"again and again.*refused: exit 305"):
        _watch_until(supervisor, "never")
    assert supervisor.log("node").read_text().count("refused") >= 2


def test_a_program_is_started_again_ever_later(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    supervisor.start(Program(name="node", command=(PYTHON, "-c", ""), restart=True))
    pauses: list[float] = []
    while len(pauses) < 6:
        ended = now[0]
        while supervisor.alive("node"):
            time.sleep(0.01)
        while "restarted" not in {item.what for item in supervisor.watch()}:
            now[0] += 0.25
        pauses.append(now[0] - ended)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]
    now[0] += processes.SETTLED_S + 1  # a program that has stayed up begins anew
    supervisor.replace(Program(name="node", command=SLEEP, restart=True))
    now[0] += processes.SETTLED_S + 1
    supervisor.watch()
    supervisor.kill("node")
    assert [item.what for item in supervisor.watch()] == ["ended", "restarted"]


def test_a_program_is_replaced_with_all_that_it_started(supervisor: Supervisor) -> None:
    supervisor.start(Program(name="exec", command=DETACHING, restart=True))
    grandchild = psutil.Process(_number(supervisor.log("exec")))
    before = psutil.Process(supervisor.pid("exec"))
    supervisor.replace(Program(name="exec", command=SLEEP, env={"X": "new"}, restart=True))
    assert not process_tree.alive(before)
    assert not process_tree.alive(grandchild)
    assert _environment(supervisor.pid("exec"), "X") == "new"
    assert supervisor.watch() == []  # its end is no news


def test_what_is_given_up_is_named_with_its_last_words(supervisor: Supervisor) -> None:
    command = (PYTHON, "-c", "import sys; print('no port'); sys.exit(3)")
    supervisor.start(Program(name="link", command=command, restart=True))
    ended = _watch_until(supervisor, "ended")[0]
    with pytest.raises(StateError, match=r"program link: .*status 3.*: no port$"):
        supervisor.give_up("link", ended.status)


def test_the_end_of_a_program_that_is_not_restarted_is_an_error(supervisor: Supervisor) -> None:
    command = (PYTHON, "-c", "import sys; print('\\x1b[91mno port\\x1b[0m\\n'); sys.exit(3)")
    supervisor.start(Program(name="link", command=command))
    with pytest.raises(StateError, match=r"program link: .*status 3.*: no port$"):
        _watch_until(supervisor, "never")


def test_a_missing_command_is_one_line(supervisor: Supervisor) -> None:
    with pytest.raises(StateError, match="program one: expected /nowhere/command"):
        supervisor.start(Program(name="one", command=("/nowhere/command",)))


def test_only_one_supervisor_works_in_a_folder(supervisor: Supervisor) -> None:
    with pytest.raises(StateError, match="umbel down"):
        Supervisor(supervisor.folder)


CRASHING = """
import sys, time
from pathlib import Path
from umbel.host.processes import Supervisor
from umbel.host.programs import Program
supervisor = Supervisor(Path(sys.argv[1]))
supervisor.start(Program(name="link", command=tuple(sys.argv[2:]), tier=1))
supervisor.start(Program(name="node", command=tuple(sys.argv[2:]), restart=True))
print("up", flush=True)
time.sleep(600)
"""


def test_what_a_killed_supervisor_left_the_next_one_ends(tmp_path: Path) -> None:
    crashed = subprocess.Popen(
        [PYTHON, "-c", CRASHING, str(tmp_path), *DETACHING], stdout=subprocess.PIPE
    )
    assert crashed.stdout is not None
    with crashed.stdout as out:
        assert out.readline() == b"up\n"
    logs = [tmp_path / "logs" / f"{name}.log" for name in ("link", "node")]
    left = [psutil.Process(_number(log)) for log in logs]
    state = read_state(tmp_path)
    assert state is not None
    left += [psutil.Process(item["pid"]) for item in state["programs"]]
    crashed.kill()
    crashed.wait()
    assert all(process_tree.alive(process) for process in left)
    with Supervisor(tmp_path) as supervisor:
        assert supervisor.leftovers == ("link", "node")
        assert not any(process_tree.alive(process) for process in left)


def _write_state(folder: Path, pid: int, started: float, mark: str = "0123") -> None:
    program = {"name": "node", "command": ["x"], "env": {}, "tier": 0, "restart": True}
    state = {
        "mark": mark,
        "supervisor": {"pid": 1, "started": 0.0},
        "programs": [{"program": program, "pid": pid, "started": started}],
    }
    (folder / "up.json").write_text(json.dumps(state))


@pytest.mark.parametrize("shift", [0.0, -60.0], ids=["another mark", "another start time"])
def test_a_process_with_an_old_pid_is_left_alone(tmp_path: Path, shift: float) -> None:
    env = os.environ | ({process_tree.MARK: "4567/node"} if shift == 0.0 else {})
    with subprocess.Popen(SLEEP, env=env) as stranger:
        try:
            started = psutil.Process(stranger.pid).create_time()
            _environment(stranger.pid, "PATH")
            _write_state(tmp_path, stranger.pid, started + shift)
            assert end_leftovers(tmp_path) == ()
            assert stranger.poll() is None
            assert not (tmp_path / "up.json").exists()
        finally:
            stranger.kill()


def test_a_process_is_known_in_the_instant_after_its_start() -> None:
    for _ in range(20):
        with subprocess.Popen(SLEEP, env=os.environ | {process_tree.MARK: "4567/node"}) as started:
            try:
                began = psutil.Process(started.pid).create_time()
                assert process_tree.recorded(started.pid, began, "4567") is not None
            finally:
                started.kill()


def test_a_state_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text("{")
    with pytest.raises(StateError, match="by hand"):
        Supervisor(tmp_path)
    (tmp_path / "up.json").unlink()
    Supervisor(tmp_path).close()  # and the lock was given back


def test_a_keeper_takes_over_and_restarts(tmp_path: Path) -> None:
    first = Supervisor(tmp_path)
    first.start(Program(name="node", command=SLEEP, env={"A": "b"}, restart=True))
    pid = first.pid("node")
    _environment(pid, process_tree.MARK)  # it is known by that
    first.hand_over()
    first.close()  # of what it handed over it ends nothing
    with Supervisor.adopt(tmp_path, lambda _program: None) as keeper:
        assert keeper.pid("node") == pid
        assert keeper.alive("node")
        assert keeper.watch() == []
        keeper.kill("node")
        _watch_until(keeper, "restarted")
        assert keeper.pid("node") != pid
        assert _environment(keeper.pid("node"), "A") == "b"
    assert process_tree.family(keeper._mark) == []
    for run in first._runs.values():  # the children of this process all the same
        assert run.child is not None
        run.child.wait()


def test_a_keeper_needs_something_to_keep(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="umbel up"):
        Supervisor.adopt(tmp_path, lambda _program: None)


def test_a_port_is_new_at_each_start(supervisor: Supervisor) -> None:
    command = (PYTHON, "-c", "import sys; print(sys.argv[1], flush=True)", "{port}")
    supervisor.start(Program(name="node", command=command, restart=True))
    log = supervisor.log("node")
    with socket.create_server(("127.0.0.1", first := _number(log))):
        _watch_until(supervisor, "restarted")
        second = _until(lambda: log.read_text().split()[1:])[0]
    assert first != int(second)
    assert 1024 < first < 65536


def test_the_environments_commands_come_first() -> None:
    assert environment()["PATH"].split(os.pathsep)[0] == str(Path(PYTHON).parent)


def test_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "example.org,localhost")
    monkeypatch.delenv("no_proxy", raising=False)
    found = environment()
    assert found["NO_PROXY"] == "example.org,localhost,127.0.0.1,::1"
    assert found["no_proxy"] == "localhost,127.0.0.1,::1"


def test_a_free_port_can_be_taken() -> None:
    with socket.create_server(("127.0.0.1", found := free_port())):
        assert free_port() != found


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == "no output"
    log.write_text("x" * 20000 + "\nERROR: \x1b[91mbad key\x1b[0m\n\n   \n")
    assert last_line(log) == "ERROR: bad key"


def test_a_second_signal_hurries_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_tree, "GRACE_S", 600.0)
    hurrying = (
        "import os, signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: os.kill({os.getpid()}, signal.SIGINT))\n"
        "print('deaf', flush=True)\n"
        "time.sleep(600)\n"
    )
    supervisor = Supervisor(tmp_path)
    supervisor.start(Program(name="deaf", command=(PYTHON, "-c", hurrying)))
    _until(lambda: supervisor.log("deaf").read_text())
    supervisor.close()
    assert not supervisor.alive("deaf")


def test_what_must_be_done_is_done_whoever_interrupts() -> None:
    done: list[str] = []

    def work() -> None:
        done.append("begun")
        if len(done) < 4:
            raise KeyboardInterrupt
        done.append("done")

    with pytest.raises(KeyboardInterrupt):
        process_tree.insist(work)
    assert done == ["begun"] * 4 + ["done"]
    process_tree.insist(work)  # nobody does: nothing is raised
    assert done[-1] == "done"
