"""`umbel server backup`: everything that a federation's server needs to go on, in one file.

Nothing has to stop. The issuer's files are copied under its lock, databases by SQLite's own backup,
each as it is at one moment; a round's folder never changes once it is there, and gets a second
name before it could be removed. The SuperLink's database may be some seconds younger than the
issuer's: the issuer makes good what differs (issuer.py, `refresh`).

The file is made beside its place under a hidden name, 0600, and gets its own when it is whole and
on the disk. It holds the CA's keys: whoever has it, and its passphrase if it has one, can make
members of the federation and take its servers' place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import Encoding

from . import backup_form as form
from .archive import Packer
from .federation_files import ROOT, ROOT_KEY, certificate
from .issuer_store import locked
from .ledger import Ledger
from .plain_files import open_file, sync, why
from .run_directory import list_runs
from .server_toml import ServerSettings
from .settings import FLOWER_RUN, OF_FEDERATION
from .. import __version__
from ..protocol.certificates import fingerprint
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .archive import Contents

_TRIES = 5
_SMALL = 4 << 20
"""Bytes of a certificate, a key, the settings."""


@dataclass
class Stage:
    """Where the copies are gathered, and what was left out."""

    folder: Path
    names: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def place(self, name: str) -> Path:
        """Return where a member's copy is to lie."""
        path = self.folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def add(self, name: str) -> None:
        """Note that a member's copy is there."""
        self.names.append(name)


def backup(
    folder: Path,
    home: Path,
    out: Path,
    *,
    models: bool = True,
    passphrase: bytes | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Contents:
    """Write a backup and return what is in it.

    Args:
        folder: Of the federation.
        home: Umbel's, where the runs are.
        out: The file, which must not be there yet.
        models: Whether the models of finished rounds go with their records.
        passphrase: Seals the file.
        say: Takes a line on the way.

    Raises:
        SettingsError: The federation's settings are none.
        StateError: Something cannot be read or written, or is damaged.
    """
    settings = ServerSettings.read(folder)
    if out.exists():
        raise StateError(str(out), "a file that is not there yet", "one that is", "name another")
    try:
        with _stage(home, settings.name) as stage:
            _federation(folder, stage, say)
            for run in _runs_of(home, settings.name, stage):
                _run(home / form.RUNS / run, f"{form.RUNS}/{run}", stage, models=models)
            return _written(out, stage, passphrase, _about(folder, settings, stage, models), say)
    except OSError as error:
        where = str(error.filename or out)
        raise StateError(where, "a file to read or write", why(error), "see to it") from error


def _about(folder: Path, settings: ServerSettings, stage: Stage, models: bool) -> dict[str, Any]:
    root = certificate(folder / ROOT)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "umbel": __version__,
        "federation": settings.name,
        "root": "" if root is None else fingerprint(root.public_bytes(Encoding.DER)).hex(),
        "runs": sum(name.endswith(f"/{form.LEDGER}") for name in stage.names),
        "models": models,
        "root_key": f"{form.FEDERATION}/{ROOT_KEY}" in stage.names,
        "left_out": stage.left_out,
    }


@contextmanager
def _stage(home: Path, name: str) -> Iterator[Stage]:
    """Make the place for the copies; one backup of a federation is made at a time."""
    folder = home / f".backup-{name}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in folder.iterdir():  # of a backup that was killed
            shutil.rmtree(left)
        yield Stage(folder)
        shutil.rmtree(folder)
    except BlockingIOError as error:
        got, move = "one that is being made", "wait for it"
        raise StateError(str(folder), "no other backup of this federation", got, move) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _federation(folder: Path, stage: Stage, say: Callable[[str], None]) -> None:
    """Copy what the CA, the servers and the issuer keep."""
    say("copying the CA's files and the databases")
    with locked(folder):  # no CA is rolled over, no leaf renewed meanwhile
        for name in (*form.PUBLIC, *form.SECRET):
            _small(folder / name, f"{form.FEDERATION}/{name}", stage)
        form.copy_database(folder / form.ISSUER, stage.place(f"{form.FEDERATION}/{form.ISSUER}"))
        stage.add(f"{form.FEDERATION}/{form.ISSUER}")
    if (folder / form.SUPERLINK).exists():
        name = f"{form.FEDERATION}/{form.SUPERLINK}"
        form.copy_database(folder / form.SUPERLINK, stage.place(name))
        stage.add(name)
    for key in sorted((folder / form.TICKETS).glob("*.key")):
        with suppress(FileNotFoundError):  # that run is over
            _small(key, f"{form.FEDERATION}/{form.TICKETS}/{key.name}", stage)


def _small(source: Path, name: str, stage: Stage) -> None:
    """Copy a small file; the root's key need not be there."""
    try:
        with open_file(source) as file:
            data = file.read(_SMALL + 1)
    except FileNotFoundError:
        if name == f"{form.FEDERATION}/{ROOT_KEY}":
            return
        raise
    except ValueError as error:
        raise StateError(str(source), "a regular file", error, "see to it") from error
    if len(data) > _SMALL or not form.known(name):
        raise StateError(str(source), f"a file of at most {_SMALL} bytes", len(data), "see to it")
    handle = os.open(stage.place(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with open(handle, "wb") as copy:
        copy.write(data)
    stage.add(name)


def _runs_of(home: Path, federation: str, stage: Stage) -> list[str]:
    """Return the runs of this federation; a record that cannot be read is left out, and named."""
    found = []
    for run in list_runs(home):
        try:
            with Ledger(home / form.RUNS / run / form.LEDGER, read_only=True) as ledger:
                record = ledger.begun()
        except StateError as error:
            stage.left_out.append(f"run {run}: {error}")
            continue
        config = {} if record is None else record.config
        if FLOWER_RUN in config and config.get(OF_FEDERATION, federation) == federation:
            found.append(run)
    return found


def _run(source: Path, name: str, stage: Stage, *, models: bool) -> None:
    """Copy a run's record and, after it, the models that it calls finished.

    A round may be removed between the two, though never the newest one of the record, unless
    others came after it: then once more.
    """
    ledger = stage.place(f"{name}/{form.LEDGER}")
    for _ in range(_TRIES):
        shutil.rmtree(ledger.parent)
        ledger.parent.mkdir(mode=0o700)
        try:
            form.copy_database(source / form.LEDGER, ledger)
            committed = {0, *form.checked_record(ledger)}
        except StateError as error:
            stage.left_out.append(f"{name}: {error}")
            return
        rounds = _rounds(source / "rounds", committed) if models else {}
        linked = {n for n, folder in rounds.items() if _linked(folder, stage, f"{name}/rounds")}
        if not rounds or max(rounds) in linked:
            break
    else:
        stage.left_out.append(f"{name}: its rounds come and go too fast for their models")
    stage.names += [
        f"{name}/{path.relative_to(ledger.parent)}"
        for path in sorted(ledger.parent.rglob("*"))
        if path.is_file()
    ]


def _rounds(folder: Path, committed: set[int]) -> dict[int, Path]:
    """Return the rounds on the disk that the record calls finished."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = {int(p.name): p for p in folder.iterdir() if form.ROUND.fullmatch(p.name)}
        return {number: path for number, path in found.items() if number in committed}
    return {}


def _linked(source: Path, stage: Stage, under: str) -> bool:
    """Give a round's files a second name; tell whether it was still there, whole."""
    target = stage.place(f"{under}/{source.name}/x").parent
    try:
        for path in source.iterdir():
            if form.ROUND_FILE.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                form.link_file(path, target / path.name)
        if source.exists():
            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    shutil.rmtree(target)
    return False


def _written(
    out: Path, stage: Stage, passphrase: bytes | None, about: dict[str, Any],
    say: Callable[[str], None],
) -> Contents:  # fmt: skip
    """Write the archive whole, or nothing."""
    part = out.with_name(f".{out.name}.part")
    part.unlink(missing_ok=True)
    total = sum((stage.folder / name).stat().st_size for name in stage.names)
    done = 0
    try:
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with open(handle, "wb") as file:
            packer = Packer(file, passphrase)
            for name in stage.names:
                with open_file(stage.folder / name) as member:
                    size = os.fstat(member.fileno()).st_size
                    packer.add(name, member, size)
                done += size
                say(f"{done >> 20} of {total >> 20} MiB")
            contents = packer.close(about)
            file.flush()
            os.fsync(handle)
        _name(part, out)
        sync(out.parent)
    finally:
        part.unlink(missing_ok=True)
    return contents


def _name(part: Path, out: Path) -> None:
    """Give the whole file its name, and take nobody's place."""
    try:
        os.link(part, out)
    except FileExistsError as error:
        got, move = "one that came meanwhile", "name another"
        raise StateError(str(out), "a file that is not there yet", got, move) from error
    except OSError:  # a disk without second names
        part.rename(out)
