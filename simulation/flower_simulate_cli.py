"""`umbel simulate DIR` for a Flower app without a umbel Task: settings, lines, summary."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import typer

from . import report
from .flower_simulate import FlowerOptions, simulate_app
from ..host.answer_form import Format, beside
from ..protocol.errors import SettingsError
from ..server.app_plan import ROUNDS
from ..server.run_config import from_environment
from ..strategies.app import read_tables

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Options
    from ..server.ledger import RoundRecord

NEEDS_TASK = "an app with a umbel Task ([tool.umbel] task), which this one is not"
OURS = ("workers", "tier")
"""Settings of every simulated app, whatever it declares."""
NOTHING = "the ServerApp ended without a message to any node"


def run_flower(directory: Path, asked: Options, form: Format) -> None:
    """Simulate a Flower app and say what came of it.

    Raises:
        SettingsError: An option asks for something of a umbel Task, or a setting is wrong.
        UmbelError: The ServerApp raised, or a round failed.
    """
    options = planned(directory, asked)
    text = form is Format.TEXT
    with beside(form):
        lines = _Lines()
        found = simulate_app(directory, options, lines, lines.begin)
    if found is None:
        typer.echo(NOTHING if text else json.dumps({"run": None}))
        return
    typer.echo(report.summary(found) if text else json.dumps(report.as_json(found)))
    if found.failure is not None:
        raise found.failure


def planned(directory: Path, asked: Options) -> FlowerOptions:
    """Return how a Flower app is simulated where `umbel simulate` was asked for this.

    Raises:
        SettingsError: An option asks for something of a umbel Task, or a setting is wrong.
    """
    others = {
        "--drop-at": asked.drops, "--init": asked.init, "--policy": asked.policy,
        "--in-process": asked.in_process,
    }  # fmt: skip
    for flag, value in others.items():
        if value:
            raise SettingsError(flag, NEEDS_TASK, value)
    declared, _ = read_tables(directory)
    surroundings = from_environment(os.environ)
    config = {
        key: value
        for key, value in (asked.settings or {}).items()
        if key in declared or key in OURS or surroundings.get(key) != value
    }
    for key in ("fleet", "hand-over"):
        if key in config and key not in declared:
            raise SettingsError(f"--{key}", NEEDS_TASK, config[key])
    workers = None if "workers" in declared else config.pop("workers", None)
    if workers is not None and (type(workers) is not int or workers < 0):
        raise SettingsError("--workers", "an integer, 0 for one a core", workers)
    if "tier" not in declared and config.pop("tier", "T3") not in {"T3", "auto"}:
        raise SettingsError("--tier", f"T3 or auto, or {NEEDS_TASK}", "another")
    if asked.rounds is not None:
        named = next((name for name in ROUNDS if name in declared), None)
        if named is None:
            raise SettingsError("--rounds", f"an app that declares {' or '.join(ROUNDS)}", "none")
        config[named] = asked.rounds
    return FlowerOptions(
        clients=asked.clients, seed=asked.seed or 0, workers=workers or None, config=config,
        run=asked.run, home=asked.home,
    )  # fmt: skip


class _Lines:
    """The lines of a run whose number of rounds is known when its strategy starts."""

    def __init__(self) -> None:
        """Say nothing yet."""
        self._live: report.Live | None = None

    def begin(self, rounds: int) -> None:
        """Take the number of rounds."""
        self._live = report.Live(rounds, sys.stdout)

    def __call__(self, record: RoundRecord) -> None:
        """Show a committed record."""
        live = self._live or report.Live(record.round, sys.stdout)  # a loop of the app's own
        live(record)
