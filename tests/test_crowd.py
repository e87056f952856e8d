"""What a gateway bears: idle sessions, joins, reconnects, and what each of them leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.tests.fault_proxy import FaultProxy
from umbel.tests.federations import Run, made
from umbel.tests.test_core_deaths import Core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from umbel.simulation.dev_federation import DevFederation

MOST_KIB = 256
"""Resident memory of the core for one idle session."""
PROCESSES = 4


class Crowd:
    """Some devices of a federation in a process of their own."""

    module = "umbel.tests.crowd"

    def __init__(self, what: str, run: Run, indices: range, **more: Any) -> None:
        """Start it."""
        devices = [
            {
                "directory": str(run.federation.device(run.federation.nodes[i].name)),
                "ticket": run.ticket(i).hex(),
            }
            for i in indices
        ]
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, what],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, process_group=0,
        )  # fmt: skip
        assert self.process.stdin is not None
        order = {"run": run.name, "devices": devices, **more}
        self.process.stdin.write(json.dumps(order).encode())
        self.process.stdin.close()

    def answer(self) -> dict[str, Any]:
        """Wait for its end and return what it said."""
        assert self.process.stdout is not None
        with self.process.stdout as out:
            text = out.read()
        assert self.process.wait(60) == 0
        return dict(json.loads(text))

    def kill(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.kill()
            self.answer_nothing()

    def answer_nothing(self) -> None:
        """Reap it."""
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def crowds() -> Iterator[list[Crowd]]:
    """What is to be ended at the end."""
    found: list[Crowd] = []
    yield found
    for crowd in found:
        crowd.kill()


def split(count: int) -> list[range]:
    """Return who is in which process."""
    size = count // PROCESSES
    return [range(start, start + size) for start in range(0, count, size)]


def resident(core: Core) -> int:
    """Return the core's own resident bytes."""
    rows = Path(f"/proc/{core.process.pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))


def held(pid: int) -> tuple[int, int]:
    """Return how many files and threads a process has."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def settled(look: Callable[[], Any], goal: Any, wait: float = 60.0) -> Any:
    """Wait until something is at most a goal, and return it."""
    end = time.monotonic() + wait
    while (found := look()) > goal and time.monotonic() < end:
        time.sleep(0.1)
    return found


def no_more(pid: int, files: int, threads: int) -> None:
    """Wait until a process has no more: what a busy machine has not closed yet is closed soon."""
    assert settled(lambda: held(pid)[0], files) <= files
    assert settled(lambda: held(pid)[1], threads) <= threads


def idle_and_round(
    federation: DevFederation, home: Path, crowds: list[Crowd], count: int, cohort: int, rest: float
) -> float:
    """Let so many join and rest, play one round among some; return KiB of the core for each."""
    core = Core(federation, home / "core.log")
    try:
        warm = Run(federation, home / "warm", "warm", rounds=1, final_evaluation=False)
        crowds.append(Crowd("sessions", warm, range(4)))  # what the first ones load stays
        warm.joined(4)
        warm.core.goodbye()
        crowds[-1].answer()
        warm.close()
        run = Run(federation, home / "run", "crowd", rounds=1, cohort=cohort,
                  final_evaluation=False)  # fmt: skip
        time.sleep(1.0)
        files, threads = held(core.process.pid)
        before = resident(core)
        crowds += [Crowd("sessions", run, part) for part in split(count)]
        run.pump(lambda: len(run.coordinator.nodes) == count, 120.0)
        end = time.monotonic() + rest
        run.pump(lambda: time.monotonic() > end)
        each = (resident(core) - before) / count / 1024
        more_files, more_threads = held(core.process.pid)
        assert more_files - files <= count
        assert more_threads - threads <= 8
        run.coordinator.begin(time.monotonic())
        run.pump(lambda: run.coordinator.done, 120.0)
        assert [(r.outcome, len(r.survivors)) for r in run.records] == [("finished", cohort)]
        assert abs(float(run.coordinator.model["w"][0]) - 0.51) < 1e-4
        run.core.goodbye()
        answers = [crowd.answer() for crowd in crowds[1:]]
        reasons = [reason for answer in answers for reason in answer["reasons"]]
        assert reasons == [pb.REASON_GOODBYE] * count
        assert sum(sum(answer["rounds"]) for answer in answers) == cohort
        assert settled(lambda: held(core.process.pid)[0], files) <= files
        run.close()
    finally:
        core.end()
    return each


def test_a_crowd_rests_and_some_of_it_play_a_round(tmp_path: Path, crowds: list[Crowd]) -> None:
    federation = made(tmp_path / "federation", 24)
    idle_and_round(federation, tmp_path, crowds, 24, 8, 1.0)


@pytest.mark.slow
def test_two_hundred_idle_sessions_take_little(
    tmp_path: Path, crowds: list[Crowd], record_property: Callable[[str, object], None]
) -> None:
    federation = made(tmp_path / "federation", 200)
    # a sign of life of each, and more
    each = idle_and_round(federation, tmp_path, crowds, 200, 20, 6.0)
    record_property("KiB a session", each)
    print(f"{each:.0f} KiB of the core for each of 200 idle sessions")
    assert each <= MOST_KIB


@pytest.mark.slow
def test_two_thousand_joins_take_less_than_a_minute(tmp_path: Path, crowds: list[Crowd]) -> None:
    federation = made(tmp_path / "federation", 40)
    core = Core(federation, tmp_path / "core.log")
    try:
        run = Run(federation, tmp_path, "joins")
        files, _ = held(core.process.pid)
        began = time.monotonic()
        crowds += [Crowd("joins", run, part, times=50) for part in split(40)]
        run.pump(lambda: all(c.process.poll() is not None for c in crowds), 180.0)
        took = time.monotonic() - began
        answers = [crowd.answer() for crowd in crowds]
        joined = sum(answer["joins"] for answer in answers)
        print(f"{joined} joins in {took:.1f} s: {joined / took:.0f} a second, TLS each")
        assert joined == 2000
        assert took < 60.0
        run.pump(lambda: not run.coordinator.nodes)
        assert settled(lambda: held(core.process.pid)[0], files) <= files
        run.close()
    finally:
        core.end()


def reconnecting(tmp_path: Path, times: int) -> None:
    """Break one line so many times, and look at what both ends hold."""
    federation = made(tmp_path / "federation")
    core = Core(federation, tmp_path / "core.log")
    port = json.loads((federation.folder / "core.json").read_text())["port"]
    proxy = FaultProxy(port)
    try:
        run = Run(federation, tmp_path, "again")
        device = run.devices()[0]
        device.files = replace(device.files, gateway=f"127.0.0.1:{proxy.port}")
        device.start(run.name, run.ticket(0))
        run.joined(1)
        line = device.session._line  # type: ignore[union-attr]
        ends, first = (core.process.pid, os.getpid()), list[tuple[int, int]]()
        for number in range(1, times + 1):
            run.pump(lambda n=number: line.epoch == n)  # type: ignore[misc]
            if number == 5:
                time.sleep(0.5)
                first = [held(pid) for pid in ends]
            if number == times:
                for pid, (files, threads) in zip(ends, first, strict=True):
                    no_more(pid, files + 2, threads + 2)
            proxy.cut()
        run.pump(lambda: line.epoch == times + 1)
        run.core.goodbye()
        assert device.join().reason == pb.REASON_GOODBYE
        run.close()
    finally:
        proxy.close()
        core.end()


def test_reconnects_leave_no_file_and_no_thread_behind(tmp_path: Path) -> None:
    reconnecting(tmp_path, 15)


@pytest.mark.slow
def test_a_hundred_reconnects_leave_no_file_and_no_thread_behind(tmp_path: Path) -> None:
    reconnecting(tmp_path, 100)
