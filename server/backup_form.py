"""What a backup holds: the names of its members, and the copies that are made of them.

    federation/ca.pem …             what the CA, the servers and the issuer need to go on
    federation/tickets/RUN.key      the key of each run's tickets
    runs/ID/ledger.sqlite           a run's record
    runs/ID/rounds/000007/FILE      the model of a round that the record calls finished

Not in it: what is derived (registry, member list: the restored issuer makes them anew, with a
higher epoch); what dies with its process (sockets, Flower's homes); logs; open rounds; and a
device's directory, whose journal may never go back.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from . import issuer_store
from .federation_files import ISSUING, ISSUING_KEY, ROOT, ROOT_KEY, SERVERS
from .ledger import Ledger
from .server_toml import FILE as SETTINGS
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

FEDERATION, RUNS = "federation", "runs"
ISSUER, SUPERLINK, LEDGER = issuer_store.FILE, "superlink.sqlite", "ledger.sqlite"
PUBLIC = (ROOT, ISSUING, *(f"{server}.pem" for server in SERVERS))
SECRET = (ROOT_KEY, ISSUING_KEY, *(f"{server}.key" for server in SERVERS), SETTINGS)
NEEDED = frozenset(
    f"{FEDERATION}/{name}" for name in (*PUBLIC, *SECRET, ISSUER) if name != ROOT_KEY
)
"""Without the root's key it goes on: that one may lie elsewhere (`--offline-ca`)."""
TICKETS = "tickets"
_RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ROUND = re.compile(r"[0-9]{6,12}")
ROUND_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TICKET = re.compile(_RUN + r"\.key")
_FIXED = frozenset(f"{FEDERATION}/{name}" for name in (*PUBLIC, *SECRET, ISSUER, SUPERLINK))
_OTHERS = re.compile(
    rf"{FEDERATION}/{TICKETS}/{TICKET.pattern}"
    rf"|{RUNS}/{_RUN}/({re.escape(LEDGER)}|rounds/{ROUND.pattern}/{ROUND_FILE.pattern})"
)
_PATIENCE_S = 20.0
"""How long a copy waits for a program that holds the database."""


def known(name: str) -> bool:
    """Tell whether a member of a backup may have this name."""
    return name in _FIXED or _OTHERS.fullmatch(name) is not None


def mode(name: str) -> int:
    """Return the mode of a restored file."""
    return 0o644 if name.removeprefix(f"{FEDERATION}/") in PUBLIC else 0o600


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database as it is at one moment, whoever writes it, and read all of the copy.

    Raises:
        StateError: It cannot be read, or is damaged.
    """
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    uri = f"{source.absolute().as_uri()}?mode=ro"
    move = "see to the disk; a backup of damage would be none"
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE_S)) as before,
            closing(sqlite3.connect(target)) as after,
        ):
            before.backup(after)
            (found,) = after.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise StateError(str(source), "a database that can be copied", error, move) from error
    if found != "ok":
        raise StateError(str(source), "sound pages", " ".join(str(found).split()), move)


def checked_record(path: Path) -> dict[int, str]:
    """Check the chain of a copied record; return the models that it calls finished.

    Raises:
        StateError: It is damaged.
    """
    with Ledger(path, read_only=True) as ledger:
        ledger.chain()
        found = ledger.models()
    for part in ("-shm", "-wal"):  # which a reader leaves, and nobody has written to
        path.with_name(path.name + part).unlink(missing_ok=True)
    return found


def link_file(source: Path, target: Path) -> None:
    """Give a file that nobody changes a second name, or copy it to another disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
