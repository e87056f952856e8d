"""A federation from nothing: root, issuing CA, servers' certificates, settings.

The root is the one thing that nobody can replace: it is in every device. `offline` puts its key
into another directory, on a medium that is taken away; then the server's machine can add members
for as long as its issuing CA lives, a year at most, and no longer.

Everything is made beside its place and moved there at the end: a federation is whole or is not.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from .federation_files import (
    ISSUING,
    ISSUING_KEY,
    ROOT,
    ROOT_KEY,
    SERVERS,
    certificate_pem,
    key_pem,
    server_leaf,
)
from .plain_files import why
from .server_toml import FILE as SETTINGS
from ..host.whole_file import sync_directory, write_whole
from ..protocol.certificates import Authority
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from .server_toml import ServerSettings

OFFLINE_KEY = "ca.key"


def make(
    folder: Path, settings: ServerSettings, now: datetime, offline: Path | None = None
) -> None:
    """Make the directory of a federation.

    Args:
        folder: Where; nothing may be there.
        settings: What server.toml says.
        now: An aware datetime.
        offline: A directory for the root's key, outside `folder`.

    Raises:
        SettingsError: Something is there already, or a setting may not be.
        StateError: A file cannot be written.
    """
    settings.check()
    if folder.exists():
        raise SettingsError("--federation", "a directory that is not there yet", str(folder))
    if offline is not None:
        _check_offline(offline)
    beside = folder.with_name(f".{folder.name}.new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700, parents=True)
        root = Authority.create(settings.name, now, above_issuing=True)
        _write_root(root, beside, offline)
        _write_others(root.issue_authority(now), beside, settings, now)
        os.rename(beside, folder)
        sync_directory(folder.parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise StateError(str(error.filename or folder), "a file to write", why(error)) from error


def _check_offline(offline: Path) -> None:
    """Refuse a place for the root's key that is no such place."""
    if not offline.is_dir():
        raise SettingsError("--offline-ca", "a directory", str(offline), "make or mount it first")
    for name in (OFFLINE_KEY, ROOT):
        if (offline / name).exists():
            raise SettingsError("--offline-ca", f"a directory without {name}", str(offline))


def _write_root(root: Authority, folder: Path, offline: Path | None) -> None:
    """Write the root, and its key where it belongs."""
    public = certificate_pem(root.certificate)
    key = folder / ROOT_KEY if offline is None else offline / OFFLINE_KEY
    if offline is None:
        key.parent.mkdir(mode=0o700)
    else:
        write_whole(offline / ROOT, public, 0o644)
    write_whole(key, key_pem(root.key), 0o600)
    write_whole(folder / ROOT, public, 0o644)


def _write_others(
    issuing: Authority, folder: Path, settings: ServerSettings, now: datetime
) -> None:
    """Write the issuing CA, the servers' leaves and the settings."""
    write_whole(folder / ISSUING_KEY, key_pem(issuing.key), 0o600)
    write_whole(folder / ISSUING, certificate_pem(issuing.certificate), 0o644)
    for server in SERVERS:
        server_leaf(issuing, folder, server, settings.names_of(server), now, now)
    write_whole(folder / SETTINGS, settings.dumps().encode(), 0o600)
