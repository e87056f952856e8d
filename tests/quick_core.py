"""`umbel core up` with shorter times, so that a test of what comes after them need not wait long.

    python -m umbel.tests.quick_core '{"GRACE": 1.5}' core up --federation FOLDER

The keys are the constants of server/sessions.py and server/grpc_gateway.py; everything else is
the command's own. The real times are those of the tests that carry the mark `slow`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from umbel import cli
from umbel.server import grpc_gateway, sessions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SOONER = {"GRACE": 1.5}
"""A device that died is lost after half the time; one whose line broke still has plenty."""


def core_up(federation: Path, times: Mapping[str, float] | None) -> list[str]:
    """Return the command that serves a federation, with its own times where none are given."""
    program = ["umbel.tests.quick_core", json.dumps(times)] if times else ["umbel"]
    return [sys.executable, "-m", *program, "core", "up", "--federation", str(federation)]


def main(times: Mapping[str, float], arguments: list[str]) -> int:
    """Run the command with these times."""
    for name, seconds in times.items():
        (module,) = (m for m in (sessions, grpc_gateway) if name in vars(m))
        setattr(module, name, seconds)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
