"""`umbel keygen FILE`: a publisher's Ed25519 key, which signs apps."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ..host.whole_file import write_whole
from ..protocol.errors import SettingsError, StateError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; mode 0600.")],
) -> None:
    """Make a publisher's key and print its public half, for `trust.publishers` of devices.

    Whoever has FILE can sign what runs on those devices: keep it off the server, and a copy safe.

    Example: umbel keygen publisher.key
    """
    if os.path.lexists(file):  # another publisher would take the place of one that devices trust
        raise SettingsError(str(file), "a file that is not there yet", "one", "name another")
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        write_whole(file, text)
    except OSError as error:
        raise StateError(str(file), "a place to write", error.strerror or error) from error
    typer.echo(key.public_key().public_bytes_raw().hex())
