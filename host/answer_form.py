"""How a command answers: the option `--format` that all which show something have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Format(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


Form = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]
