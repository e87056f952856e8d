"""An evaluator as the ServerApp holds it: started, asked, listened to, ended; nothing here waits.

What it says is JSON, a line an answer (evaluator.py), and as foreign as any peer's bytes: it comes
from the process that runs the user's code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..host.spawned import THREADS, module_command, reap
from ..protocol.documents import read_json
from ..protocol.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..strategies.app import AppRef

GRACE_S = 2.0
"""How long an evaluator may take to leave before it is killed."""
_MOST = 1 << 22
"""Bytes of one answer."""


class Said(NamedTuple):
    """One thing that was heard of an evaluator: just one of these."""

    examples: int | None = None
    """It is ready, and has so many; 0 for no test data."""
    sums: list[dict[str, Any]] | None = None
    """What it measured on each part of its share."""
    raised: str = ""
    """What user code raised; it ends."""
    ended: str = ""
    """How it ended, in words."""


class EvaluatorProcess:
    """One process, one after another."""

    def __init__(self, app: AppRef) -> None:
        """Start nothing yet; `app` is where it finds the task."""
        self._app = app
        self._process: subprocess.Popen[bytes] | None = None
        self._text = bytearray()
        self.pid = 0
        """Of the process, or of the last one."""

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def start(self) -> None:
        """Start the process; it loads the task by itself."""
        where = str(self._app.directory), self._app.component
        self._process = process = subprocess.Popen(  # noqa: S603 - our own module
            module_command(sys.executable, str(__package__), "evaluator", *where),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict.fromkeys(THREADS, "1"),
            process_group=0,  # Ctrl-C is the parent's: it closes the pipe
        )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        self.pid, self._text = process.pid, bytearray()

    def ask(self, question: Mapping[str, Any]) -> None:
        """Write one line; that nobody reads it is seen at the next look."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(question).encode() + b"\n")

    def look(self) -> list[Said]:
        """Return what was heard since the last look, its end last of all."""
        if self._process is None:
            return []
        over = self._process.poll() is not None  # first: what it said before is in the pipe
        said = []
        while data := self._read():
            *lines, rest = (self._text + data).split(b"\n")
            self._text = rest
            said += [heard(bytes(line)) for line in lines]
            if len(rest) > _MOST:
                said.append(Said(ended=f"says more than {_MOST} bytes, and {self.end(0)}"))
                return said
        return [*said, Said(ended=self.end(0))] if over else said

    def end(self, grace: float = GRACE_S) -> str:
        """End the process, by force after `grace` seconds; return how it ended, in words."""
        process, self._process = self._process, None
        if process is None:
            return ""
        return reap(process, grace)

    def _read(self) -> bytes:
        out = self._process.stdout if self._process is not None else None
        try:
            return os.read(out.fileno(), 1 << 16) if out is not None else b""
        except BlockingIOError:
            return b""


def heard(line: bytes) -> Said:
    """Return what a line says; anything else than our own code writes counts as raised."""
    try:
        found = read_json(line)
    except ValueError:
        found = None
    match found:
        case {"examples": None}:
            return Said(examples=0)
        case {"examples": int(examples)} if examples > 0:
            return Said(examples=examples)
        case {"sums": [*sums]} if all(isinstance(of, dict) for of in sums):
            return Said(sums=sums)
        case {"raised": str(text)}:
            return Said(raised=one_line(text) or "nothing")
    return Said(raised="what is no answer of an evaluator")
