"""What the commands of server care have in common: a passphrase, a line of progress."""

from __future__ import annotations

import getpass
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .plain_files import read_file, why
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_PASSPHRASE, MOST_PASSPHRASE = 12, 1024
_SAY_EVERY_S = 2.0


PassphraseFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with the passphrase, and nothing else in it."),
]
Passphrase = Annotated[bool, typer.Option("--passphrase", help="Ask for the passphrase.")]


def passphrase_of(file: Path | None, *, ask: bool, twice: bool) -> bytes | None:
    """Return the passphrase that a file holds or a person types; None where neither is meant.

    Args:
        file: Holds it, in one line.
        ask: Whether to ask for it on the terminal.
        twice: Whether to ask again, since nothing else would find a typing error.

    Raises:
        SettingsError: The file cannot be read, or it is too short or too long.
    """
    if file is not None:
        try:
            found = read_file(file, MOST_PASSPHRASE).removesuffix(b"\n").removesuffix(b"\r")
        except (OSError, ValueError) as error:
            expected = f"a file of at most {MOST_PASSPHRASE} bytes"
            raise SettingsError("--passphrase-file", expected, why(error)) from error
    elif ask:
        found = getpass.getpass("Passphrase: ").encode()
        if twice and getpass.getpass("Again: ").encode() != found:
            raise SettingsError("--passphrase", "the same twice", "two different ones")
    else:
        return None
    if not LEAST_PASSPHRASE <= len(found) <= MOST_PASSPHRASE or b"\n" in found:
        expected = f"one line of {LEAST_PASSPHRASE} to {MOST_PASSPHRASE} bytes"
        raise SettingsError("passphrase", expected, f"{len(found)} bytes")
    return found


def told_on_stderr(what: str) -> Callable[[str], None]:
    """Return what prints a line of progress now and then, from two seconds on."""
    next_at = time.monotonic() + _SAY_EVERY_S

    def say(line: str) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _SAY_EVERY_S
            print(f"{what}: {line}", file=sys.stderr, flush=True)

    return say
