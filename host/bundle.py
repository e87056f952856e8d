"""A file for a bug report: texts that were chosen one by one, and a last look for secrets.

Nothing gets in because nobody thought of keeping it out: who makes a bundle adds each part by name.
Lines of a log in which a secret stands are left out, and say so. At the end every part, and the
file itself, is searched for every secret that is known (known_secrets.py); one hit, and there is no
bundle. A zip archive, 0600, named when it is whole; parts are bounded.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import TYPE_CHECKING

from .known_secrets import regular_file
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .known_secrets import Secrets

LOG_TAIL = 256 << 10
"""Bytes of a log, its newest."""
MOST_PART = 4 << 20
LEFT_OUT = b"[a line was left out: a secret stood in it]"


class Bundle:
    """What is gathered for one report."""

    def __init__(self, secrets: Secrets, shortened: Mapping[str, str]) -> None:
        """Hold nothing; `shortened` says what takes the place of a text, as of a user's home."""
        self._secrets, self._shortened = secrets, dict(shortened)
        self._parts: dict[str, bytes] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of what is in it."""
        return tuple(self._parts)

    def add_text(self, name: str, text: str) -> None:
        """Add a text; what goes beyond `MOST_PART` is cut off, and said."""
        for long, short in self._shortened.items():
            text = text.replace(long, short)
        data = text.encode("utf-8", "replace")
        if len(data) > MOST_PART:
            data = data[:MOST_PART] + b"\n[cut off here]\n"
        self._parts[name] = data

    def add_json(self, name: str, value: object) -> None:
        """Add a value as JSON."""
        self.add_text(name, json.dumps(value, indent=1, default=str) + "\n")

    def add_log(self, name: str, file: Path) -> None:
        """Add the end of a log, where there is one; a line with a secret is left out."""
        log = regular_file(file)
        if log is None:
            return
        with log:
            size = os.fstat(log.fileno()).st_size
            log.seek(max(size - LOG_TAIL, 0))
            lines = log.read(LOG_TAIL).split(b"\n")
        if size > LOG_TAIL:
            lines[0] = b"[older lines are left out]"
        kept = [LEFT_OUT if self._secrets.found_in(line) else line for line in lines]
        text = self._secrets.without(b"\n".join(kept), LEFT_OUT)  # some go over several lines
        self.add_text(name, text.decode("utf-8", "replace"))

    def write(self, out: Path) -> None:
        """Search everything, then write the file.

        Raises:
            StateError: A secret stands in it, or the file is there already or cannot be written.
        """
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self._parts.items():
                self._search(name, name.encode() + b"\n" + data)
                archive.writestr(name, data)
        self._search(out.name, file.getvalue())
        try:
            descriptor = os.open(out, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        except FileExistsError as error:
            move = "name another"
            raise StateError(str(out), "a file that is not there", "one that is", move) from error
        except OSError as error:
            raise StateError(str(out), "a file to write", error.strerror) from error
        with open(descriptor, "wb") as target:
            target.write(file.getvalue())

    def _search(self, name: str, data: bytes) -> None:
        if found := self._secrets.found_in(data):
            move = "nothing was written; report that it came there, and not what it is"
            raise StateError(f"support bundle, {name}", "no secret", found, move)
