"""`umbel sign APP --key FILE`: a publisher's signature in an app, for devices that trust the key.

What is signed are the files that Flower's rules take into the bundle (protocol/bundles.py), so the
bundle is built twice: once to see them, and once more to see that the signatures are among them.
"""

from __future__ import annotations

import stat
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ..clients.bundle import Bundle
from ..host.whole_file import write_whole
from ..protocol.bundles import SIGNATURES, sign
from ..protocol.errors import Malformed, SettingsError, StateError
from ..protocol.verification import UNREADABLE
from ..server.flower_control import build_bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("sign")
def sign_app(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder.")],
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="The publisher's key, of `umbel keygen`.")
    ],
) -> None:
    """Sign an app: a device whose policy lists the key in trust.publishers runs its bundle.

    The signature is of these very files: sign again after each change.

    Example: umbel sign my-app --key publisher.key
    """
    secret = _key(key)
    digest = signed(folder, secret)
    typer.echo(f"{folder / SIGNATURES}: signed by {secret.public_key().public_bytes_raw().hex()}")
    typer.echo(f"sha256 of the bundle: {digest.hex()}")


def signed(folder: Path, key: Ed25519PrivateKey) -> bytes:
    """Write the app's file of signatures and return the SHA-256 of its bundle.

    Raises:
        SettingsError: It is no Flower app, or its own rules keep the signatures out of the bundle.
        StateError: The file cannot be written.
    """
    file = folder / SIGNATURES
    try:
        bundle = Bundle.read(build_bundle(folder))
        others = file.read_bytes() if file.exists() else None
        made = sign(bundle.digests, key, others)
    except Malformed as error:
        raise SettingsError(f"app {folder}", "an app that can be signed", error) from error
    try:
        write_whole(file, made, 0o644)
    except OSError as error:
        raise StateError(str(file), "a place to write", error.strerror or error) from error
    complete = Bundle.read(build_bundle(folder))
    if key.public_key().public_bytes_raw() not in complete.signers():
        move = "let the app's .gitignore, fab-include and fab-exclude take it in"
        raise SettingsError(f"app {folder}", f"{SIGNATURES} in its bundle", "none", move)
    return complete.digest


def _key(file: Path) -> Ed25519PrivateKey:
    """Return the publisher's key; nobody else may read its file."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        found = load_pem_private_key(file.read_bytes(), None)
    except (OSError, TypeError, *UNREADABLE) as error:
        raise SettingsError(str(file), "a key of `umbel keygen`", type(error).__name__) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(str(file), "mode 0600", f"mode {mode:04o}", "make another key")
    if not isinstance(found, Ed25519PrivateKey):
        raise SettingsError(str(file), "an Ed25519 key", type(found).__name__)
    return found
