"""What a session writes down while it goes on: the history, and what `umbel client status` shows.

    session (session.py)       begin, doing, cohort, survivors, contributed, refused, end
    line (grpc_session.py)     server, word; at the end over

A row is written when an attempt begins and at each step of it, so that whatever kills the process
leaves what was known (history.py). What is shown is written by a thread of its own, soon after it
changed and at most once in `SHOWN_S`: a round of a small model has six changes in 20 ms, and nobody
looks as fast. Nothing here stops a session: what cannot be written is said.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .history import History
from .history_file import CLOSED, CONTRIBUTED, ENDED, OPEN, REFUSED, Entry
from .status_file import SessionStatus, write_session
from ..protocol import messages_pb2 as pb
from ..protocol.errors import LONGEST, StateError, one_line, reason_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .grpc_session import Outcome
    from ..protocol.errors import Refused


SHOWN_S = 0.25
"""Seconds between two writings of what is shown."""


class Record:
    """No record: what a simulated session writes down."""

    def begin(self, start: pb.Start) -> None:
        """Note that an attempt begins."""

    def doing(self, state: str) -> None:
        """Note what the device does now, one of `SESSION_STATES`."""

    def cohort(self, members: int) -> None:
        """Note how many members the roster has."""

    def survivors(self, count: int) -> None:
        """Note how many updates are in the sum."""

    def contributed(self) -> None:
        """Note that this device has done its part."""

    def refused(self, refused: Refused) -> None:
        """Note why it goes no further."""

    def end(self, outcome: str = CLOSED) -> None:
        """Note that the attempt is over; how, unless more is known already."""


class Recorder(Record):
    """The record of one session, in the directory of its device."""

    def __init__(
        self,
        directory: Path,
        run: str,
        gateway: str,
        app: bytes,
        log: Callable[[str], None],
        meter: Callable[[], tuple[int, int]],
    ) -> None:
        """Begin; what an earlier process left open was interrupted.

        Args:
            directory: The device's; this process holds its journal.
            run: Umbel's run id.
            gateway: As it is dialled.
            app: SHA-256 of the bundle.
            log: The device's own console.
            meter: Bytes up and down since the session began.
        """
        self._directory, self._app, self._log = directory, app.hex(), log
        self._meter = meter
        self._history = History(directory, log)
        self._history.settle()
        self._row, self._outcome, self._from = 0, OPEN, (0, 0)
        self._open = False
        self._rounds: set[tuple[int, str]] = set()
        self._others = [0, 0]
        """Bytes of attempts."""
        now = time.time()
        self._began, self._run = now, run
        self._shown = _Shown(
            directory, log, meter, SessionStatus(
                state="joining", run=run, gateway=gateway, up=False, since=now, doing=now, began=now
            ),
        )  # fmt: skip

    # -- the session's ------------------------------------------------------------------------

    def begin(self, start: pb.Start) -> None:
        """Note that an attempt begins: a row, before anything else is done."""
        phase = "train" if start.phase == pb.PHASE_TRAIN else "evaluate"
        self._from, self._outcome, self._open = self._meter(), OPEN, True
        now = time.time()
        self._row = self._history.add(
            Entry(
                kind="attempt", at=now, until=now, run=start.run, round=start.round, phase=phase,
                attempt=start.attempt, app=self._app, scheme=start.scheme,
            )
        )  # fmt: skip
        self._shown.change(
            state="loading", doing=now, round=start.round, phase=phase, attempt=start.attempt,
            members=0,
        )  # fmt: skip

    def doing(self, state: str) -> None:
        """Note what the device does now."""
        self._shown.change(state=state, doing=time.time())

    def cohort(self, members: int) -> None:
        """Note how many members the roster has."""
        self._note(members=members)
        self._shown.change(members=members)

    def survivors(self, count: int) -> None:
        """Note how many updates are in the sum."""
        self._note(survivors=count)

    def contributed(self) -> None:
        """Note that this device has done its part, at once: the server may say nothing more."""
        self._outcome = CONTRIBUTED
        self._note(outcome=CONTRIBUTED)
        self._rounds.add((self._shown.status.round, self._shown.status.phase))
        self._shown.change(rounds=len(self._rounds))

    def refused(self, refused: Refused) -> None:
        """Note why it goes no further; the words stay here."""
        self._outcome = REFUSED
        code = reason_text(refused.reason)
        self._note(outcome=REFUSED, code=code, key=refused.key, reason=str(refused))

    def end(self, outcome: str = CLOSED) -> None:
        """Note that the attempt is over, if one is open."""
        if not self._open:
            return
        self._open = False
        # What arrives from here on is the session's: the sum is of what the row says.
        up, down = self._note(outcome=outcome if self._outcome == OPEN else self._outcome)
        self._others = [self._others[0] + up, self._others[1] + down]
        self._shown.change(state="idle", doing=time.time())

    # -- the line's ---------------------------------------------------------------------------

    def server(self, there: bool) -> None:
        """Note whether a server is there; from any thread, only a change is written."""
        status = self._shown.status
        if status.up is there:
            return
        state = status.state
        if there and state in {"joining", "away"}:
            state = "idle"
        elif not there and state == "idle":
            state = "away"
        self._shown.change(up=there, since=time.time(), state=state)

    def word(self, line: str) -> None:
        """Keep the newest line of the console."""
        self._shown.change(word=one_line(line[:LONGEST])[:LONGEST])

    def over(self, outcome: Outcome) -> None:
        """Note what the session came to, and close the record."""
        reason = outcome.reason
        code = "" if reason == pb.REASON_UNSPECIFIED else reason_text(reason)
        up, down = outcome.bytes_up - self._others[0], outcome.bytes_down - self._others[1]
        self._history.add(
            Entry(
                kind="session", at=self._began, until=time.time(), run=self._run,
                app=self._app, outcome=ENDED, code=code, reason=outcome.detail,
                bytes_up=max(0, up), bytes_down=max(0, down),
            )
        )  # fmt: skip
        self._shown.change(state="away", up=False, rounds=outcome.rounds)
        self._shown.close()
        self._history.close()

    # -- both ---------------------------------------------------------------------------------

    def _spent(self) -> tuple[int, int]:
        up, down = self._meter()
        return max(0, up - self._from[0]), max(0, down - self._from[1])

    def _note(self, **values: str | int) -> tuple[int, int]:
        """Write to the attempt's row, and return the bytes up and down that it says."""
        up, down = self._spent()
        self._history.change(self._row, until=time.time(), bytes_up=up, bytes_down=down, **values)
        return up, down


class _Shown:
    """What `umbel client status` shows of a session; any thread may change it."""

    def __init__(
        self,
        directory: Path,
        log: Callable[[str], None],
        meter: Callable[[], tuple[int, int]],
        status: SessionStatus,
    ) -> None:
        """Write it for the first time."""
        self.status = status
        self._directory, self._log, self._meter = directory, log, meter
        self._lock = threading.Lock()
        self._changed, self._over = threading.Event(), threading.Event()
        self._unsaid = False
        self._write()
        self._thread = threading.Thread(target=self._keep, name="session.json", daemon=True)
        self._thread.start()

    def change(self, **values: Any) -> None:
        """Change some of it."""
        with self._lock:
            self.status = replace(self.status, **values)
        self._changed.set()

    def close(self) -> None:
        """Write it for the last time."""
        self._over.set()
        self._changed.set()
        self._thread.join()
        self._write()

    def _keep(self) -> None:
        while not self._over.is_set():
            self._changed.wait()
            self._changed.clear()
            self._write()
            self._over.wait(SHOWN_S)

    def _write(self) -> None:
        up, down = self._meter()
        with self._lock:
            shown = replace(self.status, said=time.time(), bytes_up=up, bytes_down=down)
        try:
            write_session(self._directory, shown)
        except (OSError, StateError) as error:
            if not self._unsaid:
                self._log(f"what this session does is not shown: {error}")
            self._unsaid = True
