"""`umbel client apps`: which bundles may run on this device, and which wait for a word."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app_view import changes, described
from .apps import APPROVED, REJECTED, Apps
from .bundle import Bundle
from .options import Device, device_place
from .policy import Policy
from ..host.answer_form import Form, Format
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from .apps import Known

SHORTEST = 16
"""Digits of a SHA-256 that name a bundle: fewer could be met by trying."""
Sha = Annotated[
    str, typer.Argument(metavar="SHA", help=f"SHA-256 of the bundle, {SHORTEST} digits or more.")
]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def _apps() -> None:
    """See which app bundles may run on this device, and say a word on those that wait.

    A bundle that waits has been read and never run. The policy's trust.approve lets bundles wait.

    Example: umbel client apps list; umbel client apps diff SHA; umbel client apps approve SHA
    """


@app.command("list", epilog="Example: umbel client apps list --format json")
def list_(device: Device = None, form: Form = Format.TEXT) -> None:
    """List the bundles that this device has heard of, the newest last."""
    known = sorted(Apps(device_place(device)).known().items(), key=lambda item: item[1].at)
    rows = [_row(sha, line) for sha, line in known]
    if form is Format.JSON:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        typer.echo(f"{row['state']:<9} {row['at']} {row['app']} {row['release']}  {row['sha256']}")
    if not rows:
        typer.echo("no bundle has waited here, nor been kept for comparison")


@app.command(epilog="Example: umbel client apps show 9f2c0a5e77d1b3c4")
def show(sha: Sha, device: Device = None, form: Form = Format.TEXT) -> None:
    """Show a kept bundle: its files and their sizes, and whose signatures in it hold."""
    place = device_place(device)
    apps, full = _named(place, sha)
    found = _row(full, apps.known()[full])
    found |= described(Bundle.read(apps.read(full)), _policy(place).publishers or ())
    if form is Format.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{found['app']} {found['release']}, {found['state']} since {found['at']}")
    typer.echo(f"sha256 {full}, {found['bytes']} bytes in {len(found['files'])} files")
    for signer in found["signed"]:
        listed = "in" if signer["listed"] else "not in"
        typer.echo(f"signed by {signer['key']}, {listed} trust.publishers")
    for name, size in found["files"].items():
        typer.echo(f"{size:>10} {name}")


@app.command(epilog="Example: umbel client apps diff 9f2c0a5e77d1b3c4")
def diff(sha: Sha, device: Device = None, form: Form = Format.TEXT) -> None:
    """Compare a bundle with the one that ran last under the same publisher and name."""
    apps, full = _named(device_place(device), sha)
    other = apps.before(full)
    old = None if other is None else Bundle.read(apps.read(other))
    found = changes(old, Bundle.read(apps.read(full)))
    if form is Format.JSON:
        rows = [change._asdict() for change in found]
        typer.echo(json.dumps({"old": other, "new": full, "changes": rows}, indent=1))
        return
    typer.echo(f"{other or 'nothing that ran here'} -> {full}: {len(found)} files differ")
    for change in found:
        typer.echo(f"{change.how}: {change.name}")
        for line in change.lines:
            typer.echo(line)


@app.command(epilog="Example: umbel client apps approve 9f2c0a5e77d1b3c4")
def approve(sha: Sha, device: Device = None, form: Form = Format.TEXT) -> None:
    """Let a bundle run on this device from its next invitation on; a changed one waits again."""
    place = device_place(device)
    apps, full = _named(place, sha)
    if not _policy(place).approve:
        raise SettingsError("trust.approve", "true in policy.toml", "false", "or list it in apps")
    _told(full, apps.decide(full, APPROVED), form)


@app.command(epilog="Example: umbel client apps reject 9f2c0a5e77d1b3c4")
def reject(sha: Sha, device: Device = None, form: Form = Format.TEXT) -> None:
    """Never let a bundle run here, whoever lists or signs it; what runs now ends by itself."""
    place = device_place(device)
    unseen = re.fullmatch("[0-9a-f]{64}", sha) is not None  # need not have come yet
    apps, full = (Apps(place), sha) if unseen else _named(place, sha)
    _told(full, apps.decide(full, REJECTED), form)


def _named(place: Path, sha: str) -> tuple[Apps, str]:
    """Return the one bundle whose SHA-256 begins so."""
    apps = Apps(place)
    found = [full for full in apps.known() if full.startswith(sha.lower())]
    if len(sha) < SHORTEST or len(found) != 1:
        got = f"{len(found)} that begin with {sha}" if len(sha) >= SHORTEST else f"{len(sha)}"
        expected = f"{SHORTEST} digits or more of a bundle's SHA-256"
        raise SettingsError("SHA", expected, got, "`umbel client apps list` has them")
    return apps, found[0]


def _told(sha: str, known: Known, form: Format) -> None:
    """Say what was decided."""
    if form is Format.JSON:
        typer.echo(json.dumps(_row(sha, known), indent=1))
    else:
        typer.echo(f"{known.state}: {known.app} {known.release} {sha}")


def _policy(place: Path) -> Policy:
    file = place / "policy.toml"
    return Policy.load(file) if file.exists() else Policy()


def _row(sha: str, known: Known) -> dict[str, Any]:
    at = datetime.fromtimestamp(known.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "state": known.state, "app": known.app, "release": known.release, "at": at, "sha256": sha
    }  # fmt: skip
