"""The directory of a run: its ledger, and one folder for each round that is kept.

    runs/ID/ledger.sqlite
    runs/ID/rounds/000123/       a model and its manifest (round_folder.py)
    runs/ID/rounds/000124.train.0.open/  an attempt whose survivors are fixed (open_round.py)
    runs/ID/rounds/000122.lost/  what was found in the place of a round that is lost

Nothing else. A round is written into a hidden folder, files and folders are fsynced, and the folder
is renamed: it is there whole or not at all. It counts when the ledger says `finished`, with the
digest of its model, and no later `lost` (round 0, the initial model, counts from the start; the
event `initial` has its digest). The process that writes holds a lock on the directory; readers
need none.

`resume` drops what was written and not committed and the hidden leftovers of a crash; and goes back
to an earlier round where the newest is damaged (lost_rounds.py).

Kept: the newest committed round always, the last `KEEP_LAST`, and those that the caller names: the
best one, and one whose model is being tested (keeping.py). Masks, shares and single updates never
come here.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from . import disk_space, lost_rounds, plain_files, round_folder, run_place
from .disk_space import KEEP_LAST, DiskSpace
from .ledger import Ledger
from .moment_file import STATE_FILE
from .round_folder import About
from .stepping import StateFile
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from .lost_rounds import Resumed
    from .round_folder import Round
    from ..protocol.manifest import Manifest

_ROUND = re.compile(r"[0-9]{6,}")
_OPEN = re.compile(r"([0-9]{6,})\.[a-z]+\.[0-9]+\.open")  # open_round.py


class RunDirectory:
    """One run on the disk."""

    resumed: Resumed | None = None
    """What `resume` found; None after `create` and `open`."""

    def __init__(self, path: Path, lock: int | None) -> None:
        """Made by `create`, `open` and `resume`; `lock` is the descriptor of a writer."""
        self.path = path
        self.ledger = Ledger(path / "ledger.sqlite", read_only=lock is None)
        self._lock = lock
        self._space = DiskSpace(self)
        self.warn: Callable[[str], None] = lambda _line: None
        """Takes what the ledger's event `warning` says about the disk, for whoever looks on."""
        self._syncs = ThreadPoolExecutor(3, thread_name_prefix="umbel-sync")

    @classmethod
    def create(cls, root: Path, run_id: str) -> Self:
        """Make `root/runs/run_id` (0700) and hold its lock.

        What a crash or a full disk left before there was a model is no run, and taken over.

        Raises:
            SettingsError: The id is no plain name.
            StateError: The run exists, or cannot be made.
        """
        path = run_place.place(root, run_id)
        run_place.check_new(path)
        try:
            (path / "rounds").mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            lock = run_place.locked(path)
        except OSError as error:
            raise StateError(
                str(path), "a new run", error.strerror, "free the disk or choose another place"
            ) from error
        try:
            run_place.check_new(path)  # and nobody else begins it
            for leftover in path.glob("ledger.sqlite*"):
                leftover.unlink()
            run = cls(path, lock)
            for folder in (path, path.parent):
                plain_files.sync(folder)
        except BaseException:
            os.close(lock)
            raise
        return run

    @classmethod
    def open(cls, root: Path, run_id: str) -> Self:
        """Open an existing run for reading.

        Raises:
            StateError: There is no such run, or its ledger is damaged.
        """
        path = run_place.place(root, run_id)
        if not (path / "ledger.sqlite").is_file():
            raise StateError(str(path), "a run", "no such run", "see `umbel runs list`")
        return cls(path, None)

    @classmethod
    def resume(cls, root: Path, run_id: str) -> Self:
        """Open an existing run for writing, and find the model in force: see `resumed`.

        Raises:
            StateError: There is no such run, its ledger is damaged, no round of it is whole, or
                another process writes it.
        """
        run = cls._take_over(root, run_id)
        try:
            run.resumed = lost_rounds.find(run)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def _take_over(cls, root: Path, run_id: str) -> Self:
        """Open an existing run for writing: check its ledger, drop what is not committed."""
        path = run_place.place(root, run_id)
        if not (path / "ledger.sqlite").is_file():
            raise StateError(str(path), "a run", "no such run", "see `umbel runs list`")
        lock = run_place.locked(path)
        try:
            run = cls(path, lock)
        except BaseException:
            os.close(lock)
            raise
        try:
            lost_rounds.check_uncommitted(run, run.ledger.chain())
            run._drop_uncommitted()
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Close the ledger and give the lock back."""
        self._syncs.shutdown()
        self.ledger.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def write_round(
        self,
        n: int,
        arrays: Mapping[str, NDArray[Any]],
        manifest: Manifest,
        digest: bytes,
        extra: Mapping[str, Any],
        moments: Mapping[str, memoryview] | None = None,
    ) -> Path:
        """Write the model of round `n` durably; a leftover of the same number is replaced.

        Args:
            n: Number of the round, 0 for the initial model.
            arrays: What `manifest` describes.
            manifest: Names, shapes, dtypes.
            digest: `model_digest(manifest.pack(arrays))`, 32 bytes; checked at reading.
            extra: What else resume needs, as JSON can hold it; no secret, nothing of one client.
            moments: The server step's state by name, buffers in the layout of `manifest`.

        Returns:
            The folder of the round.

        Raises:
            BadUpdate: The arrays are not those of the manifest.
            StateError: The round is committed already, the disk is too full (both numbers are
                said), or a write failed.
        """
        if self.round_path(n).exists() and (n == 0 or self.ledger.models(n)):
            raise StateError(
                str(self.round_path(n)), "a round not written yet", "a committed one",
                "resume the run from its newest round",
            )  # fmt: skip
        manifest.check(arrays, "own model")
        models = 1 + len(moments := moments or {})
        self._space.check(n, manifest, models)
        final = self.round_path(n)
        if n == 0:  # first: a round 0 on the disk is then always one that the ledger knows
            self.ledger.event("initial", round=0, attempt=0, code=digest.hex())
        about = About(
            run=self.path.name, number=n, digest=digest, ledger=self.ledger.head(), extra=extra
        )
        try:
            round_folder.write(final, arrays, manifest, about, moments, self._sync_all)
        except OSError as error:
            why = plain_files.why(error)
            raise disk_space.full(final, manifest, models, why) from error
        return final

    def flush(self) -> None:
        """Return: what was written is durable."""

    def settle(self) -> None:
        """Return: what was written is durable."""

    def state(self) -> StateFile | None:
        """Return where the moments of the newest committed round are; None if it has none."""
        newest = self.latest()
        found = self.about(newest).state if newest is not None else b""
        path = self.round_path(newest or 0) / STATE_FILE
        return StateFile(path.resolve(), found) if found else None

    def read_round(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of round `n`, every byte hashed and compared with the ledger.

        Raises:
            StateError: The round is missing, or one byte of it is not what was written.
        """
        return self.read(n).arrays

    def read(self, n: int) -> Round:
        """Return round `n` with its arrays as `read_round`, and its manifest and digest."""
        found = round_folder.read(self.round_path(n), self.path.name, n)
        self._compare(found)
        return found

    def about(self, n: int) -> Round:
        """Return what the manifest of round `n` says; its arrays are not read."""
        found = round_folder.read_manifest(self.round_path(n), self.path.name, n)
        self._compare(found)
        return found

    def digest(self, n: int) -> bytes:
        """Return the model digest that the manifest of round `n` names."""
        return self.about(n).digest

    def stored_extra(self, n: int) -> Mapping[str, Any]:
        """Return what was stored beside the model of round `n`."""
        return self.about(n).extra

    def kept(self) -> tuple[int, ...]:
        """Return the numbers of the rounds on the disk, ascending."""
        return tuple(sorted(int(p.name) for p in self.folders() if _ROUND.fullmatch(p.name)))

    def committed(self) -> frozenset[int]:
        """Return the rounds that the ledger calls finished and not lost, and 0."""
        return frozenset(self.ledger.models()) | {0}

    def latest(self) -> int | None:
        """Return the newest round that is on the disk and committed, if there is one.

        That it is whole is known after `resume`, which marks what is not as lost.
        """
        return self._newest(self.kept())

    def _newest(self, kept: tuple[int, ...]) -> int | None:
        """Return the newest committed of these, ascending."""
        return next((n for n in reversed(kept) if n == 0 or self.ledger.models(n)), None)

    def prune(self, best: int | None, *held: int) -> tuple[int, ...]:
        """Remove the rounds that the rule does not keep; return their numbers.

        Kept are the newest committed one, the last `KEEP_LAST`, `best`, those that somebody still
        reads, `held`, and whatever is newer than the newest committed one.
        """
        kept = self.kept()
        newest = self._newest(kept)
        stay = {*kept[-KEEP_LAST:], *held, best, newest}
        gone = tuple(n for n in kept if n not in stay and (newest is None or n < newest))
        for n in gone:
            path = self.round_path(n)
            doomed = path.with_name(f".{path.name}.gone")
            try:
                path.rename(doomed)
                plain_files.remove(doomed)
            except OSError as error:
                raise StateError(
                    str(path), "a round that can be removed", plain_files.why(error),
                    "remove it by hand, then resume the run",
                ) from error  # fmt: skip
        return gone

    def round_path(self, n: int) -> Path:
        """Return the folder of round `n`, whether it exists or not."""
        return self.path / "rounds" / f"{n:06d}"

    def set_aside(self, n: int) -> None:
        """Keep what is in a lost round's place for whoever wants to look at it."""
        path = self.round_path(n)
        with suppress(OSError):  # in its place it does no harm: the ledger says that it is lost
            plain_files.remove(path.with_suffix(".lost"))
            path.rename(path.with_suffix(".lost"))

    def _drop_uncommitted(self) -> None:
        """Remove a crash's leftovers, rounds the ledger does not know, open ones that are over.

        A round that the ledger calls lost is set aside, if a crash came before that.
        """
        known, counted = self.ledger.finished("train") | {0}, self.committed()
        for path in self.folders():
            number = int(path.name) if _ROUND.fullmatch(path.name) else None
            opened = _OPEN.fullmatch(path.name)
            over = opened is not None and int(opened[1]) < max(known)
            if path.name.startswith(".") or over or (number is not None and number not in known):
                plain_files.remove(path)
            elif number is not None and number not in counted:
                self.set_aside(number)

    def _compare(self, found: Round) -> None:
        """Refuse a model other than the one that the ledger has for its round, if it has one."""
        n = found.number
        expected = self.ledger.models(n).get(n) if n else self.ledger.initial()
        if expected is not None and expected != found.digest.hex():
            raise StateError(
                str(self.round_path(n) / round_folder.MANIFEST_FILE),
                f"the model of the ledger, digest {expected}", f"digest {found.digest.hex()}",
                "resume from an earlier round or restore a backup",
            )  # fmt: skip

    def folders(self) -> list[Path]:
        """Return what is in `rounds`, hidden folders too."""
        try:
            return list((self.path / "rounds").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _sync_all(self, paths: Iterable[Path]) -> None:
        """Sync at once: a file system commits them together."""
        list(self._syncs.map(plain_files.sync, paths))


def list_runs(root: Path) -> tuple[str, ...]:
    """Return the ids of the runs under `root`, sorted."""
    found = (path.parent.name for path in root.glob("runs/*/ledger.sqlite"))
    return tuple(sorted(name for name in found if run_place.RUN_ID.fullmatch(name)))


def sweep(root: Path) -> tuple[str, ...]:
    """Remove what writers that were killed left half-written; return the runs that had some.

    A run that is being written is left alone, as is one whose ledger is damaged or whose files
    this user cannot remove.
    """
    left = sorted({folder.parents[1].name for folder in root.glob("runs/*/rounds/.*")})
    swept = []
    for run in left:
        with suppress(StateError, OSError):
            RunDirectory._take_over(root, run).close()
            swept.append(run)
    return tuple(swept)
