"""The options that the commands of a server have in common: which federation, and what form.

The federation is that of `--federation DIR`, else the only one below `$UMBEL_HOME/federations/`
that `umbel server init` has made (federation_files.find).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


Form = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]
Federation = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Federation directory; the only one of this user."),
]
