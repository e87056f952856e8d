"""`umbel server restore`: a federation's server out of one file, into an empty place.

Everything is checked before anything is where it counts: first the whole file, byte for byte; then
the copies, which lie under a hidden name beside their places, as what they are: settings, CA, keys,
databases, records. Then runs are moved to their places, and the federation last.

What must not go back goes on instead:

    member list    a new one, of a higher epoch than any that a device has seen: the time of its
                   signing, or one more than the backup's (issuer_signing.py)
    tokens         those that were open are revoked: who used one since is not in the backup, and a
                   token makes one node, once
    nodes          those that were enrolled since must be enrolled anew. Those that were removed
                   since are members again: only the operator knows them

Tickets' keys stay, so that sessions of a run that goes on are admitted as before.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding

from . import backup_form as form
from .archive import Unpacker
from .federation_files import ROOT, authority, certificate, place
from .issuer import Issuer
from .issuer_store import locked, transaction
from .plain_files import open_file, sync, why
from .server_toml import ServerSettings
from ..protocol.certificates import FEDERATION, fingerprint
from ..protocol.errors import StateError, UmbelError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .archive import Contents


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What is there now."""

    folder: Path
    name: str
    made: str
    """When the backup was made, ISO 8601, UTC."""
    runs: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the members, removed ones left out."""
    revoked: tuple[str, ...]
    """Names of the tokens that were open."""
    notes: tuple[str, ...] = field(default=())
    """What could not be done yet, in words."""


def restore(
    file: Path,
    home: Path,
    folder: Path | None = None,
    *,
    passphrase: bytes | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    say: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Restore a backup.

    Args:
        file: What `backup` wrote.
        home: Umbel's, where the runs go.
        folder: Of the federation; by default below `home`, under its name.
        passphrase: What the file was sealed with.
        clock: Returns an aware datetime.
        say: Takes a line on the way.

    Raises:
        StateError: Something of it is damaged, or is there already; nothing was changed then.
    """
    try:
        with open_file(file) as archive:
            say("checking every byte")
            contents = Unpacker(archive, str(file), passphrase).unpack(form.known, _nowhere)
            name, runs = _what(contents, file)
            target = folder or place(home, name)
            _check_empty(target, [home / form.RUNS / run for run in runs])
            archive.seek(0)
            again = Unpacker(archive, str(file), passphrase)
            return _restored(again, contents, home, target, clock, say)
    except (OSError, ValueError) as error:
        where = str(getattr(error, "filename", None) or file)
        raise StateError(where, "a file to read or write", why(error), "see to it") from error


def _nowhere(_name: str, _size: int) -> None:
    """Take no member: it is only checked."""


def _what(contents: Contents, file: Path) -> tuple[str, list[str]]:
    """Return the federation's name and the runs' ids.

    Raises:
        StateError: A file is missing without which no server goes on.
    """
    names = [member.name for member in contents.members]
    missing = sorted(form.NEEDED.difference(names))
    if missing:
        raise StateError(str(file), f"the backup of a server, with {missing[0]}", "one without")
    runs = sorted({name.split("/")[1] for name in names if name.startswith(f"{form.RUNS}/")})
    for run in runs:
        if f"{form.RUNS}/{run}/{form.LEDGER}" not in names:
            raise StateError(str(file), f"the record of run {run}", "none")
    name = contents.about.get("federation")
    if not isinstance(name, str) or FEDERATION.fullmatch(name) is None:
        raise StateError(str(file), "the name of a federation", type(name).__name__)
    return name, runs


def _check_empty(target: Path, runs: list[Path]) -> None:
    for path in (target, *runs):
        if path.exists() or path.is_symlink():
            move = "restore where it is not: move it away, or set another UMBEL_HOME"
            raise StateError(str(path), "nothing there", "something", move)


def _restored(
    archive: Unpacker, contents: Contents, home: Path, target: Path,
    clock: Callable[[], datetime], say: Callable[[str], None],
) -> Restored:  # fmt: skip
    """Write what was checked, check what it is, and move it into place."""
    stages = {
        form.FEDERATION: target.with_name(f".{target.name}.restored"),
        form.RUNS: home / f".runs-{target.name}.restored",
    }
    try:
        for stage in stages.values():
            with suppress(FileNotFoundError):  # of one that was killed
                shutil.rmtree(stage)
            stage.mkdir(mode=0o700, parents=True)
        _check_room(contents, stages)
        again = archive.unpack(form.known, lambda name, size: _Copy(stages, name, size, say))
        if again != contents:
            raise StateError("backup", "the file that was checked", "one that changed meanwhile")
        say("checking certificates, databases and records")
        made = _mended(stages, contents, target, clock)
        _moved(stages, home, target, made.runs)
        return made
    finally:
        for stage in stages.values():
            shutil.rmtree(stage, ignore_errors=True)


def _check_room(contents: Contents, stages: Mapping[str, Path]) -> None:
    needed: Counter[str] = Counter()
    for member in contents.members:
        needed[member.name.partition("/")[0]] += member.size
    for part, stage in stages.items():
        free = shutil.disk_usage(stage).free
        if needed[part] > free:
            raise StateError(str(stage.parent), f"{needed[part]} bytes free", free, "free the disk")


class _Copy:
    """Takes one member's bytes into a new file, and puts them on the disk."""

    def __init__(
        self, stages: Mapping[str, Path], name: str, size: int, say: Callable[[str], None]
    ) -> None:
        part, _, rest = name.partition("/")
        path = stages[part] / rest
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
        self._handle, self._left = os.open(path, flags, form.mode(name)), size
        say(f"{name}, {size} bytes")
        if not size:
            self._close()

    def write(self, data: bytes | memoryview) -> None:
        """Write a piece; after the last one the file is on the disk."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        self._left -= len(data)
        if not self._left:
            self._close()

    def _close(self) -> None:
        os.fsync(self._handle)
        os.close(self._handle)


def _mended(
    stages: Mapping[str, Path], contents: Contents, target: Path, clock: Callable[[], datetime]
) -> Restored:
    """Check what the copies are, and let what must not go back go on.

    Raises:
        StateError: A copy is not what it should be.
    """
    folder, about = stages[form.FEDERATION], contents.about
    settings = ServerSettings.read(folder)
    try:
        root = certificate(folder / ROOT)
        found = "" if root is None else fingerprint(root.public_bytes(Encoding.DER)).hex()
    except UNREADABLE as error:
        raise StateError(ROOT, "the root certificate", error, "take another copy") from error
    if (settings.name, found) != (about.get("federation"), about.get("root")):
        raise StateError("backup", "one federation's files", "those of several")
    authority(folder)  # the key belongs to a certificate
    runs = tuple(sorted(path.name for path in stages[form.RUNS].iterdir()))
    for run in runs:
        form.checked_record(stages[form.RUNS] / run / form.LEDGER)
    (folder / form.TICKETS).mkdir(mode=0o700, exist_ok=True)
    revoked, nodes, notes = _issuer(folder, clock)
    return Restored(
        folder=target, name=settings.name, made=str(about.get("made", "")), runs=runs,
        nodes=nodes, revoked=revoked, notes=notes,
    )  # fmt: skip


def _issuer(
    folder: Path, clock: Callable[[], datetime]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Revoke open tokens, sign a new member list, write the registry."""
    with locked(folder), transaction(folder) as db:
        query = "SELECT name FROM token WHERE state = 'open' ORDER BY name"
        revoked = tuple(str(row[0]) for row in db.execute(query))
        db.execute("UPDATE token SET state = 'revoked' WHERE state = 'open'")
        db.execute("UPDATE members SET issued = 0")  # due: the next epoch is signed at once
        query = "SELECT name FROM node WHERE removed IS NULL ORDER BY name"
        nodes = tuple(str(row[0]) for row in db.execute(query))
    try:
        Issuer(folder, clock, _Away()).refresh()
    except UmbelError as error:
        return revoked, nodes, (f"the member list is not signed anew: {error}",)
    except (TypeError, LookupError, *UNREADABLE) as error:
        what = "what an issuer wrote"
        raise StateError(form.ISSUER, what, type(error).__name__, "take another copy") from error
    return revoked, nodes, ()


class _Away:
    """No SuperLink runs yet: the issuer tells it when it does."""

    def register(self, public_key: bytes, name: str) -> int:
        """Do nothing."""
        raise StateError("SuperLink", "an answer", "none yet")

    def unregister(self, flower_node: int) -> None:
        """Do nothing."""
        raise StateError("SuperLink", "an answer", "none yet")

    def registered(self) -> dict[bytes, int]:
        """Do nothing."""
        raise StateError("SuperLink", "an answer", "none yet")


def _moved(stages: Mapping[str, Path], home: Path, target: Path, runs: tuple[str, ...]) -> None:
    """Move all into place, the federation last; where that fails, nothing stays."""
    below = home / form.RUNS
    below.mkdir(mode=0o700, exist_ok=True)
    moves = [(stages[form.RUNS] / run, below / run) for run in runs]
    moves.append((stages[form.FEDERATION], target))
    done: list[tuple[Path, Path]] = []
    try:
        for source, place_ in moves:
            _check_empty(place_, [])
            for folder in (*source.rglob("*"), source):
                if folder.is_dir():
                    sync(folder)
            source.rename(place_)
            done.append((source, place_))
        sync(below)
        sync(target.parent)
    except BaseException:
        for source, place_ in reversed(done):
            place_.rename(source)
        raise
