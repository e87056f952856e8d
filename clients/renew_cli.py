"""`umbel client renew`: new certificates for this device; with `--due`, the agent's child.

The child is started as `renew_cli --due DIR`. It prints `next SECONDS`, when to look again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from .options import Device, Form, Format, device_place
from .renew import renew
from ..protocol.errors import UmbelError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="renew", epilog="Example: umbel client renew")
def renew_(device: Device = None, form: Form = Format.TEXT) -> None:
    """Get new certificates for this device's keys; `umbel client up` does it by itself."""
    done = renew(device_place(device), _say)
    if form is Format.JSON:
        found = {"device": str(done.directory), "until": done.until.isoformat()}
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"the certificates hold until {done.until:%F %R} UTC")


def _say(line: str) -> None:
    print(f"umbel: {line}", file=sys.stderr, flush=True)


def main(directory: Path) -> int:
    """Renew what is due, for the agent; returns the exit status."""
    try:
        done = renew(directory, _say, due=True)
    except (UmbelError, OSError) as error:
        _say(str(error))
        return 2
    if done.renewed:
        _say(f"the certificates hold until {done.until:%F %R} UTC")
    print(f"next {done.next_s:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[2])))
