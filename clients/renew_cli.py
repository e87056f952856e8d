"""`umbel client renew`: new certificates for this device. The module alone is the agent's child.

`renew_cli --due DIR` renews what is old, `--ask` whatever there is. It prints `next SECONDS`, when
to look again; status 2 is an error that it names, 3 that the CA knows no such node.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from .options import Device, device_place
from .renew import renew
from .renewals import CAUSE_SAID, GONE
from ..host.answer_form import Form, Format
from ..protocol.enrolment import Declined
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


def main(directory: Path, *, due: bool) -> int:
    """Renew for the agent; returns the exit status."""
    try:
        done = renew(directory, _say, due=due)
    except Declined as error:
        _say(str(error))
        return GONE if error.code in {"removed", "unknown node", "other keys"} else CAUSE_SAID
    except (UmbelError, OSError) as error:
        _say(str(error))
        return CAUSE_SAID
    if done.renewed:
        _say(f"the certificates hold until {done.until:%F %R} UTC")
    print(f"next {done.next_s:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[2]), due=sys.argv[1] == "--due"))
