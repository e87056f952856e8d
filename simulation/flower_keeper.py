"""What keeps a federation running after `umbel up --keep` has left: `python -m … FOLDER`.

It takes over the programs that `up` handed on, starts again those that end, lets runs go on whose
ServerApp was killed (flower_kept.py), signs the member list anew each day and renews certificates
near their end, and ends everything when it is told to by SIGTERM, as `umbel
down` does, or when a program cannot be kept up.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .dev_federation import renew
from .flower_kept import Kept
from .flower_up import end_bereft, free_key
from ..host import process_tree as tree
from ..host.processes import Supervisor, read_state
from ..host.programs import private
from ..protocol.errors import StateError, UmbelError

if TYPE_CHECKING:
    from types import FrameType

START_S = 30.0
_POLL_S = 0.5
RENEW_S = 60.0
"""How long the keeper waits before it looks again whether the CA has something to do."""


def hand_over(supervisor: Supervisor) -> int:
    """Leave a supervisor's programs to a keeper of their own; return its pid when it has them.

    Raises:
        StateError: The keeper did not start; everything was ended.
        KeyboardInterrupt: Somebody interrupted it; everything was ended.
    """
    with tree.unhurried() as hurry:
        keeper = _keeper(supervisor)
        if keeper is not None and not hurry.asked:
            return keeper.pid
        if keeper is not None:
            keeper.terminate()
            keeper.wait()
            raise KeyboardInterrupt
    log = str(supervisor.log("keeper"))
    raise StateError(log, "a keeper of the federation", "none", "see its log")


def _keeper(supervisor: Supervisor) -> subprocess.Popen[bytes] | None:
    """Start a keeper and return it when it has the programs; else None, when they have ended."""
    folder = supervisor.folder
    log = supervisor.log("keeper")
    supervisor.hand_over()
    with open(log, "ab", opener=private) as out:
        keeper = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __spec__.name, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    until = time.monotonic() + START_S
    while time.monotonic() < until and keeper.poll() is None:
        state = read_state(folder)
        if state is not None and state["supervisor"]["pid"] == keeper.pid:
            return keeper
        time.sleep(_POLL_S / 4)
    keeper.kill()
    keeper.wait()
    Supervisor(folder).close()  # ends what is left
    return None


def main(folder: Path) -> int:
    """Keep the federation of a folder until told to end it."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with Supervisor.adopt(folder, lambda program: free_key(folder, program)) as supervisor:
            kept, renewal = Kept(supervisor, folder, _say), _Renewal(folder)
            while True:
                end_bereft(supervisor, folder)
                for item in supervisor.watch():
                    _say(f"{item.name} {item.status or item.what}")
                kept.look(time.monotonic())
                renewal.look(time.monotonic())
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return 0
    except UmbelError as error:
        print(f"keeper: {error}", file=sys.stderr, flush=True)
        return 1


class _Renewal:
    """Lets the CA do what is due, once a day; what cannot be written now is tried again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next = folder, float("-inf")

    def look(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + RENEW_S
        try:
            if renew(self._folder, datetime.now(UTC)):
                _say("the member list is signed anew")
        except StateError as error:
            _say(str(error))


def _say(line: str) -> None:
    print(f"keeper: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
