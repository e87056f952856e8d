"""The pool of workers: who gets what, what ends whom, and the messages between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import Malformed, SettingsError, StateError
from umbel.simulation.engine.pool import Answered, Died, Forked, Item, Pool, Waiting
from umbel.simulation.engine.pool_wire import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Echo:
    """Answers with what it was told and by whom; does as it is asked."""

    told: Any = None

    def begin(self, fields: Mapping[str, Any], blobs: Sequence[memoryview], me: Any) -> None:
        """Remember."""
        self.told = [fields, [bytes(blob).decode() for blob in blobs], me.number]

    def call(self, fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Any:
        """Answer, or leave."""
        if fields.get("do") == "die":
            os.kill(os.getpid(), signal.SIGTERM)
        if fields.get("do") == "leave":
            os._exit(1)
        if fields.get("do") == "exit":
            sys.exit(5)
        if fields.get("do") == "raise":
            raise OSError("a bad\nday")
        time.sleep(fields.get("s", 0))
        return {"got": dict(fields), "told": self.told, "pid": os.getpid()}, blobs


def answers(pool: Pool, items: Sequence[Item], **more: Any) -> dict[int, Answered | Died]:
    return {f.place: f for f in pool.run(items, **more) if f.place is not None}


def test_everything_that_is_asked_is_answered_with_its_blobs() -> None:
    with Pool(Forked(Echo), 3) as pool:
        pool.begin({"round": 1}, [b"abc", b""])
        heavy = os.urandom(1 << 20)
        items = [Item({"n": n}, [heavy[n:], b"", bytes([n])]) for n in range(20)]
        found = answers(pool, items)
        assert set(found) == set(range(20))
        for place, said in found.items():
            assert isinstance(said, Answered)
            assert said.fields["got"] == {"n": place}
            assert said.fields["told"] == [{"round": 1}, ["abc", ""], said.worker]
            assert [bytes(blob) for blob in said.blobs] == [heavy[place:], b"", bytes([place])]
        assert len({said.fields["pid"] for said in found.values()}) > 1  # type: ignore[union-attr]


def test_a_death_is_named_with_its_item_and_what_waited_is_done_by_another() -> None:
    with Pool(Forked(Echo), 1) as pool:
        first = pool.pids[0]
        pool.begin({"round": 1})
        asked = ["", "die", "raise", "leave", "exit", ""]
        found = answers(pool, [Item({"do": do}) for do in asked])
        assert isinstance(found[1], Died)
        assert found[1].cause == f"worker 0 (pid {first}) was killed by SIGTERM"
        assert isinstance(found[2], Answered)
        assert found[2].fields == {"cause": "OSError: a bad day"}
        assert isinstance(found[3], Died)
        assert "exited with status 1" in found[3].cause
        assert isinstance(found[4], Answered)
        assert found[4].fields == {"cause": "SystemExit: 5"}
        assert isinstance(found[5], Answered)
        assert found[5].fields["told"][0] == {"round": 1}
        assert first not in pool.pids


def test_a_worker_that_was_killed_while_idle_costs_nothing() -> None:
    with Pool(Forked(Echo), 2) as pool:
        os.kill(pool.pids[1], signal.SIGKILL)
        found = list(pool.run([Item({"n": n}, home=1) for n in range(6)]))
        done = [said.place for said in found if isinstance(said, Answered)]
        assert sorted(done) == list(range(6))


def test_workers_that_die_by_themselves_end_the_pool() -> None:
    class Fragile(Echo):
        def begin(self, *_: Any) -> None:
            os._exit(9)

    with Pool(Forked(Fragile), 1) as pool:
        pool.begin({})
        with pytest.raises(StateError, match="exited with status 9"):
            list(pool.run([Item({})]))


def test_nobody_waits_beyond_the_deadline() -> None:
    with Pool(Forked(Echo), 2) as pool:
        slow = pool.pids[0]
        start = time.monotonic()
        found = answers(pool, [Item({"s": s}) for s in (600, 0, 0, 0)], deadline=start + 2)
        assert set(found) == {1, 2, 3}
        assert time.monotonic() - start < 60
        assert isinstance(answers(pool, [Item({"n": 1})])[0], Answered)
        assert slow not in pool.pids


def test_a_run_that_was_left_leaves_no_answer_behind() -> None:
    with Pool(Forked(Echo), 2) as pool:
        pool.begin({"round": 1})
        for found in pool.run([Item({"n": n, "s": 0.2 * n}) for n in range(6)]):
            assert isinstance(found, Answered)
            break
        pool.begin({"round": 2})
        again = answers(pool, [Item({"n": n}) for n in range(6)])
        for place, said in again.items():
            assert isinstance(said, Answered)
            assert said.fields["got"] == {"n": place}
            assert said.fields["told"][0] == {"round": 2}
    pool.close()


def test_a_worker_has_its_own_first_then_anybodys_then_the_last_of_the_busiest() -> None:
    waiting = Waiting([1, None, 0, 1, 1], 2)
    taken = [waiting.take(0) for _ in range(4)]
    assert taken == [2, 1, 4, 3]
    waiting.give_back(1, [4, 3])
    assert [waiting.take(1) for _ in range(3)] == [4, 3, 0]
    assert not waiting


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(SettingsError, match="workers: expected 1 or more, got 0"):
        Pool(Forked(Echo), 0)


PARENT = """
import sys, time
from pathlib import Path
from umbel.simulation.engine.pool import Item, Named, Pool
fields = {"kind": "task", "directory": sys.argv[1], "component": "digits.task:Digits"}
fields["tier"] = "T3"
pool = Pool(Named(fields), 2)
print(*pool.pids, pool._child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_parent_ends_all(how: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, "examples/digits"], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        parent.send_signal(how)
        parent.wait(20)
        end = time.monotonic() + 20
        while any(map(runs, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not [pid for pid in pids if runs(pid)]


FORKING = """
from umbel.simulation.engine.pool import Forked, Item, Pool
from umbel.tests.test_engine_pool import Echo
for turn in range(20):
    with Pool(Forked(Echo), 2) as pool:
        pool.begin({})
        assert len(list(pool.run([Item({})]))) == 1
print("the end", flush=True)
"""


def test_no_fork_of_the_caller_goes_on_as_the_caller() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("the end\n", "")


def runs(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"UMPX" + bytes(12), "start of a message"),
        (b"UMPL\xff\xff\xff\xff" + bytes(8), "start of a message"),
        (b"UMPL\x02\x00\x00\x00" + bytes(8) + b"[]", "an object with the sizes"),
        (b"UMPL\x02\x00\x00\x00" + bytes(8) + b"{]", "header"),
        (b"UMPL\x0d\x00\x00\x00" + bytes(8) + b'{"blobs":[7]}', "bytes of blobs"),
        (b"UMPL\x0e\x00\x00\x00" + bytes(8) + b'{"blobs":[-1]}', "an object with the sizes"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, wrong: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        with pytest.raises(Malformed, match=wrong):
            Channel(here, "worker 3").receive()


def test_a_message_that_breaks_off_is_an_end() -> None:
    here, there = socket.socketpair()
    with here:
        there.sendall(b"UMPL\x10")
        there.close()
        with pytest.raises(EOFError):
            Channel(here, "worker 3").receive()
