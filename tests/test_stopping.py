"""A command ends by SIGTERM as by Ctrl-C, and reaps what lost its parent."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys, time
from umbel.host.stopping import no_orphans, stoppable
try:
    with stoppable(), no_orphans():
        # A child leaves a grandchild behind, which ends at once: now this process is its parent.
        forking = "import os; print(os.fork() or os._exit(0))"
        subprocess.run([sys.executable, "-c", forking], check=True)
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("ended", flush=True)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nobody left", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        process.send_signal(number)
        assert process.communicate(timeout=30)[0].splitlines() == ["ended", "nobody left"]
        assert process.returncode == 0
