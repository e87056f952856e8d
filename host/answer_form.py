"""How a command answers: the option `--format` that all which show something have in common."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Format(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


Form = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]


@contextmanager
def beside(form: Format) -> Iterator[None]:
    """Run user code in this process so that a JSON answer on stdout is alone there.

    What it prints goes to stderr: by Python, by C, and by the programs that it starts.
    """
    if form is Format.TEXT:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
