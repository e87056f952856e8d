"""The peer of `umbel bench footprint`: Flower's client library and its idle SuperNode.

The SuperNode is started as a user would, without a SuperLink to talk to: it tries again and
again, which is as idle as it gets. With its SuperExec it is what a device runs between two
messages; the app's own process, started for each message, is not there.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from .process_memory import proportional, session_members

NAME = f"flwr {version('flwr')}"
CLIENT = "flwr.clientapp"
AVAILABLE = Path(sys.executable).with_name("flower-supernode").exists()
_LONGEST, _STEP, _CALM = 30.0, 0.5, 4
"""Seconds to wait at most, seconds between two looks, looks without change."""
_REAPED = 0.02
"""Seconds between two looks for what was killed."""
_CHANGE = 0.01
_EXPECTED = 2
"""Processes: SuperNode and SuperExec."""


def idle_supernode() -> int:
    """Start a SuperNode, wait until its memory stands still, return the PSS of all its processes.

    Returns:
        Bytes.
    """
    bin_folder = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {
            "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        command = [str(bin_folder / "flower-supernode"), "--insecure"]
        command += ["--superlink", f"127.0.0.1:{_free_port()}", "--port", str(_free_port())]
        process = subprocess.Popen(  # noqa: S603 - Flower's own command
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return _settled(process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _wait_gone(process.pid)


def _wait_gone(session: int) -> None:
    """Wait until what the leader had started is gone too: somebody else reaps that."""
    end = time.monotonic() + _LONGEST
    while session_members(session) and time.monotonic() < end:
        time.sleep(_REAPED)


def _settled(pid: int) -> int:
    """Return the PSS of a process and its children once it has stopped growing."""
    before, calm, end = 0, 0, time.monotonic() + _LONGEST
    while calm < _CALM and time.monotonic() < end:
        time.sleep(_STEP)
        family = session_members(pid)
        now = sum(proportional(one) for one in family)
        still = abs(now - before) <= _CHANGE * now and len(family) >= _EXPECTED
        calm = calm + 1 if still else 0
        before = now
    return before


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
