"""What a ServerApp prints: kept in a log, shown whole or by its warnings, whoever sends it.

Flower's SuperLink has it, piece by piece. One that dies has it still when it is back: reading goes
on after the last piece.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..host.programs import private, without_colours
from ..protocol.errors import UmbelError
from ..server.flower_control import Control

if TYPE_CHECKING:
    from .flower_run import Shown
    from .flower_up import FlowerUp

SERVERAPP = "serverapp"
"""Name of the log with a ServerApp's output."""
_WARNING = re.compile(r"WARNING[ \d:,-]*:\s+(?!Connection attempt failed)(.+)")
"""A line of the log that Flower's ServerApp prints; ours use the same. Flower's own about a
SuperLink that is away comes with each try; `umbel up` has said it by then."""
_LAST_WORDS_S = 5.0
"""How long after a run's end the rest of its output may take."""
_AGAIN_S = 0.5


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

    def __init__(self, up: FlowerUp, run_id: int) -> None:
        """Read the output of Flower's run `run_id` from now on."""
        self._log = up.supervisor.log(SERVERAPP)
        self._pieces: list[str] = []
        self._taken = 0
        self._warnings = Warnings()
        self._over = threading.Event()
        self._control = Control(up.address, up.federation.ca)
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

    def show(self, shown: Shown, *, whole: bool) -> None:
        """Show what came since the last call: the whole of it, or each warning once."""
        taken, self._taken = self._taken, len(self._pieces)
        text = "".join(self._pieces[taken : self._taken])
        if whole and text:
            shown.output(text)
        for line in self._warnings.new(text):
            if not whole:
                shown.say(line)

    def end(self) -> str:
        """Wait for the rest and return the last line that says something."""
        self._thread.join(_LAST_WORDS_S)
        self._over.set()
        self._control.close()
        lines = [line.strip() for line in "".join(self._pieces).splitlines()]
        return next((line for line in reversed(lines) if line), "no output")
