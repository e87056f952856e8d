"""The option that the commands of a server have in common: which federation.

The federation is that of `--federation DIR`, else the only one below `$UMBEL_HOME/federations/`
that `umbel server init` has made (federation_files.find).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Federation = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Federation directory; the only one of this user."),
]
