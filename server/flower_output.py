"""What a ServerApp prints: kept in a log, shown whole or by its warnings, whoever sends it.

Flower's SuperLink has it, piece by piece. One that dies has it still when it is back: reading goes
on after the last piece.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from ..host.programs import private, without_colours
from ..protocol.errors import UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .flower_control import Control

SERVERAPP = "serverapp"
"""Name of the log with a ServerApp's output."""
_WARNING = re.compile(r"WARNING[ \d:,-]*:\s+(?!Connection attempt failed)(.+)")
"""A line of the log that Flower's ServerApp prints; ours use the same. Flower's own about a
SuperLink that is away comes with each try; `umbel up` has said it by then."""
_LAST_WORDS_S = 5.0
"""How long after a run's end the rest of its output may take."""
_AGAIN_S = 0.5
_TAIL = 4096


class Warnings:
    """The warnings in a ServerApp's output, each told once."""

    def __init__(self) -> None:
        """Begin with an empty output."""
        self._rest = ""
        self._told: set[str] = set()

    def new(self, text: str) -> list[str]:
        """Take the next piece of the output and return the warnings that it completes."""
        *lines, self._rest = (self._rest + without_colours(text)).split("\n")
        found = [match[1] for match in map(_WARNING.match, lines) if match is not None]
        new = [line for line in dict.fromkeys(found) if line not in self._told]
        self._told.update(new)
        return new


class Output:
    """The ServerApp's output, read in a thread of its own because reading waits."""

    def __init__(self, log: Path, control: Control, run_id: int) -> None:
        """Read the output of Flower's run `run_id` from now on.

        Args:
            log: File to which it is appended.
            control: Connection for this alone, closed at the end.
            run_id: Of the run.
        """
        self._log, self._control = log, control
        self._pieces: deque[str] = deque()
        self._tail = ""
        self._warnings = Warnings()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(run_id,), daemon=True)
        self._thread.start()

    def _read(self, run_id: int) -> None:
        last = 0.0
        with open(self._log, "a", opener=private, encoding="utf-8") as log:
            while not self._over.is_set():
                with suppress(UmbelError):  # the SuperLink is away, as its supervisor says
                    for piece, when in self._control.output_after(run_id, last):
                        last = when
                        self._pieces.append(piece)
                        log.write(piece)
                        log.flush()
                    return
                self._over.wait(_AGAIN_S)

    def show(self, say: Callable[[str], None], output: Callable[[str], None] | None) -> None:
        """Show what came since the last call.

        Args:
            say: Takes each warning in it, once, where the whole is not shown.
            output: Takes the whole of it.
        """
        text = self._new()
        if output is not None and text:
            output(text)
        for line in self._warnings.new(text):
            if output is None:
                say(line)

    def _new(self) -> str:
        text = "".join(self._pieces.popleft() for _ in range(len(self._pieces)))
        self._tail = (self._tail + text)[-_TAIL:]
        return text

    def end(self) -> str:
        """Wait for the rest and return the last line that says something."""
        self._thread.join(_LAST_WORDS_S)
        self._over.set()
        self._control.close()
        lines = [line.strip() for line in (self._tail + "".join(self._pieces)).splitlines()]
        return next((line for line in reversed(lines) if line), "no output")
