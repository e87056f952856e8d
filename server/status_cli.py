"""`umbel server status`: programs, runs, nodes, and why a node does not contribute."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from .federation_files import find
from .options import Federation  # noqa: TC001 - typer evaluates it
from .status import Observer, Status
from ..host.answer_form import Form, Format
from ..host.figures import day, moment, size
from ..host.places import umbel_home
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .status_nodes import NodeView

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SOON_S = 14 * 86400
"""A certificate that ends sooner is said to."""
LEAST_EVERY, MOST_EVERY = 0.5, 3600.0
_HOME = "\x1b[H\x1b[J"


@app.command(epilog="Example: umbel server status --watch")
def status(
    federation: Federation = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often --watch looks.")] = 2.0,
    form: Form = Format.TEXT,
) -> None:
    """Show a federation's server: what runs, how far runs are, and each node.

    Of a node that does not contribute it says why, and what mends that. It changes nothing.
    """
    if not LEAST_EVERY <= every <= MOST_EVERY:
        raise SettingsError("--every", f"{LEAST_EVERY:g} to {MOST_EVERY:g} seconds", every)
    observer = Observer(find(federation), umbel_home(writes=False))
    live = watch and form is Format.TEXT and sys.stdout.isatty()
    while True:
        found = observer.look()
        text = json.dumps(found.as_json()) if form is Format.JSON else "\n".join(lines(found))
        typer.echo((_HOME if live else "") + text)
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(every)


def lines(found: Status) -> list[str]:
    """Return a status as people read it."""
    made = [f"federation {found.federation}, {moment(found.at)}, umbel {found.umbel}"]
    made += _servers(found)
    ends = [f"{one.name} {day(one.ends)}{_soon(one.ends - found.at)}" for one in found.certificates]
    made.append(f"certificates end: {', '.join(ends)}")
    made += [f"unknown: {line}" for line in found.unknown]
    for run in found.runs:
        at = f"round {run.round}" + (f" of {run.rounds}" if run.rounds else "")
        where = f"{at}, attempt {run.attempt}, {run.what}: {run.phase}" if run.phase else "starting"
        gone = "" if run.serverapp else "; its ServerApp is gone"
        made.append(f"run {run.run}: {where}; {run.sessions} sessions, {run.finished} done{gone}")
    if not found.runs:
        made.append("no run in progress")
    names = ", ".join(f"{t['name']} (until {moment(t['expires'])})" for t in found.tokens)
    made.append(f"open tokens: {names or 'none'}")
    return made + _nodes(found)


def _servers(found: Status) -> list[str]:
    said = []
    for server in found.servers:
        since = f" since {moment(server.since)}" if server.since else ""
        said.append(f"{server.name} {'up' + since if server.alive else 'DOWN'}")
    return [f"programs: {', '.join(said)}"]


def _soon(left: float) -> str:
    return " (ENDED)" if left <= 0 else f" (in {left // 86400:.0f} days)" if left < SOON_S else ""


def _nodes(found: Status) -> list[str]:
    if not found.nodes:
        return ["no nodes; `umbel server token --name NAME` makes a token for one"]
    head = ("node", "site", "state", "umbel", "seen", "rounds", "up", "down", "certificate")
    rows = [head, *(_row(node, found.at) for node in found.nodes)]
    wide = [max(len(row[i]) for row in rows) for i in range(len(head))]
    made = []
    for row, node in zip(rows, [None, *found.nodes], strict=True):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, wide, strict=True))
        made.append("  ".join(cells).rstrip())
        if node is not None:
            made += _about(node)
    return made


def _row(node: NodeView, now: float) -> Sequence[str]:
    return (
        node.name, node.site, node.state, str(node.about.get("umbel", "")), _ago(now - node.seen),
        str(node.rounds), size(node.bytes_up), size(node.bytes_down), day(node.expires),
    )  # fmt: skip


def _about(node: NodeView) -> list[str]:
    made = [f"    why: {node.why}"] if node.why else []
    if node.refusal is not None and node.refusal.code not in node.why:
        last = node.refusal
        at = moment(last.at) if last.at else "some time ago"
        made.append(f"    last: {last.code}, {at}, {last.where}: {last.means}")
    return made


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now" if seconds < 1 else f"{seconds:.0f} s ago"
