"""The process from which a pool's workers are forked: `python -P -m …pool_server KIND … FD`.

A fork of a process with threads, or one that has used a GPU, may find locks that nobody will ever
release. So workers are forked from a process that does nothing else: it imports the app once, makes
the callee, and has one thread. Where the app has threads of its own after its import, which it may
not survive, every worker is a fresh interpreter that imports it again.

It also says how a worker ended. The pool is its parent in all but name: when the pool's end of the
control socket closes, it kills the workers and leaves.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .isolation import cause
from .pool_wire import Channel
from .pool_worker import HEAD, Me, work
from ...clients.child import boundary
from ...host.spawned import ended, module_command
from ...protocol.errors import Refused
from ...server.core.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .pool_worker import Callee

CALLEES = {"task": "pool_task", "flower": "flower_callee"}
"""Kind of a source to the module that makes its callee: `make(fields)`."""


def made(fields: Mapping[str, Any]) -> Callee:
    """Import what a source names and return its callee."""
    module = importlib.import_module(f".{CALLEES[fields['kind']]}", __package__)
    callee: Callee = module.make(fields)
    return callee


def serve(end: socket.socket, make: Callable[[], Callee], source: str | None = None) -> NoReturn:
    """Start workers from this process until the pool is gone.

    Args:
        end: The control socket.
        make: Makes the callee; each worker makes its own, unless there is a source.
        source: What a fresh interpreter would make it from. Then it is made here, once.
    """
    status = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is the pool's: it closes the sockets
        os.dup2(2, 1)  # what user code prints stays out of a caller's JSON
        _serve(Channel(end, "pool"), make, source)
    except (EOFError, OSError):
        status = 0  # the pool is gone
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        _leave(status)  # where this is a fork, what called it is another process's business


def _serve(channel: Channel, make: Callable[[], Callee], source: str | None) -> None:
    try:
        if source is not None:
            with boundary():
                callee = make()
            make = lambda: callee  # noqa: E731 - what workers have from their birth
    except Refused as error:
        channel.send({"refused": cause(error)})
        return
    threads = len(os.listdir("/proc/self/task"))
    channel.send({"ready": os.getpid(), "threads": threads})
    _Nursery(channel, make, source if threads > 1 else None).run()


class _Nursery:
    """Starts workers and waits for their ends."""

    def __init__(self, channel: Channel, make: Callable[[], Callee], source: str | None) -> None:
        """Have no workers yet; with a source they are fresh interpreters, else they are forked."""
        self._channel = channel
        self._make = make
        self._source = source
        self._handles: dict[int, int] = {}
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def run(self) -> NoReturn:
        """Do what the pool asks, until it is gone."""
        while True:
            for handle, _ in self._poller.poll():
                if handle in self._handles:
                    self._reap(handle)
                else:
                    self._start(self._channel.receive().fields)

    def _start(self, fields: Mapping[str, Any]) -> None:
        end = self._channel.take_end()
        pid = self._fork(end, fields) if self._source is None else self._spawn(end, fields)
        end.close()
        handle = os.pidfd_open(pid)
        self._handles[handle] = pid
        self._poller.register(handle, select.POLLIN)
        self._channel.send({"started": pid})

    def _fork(self, end: socket.socket, fields: Mapping[str, Any]) -> int:
        pid = os.fork()
        if not pid:
            for handle in (*self._handles, self._channel.fileno()):
                os.close(handle)
            _be_worker(end, self._make, fields)
        return pid

    def _spawn(self, end: socket.socket, fields: Mapping[str, Any]) -> int:
        os.set_inheritable(end.fileno(), True)
        arguments = (str(self._source), str(end.fileno()), json.dumps(fields))
        command = module_command(sys.executable, __package__, "pool_server", *arguments)
        return os.posix_spawn(command[0], command, os.environ)

    def _reap(self, handle: int) -> None:
        pid = self._handles.pop(handle)
        self._poller.unregister(handle)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        self._channel.send({"ended": pid, "how": ended(os.waitstatus_to_exitcode(status))})


def _be_worker(
    end: socket.socket, make: Callable[[], Callee], fields: Mapping[str, Any]
) -> NoReturn:
    """Work until the pool is gone, in a process group of its own."""
    status = 1
    try:
        os.setpgid(0, 0)
        heads = Segment.attach(Path(fields["heads"]), fields["nbytes"], write=True)
        number = fields["worker"]
        work(end, make, Me(number, heads.array("int64").reshape(-1, HEAD)[number]))
    except (EOFError, OSError):
        status = 0  # the pool is gone
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    """End this process without anything of the one from which it was forked."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(arguments: list[str]) -> NoReturn:
    """Serve a source that is named by JSON, over an inherited descriptor; or be one worker."""
    fields, handle = json.loads(arguments[0]), int(arguments[1])
    os.set_inheritable(handle, False)
    end = socket.socket(fileno=handle)
    if len(arguments) > 2:  # noqa: PLR2004 - the third is what the worker is told
        os.dup2(2, 1)
        _be_worker(end, lambda: made(fields), json.loads(arguments[2]))
    serve(end, lambda: made(fields), arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
