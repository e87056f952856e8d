"""`umbel fleet show FLEET.toml`: what devices a description yields."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import TYPE_CHECKING, Annotated

import typer

from .fleet.devices import Load
from .fleet.shown import bar, shown
from .fleet.toml import read
from ..host.answer_form import Form, Format
from ..host.figures import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .fleet.shown import Shown

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_MANY = 10_000
"""Clients, where the file says shares and nobody says how many."""
_MOST = 10_000_000
"""Two hundred megabytes."""


@app.command(epilog="Example: umbel fleet show fleet.toml --clients 1000 --bytes 240000")
def show(
    file: Annotated[Path, typer.Argument(metavar="FLEET.toml", help="A fleet's description.")],
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help=f"How many; else those counted, or {_MANY}."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="The run's, where the file has none.")
    ] = 0,
    nbytes: Annotated[
        int, typer.Option("--bytes", min=0, max=10**15, help="Of a model, down and up again.")
    ] = 1_000_000,
    epochs: Annotated[int, typer.Option(min=1, max=10**6, help="Local ones, of a round.")] = 1,
    form: Form = Format.TEXT,
) -> None:
    """Show each cohort's devices: quantiles, seconds of a round, losses, share online by hour."""
    described = read(file)
    fleet = described.fleet(clients or described.clients or _MANY, seed)
    load = Load(down=nbytes, up=nbytes, epochs=epochs)
    cohorts = shown(described, fleet, load)
    if form is Format.JSON:
        answer = {
            "file": str(file),
            "digest": described.digest,
            "seed": fleet.seed,
            "clients": fleet.clients,
            "load": {"down": nbytes, "up": nbytes, "epochs": epochs},
            "cohorts": cohorts,
            "sites": {
                name: {"outage": site.outage, "correlation": site.correlation}
                for name, site in described.sites.items()
            },
        }
        typer.echo(json.dumps(answer))
        return
    typer.echo(
        f"{file}: {fleet.clients:,} clients, seed {fleet.seed}; a round has {size(nbytes)} down, "
        f"{size(nbytes)} up and {epochs} epoch{'s' * (epochs > 1)}"
    )
    for cohort in cohorts:
        typer.echo("\n" + _text(cohort, cohort["clients"] / fleet.clients))
    for name, site in described.sites.items():
        typer.echo(
            f"\nsite {name}: cut off in {site.outage:.2%} of hours; losses of an hour correlate"
            f" by {site.correlation:g}"
        )


def _text(cohort: Shown, share: float) -> str:
    """Return a cohort as a person reads it."""
    place = f" at {cohort['site']}" if cohort["site"] else ""
    lines = [f"{cohort['name']}{place}: {cohort['clients']:,} clients, {share:.1%}"]
    if not cohort["clients"]:
        return lines[0]
    lines += [f"{'':20}{'p10':>11}{'p50':>11}{'p90':>11}"]
    lines += [
        _row("samples", [f"{value:,.0f}" for value in cohort["samples"]]),
        _row("seconds a sample", [f"{value:.4g}" for value in cohort["speed"]]),
        _row("down, a second", [size(int(value)) for value in cohort["downlink"]]),
        _row("up, a second", [size(int(value)) for value in cohort["uplink"]]),
    ]
    if cohort["memory"] is not None:
        lines += [_row("memory", [size(int(value)) for value in cohort["memory"]])]
    mean = sum(cohort["online"]) / 24
    lines += [
        _row("seconds a round", [f"{value:,.4g}" for value in cohort["seconds"]]),
        f"  lost {cohort['lost']:.2%}, breaks off {cohort['crashed']:.2%}",
        f"  online {mean:.1%}, hours 0 to 23: [{bar(cohort['online'])}]",
    ]
    return "\n".join(lines)


def _row(name: str, values: Sequence[str]) -> str:
    return f"  {name:18}" + "".join(f"{value:>11}" for value in values)
