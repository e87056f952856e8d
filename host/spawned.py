"""How a process that runs user code is started, keeps its pipe, and how it ended, in words.

The training child of a device (clients/worker.py) and the evaluator of a server
(server/evaluator.py) are such processes: a module of ours in a fresh interpreter, which imports
the app, with one thread of OpenMP each.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import io

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def module_command(python: str, package: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours; -P: not from where we stand."""
    return [python, "-P", "-m", f"{package}.{module}", *arguments]


def ended(code: int) -> str:
    """Return how a process ended, in words."""
    return f"exited with status {code}" if code >= 0 else f"was killed by {_signal(-code)}"


def reap(process: subprocess.Popen[bytes], grace: float) -> str:
    """Close a process's pipe and end it, by force after `grace` seconds; return how it ended."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        code = process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return ended(code)


def take_pipe() -> tuple[io.FileIO, io.FileIO]:
    """Move the pipe to private descriptors; 0 becomes the null device and 1 becomes stderr."""
    source, sink = os.dup(0), os.dup(1)  # not inheritable: a program that user code runs has none
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return open(source, "rb", buffering=0), open(sink, "wb", buffering=0)


def _signal(number: int) -> str:
    """Return a signal's name, with what SIGKILL usually means."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name
