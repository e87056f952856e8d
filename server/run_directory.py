"""The directory of a run: its ledger, and one folder for each round that is kept.

    runs/ID/ledger.sqlite
    runs/ID/rounds/000123/manifest.json               written last of the two
    runs/ID/rounds/000123/00000-of-00001.safetensors  the model, arrays by name

Nothing else. A round is written into a hidden folder, files and folders are fsynced, and the folder
is renamed: it is there whole or not at all. It counts when the ledger says `finished` (round 0, the
initial model, from the start): `resume` drops what was written and not committed, and the hidden
leftovers of a crash. Reading hashes the model again and compares it with the manifest, which
carries a hash of itself. The process that writes holds a lock on the directory; readers need none.

Kept: the newest committed round always, the last `KEEP_LAST`, and the best one that the caller
names. Masks, shares and single updates never come here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import safetensors
import safetensors.numpy

from .ledger import Ledger
from ..protocol.digest import model_digest
from ..protocol.errors import PeerError, SettingsError, StateError
from ..protocol.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

KEEP_LAST = 3
FORMAT = "umbel/round/1"
MODEL_FILE = "00000-of-00001.safetensors"
MANIFEST_LIMIT = 16 << 20
SPARE_BYTES = 4 << 20
"""Room beside the arrays themselves: headers, manifest, the ledger's next pages."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ROUND = re.compile(r"[0-9]{6,}")


class RunDirectory:
    """One run on the disk."""

    def __init__(self, path: Path, lock: int | None) -> None:
        """Made by `create`, `open` and `resume`; `lock` is the descriptor of a writer."""
        self.path = path
        self.ledger = Ledger(path / "ledger.sqlite", read_only=lock is None)
        self._lock = lock
        self._syncs = ThreadPoolExecutor(3, thread_name_prefix="umbel-sync")

    @classmethod
    def create(cls, root: Path, run_id: str) -> Self:
        """Make `root/runs/run_id` (0700) and hold its lock.

        Raises:
            SettingsError: The id is no plain name.
            StateError: The run exists, or cannot be made.
        """
        path = _place(root, run_id)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            (path / "rounds").mkdir(mode=0o700)
        except OSError as error:
            raise StateError(
                str(path), "a new run", error.strerror, "choose another id or resume it"
            ) from error
        lock = _locked(path)
        _sync(path.parent)
        return cls(path, lock)

    @classmethod
    def open(cls, root: Path, run_id: str) -> Self:
        """Open an existing run for reading.

        Raises:
            StateError: There is no such run, or its ledger is damaged.
        """
        path = _place(root, run_id)
        if not (path / "ledger.sqlite").is_file():
            raise StateError(str(path), "a run", "no such run", "see `umbel runs list`")
        return cls(path, None)

    @classmethod
    def resume(cls, root: Path, run_id: str) -> Self:
        """Open an existing run for writing: check its ledger, drop what is not committed.

        Raises:
            StateError: There is no such run, it is damaged, or another process writes it.
        """
        path = _place(root, run_id)
        if not (path / "ledger.sqlite").is_file():
            raise StateError(str(path), "a run", "no such run", "see `umbel runs list`")
        lock = _locked(path)
        try:
            run = cls(path, lock)
        except BaseException:
            os.close(lock)
            raise
        try:
            run.ledger.verify()
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
    ) -> Path:
        """Write the model of round `n` durably; a leftover of the same number is replaced.

        Args:
            n: Number of the round, 0 for the initial model.
            arrays: What `manifest` describes.
            manifest: Names, shapes, dtypes.
            digest: `model_digest(manifest.pack(arrays))`, 32 bytes; checked at reading.
            extra: What else resume needs, as JSON can hold it; no secret, nothing of one client.

        Returns:
            The folder of the round.

        Raises:
            BadUpdate: The arrays are not those of the manifest.
            StateError: The round is committed already, the disk is too full (both numbers are
                said), or a write failed.
        """
        if self.round_path(n).exists() and n in self.committed():
            raise StateError(
                str(self.round_path(n)), "a round not written yet", "a committed one",
                "resume the run from its newest round",
            )  # fmt: skip
        manifest.check(arrays, "own model")
        self._check_space(manifest)
        final = self.round_path(n)
        about = {"run": self.path.name, "round": str(n), "digest": digest.hex()}
        try:
            self._write_folder(final, arrays, about, manifest, extra)
        except OSError as error:
            raise StateError(
                str(final), "a round on the disk", error, "free the disk, then resume the run"
            ) from error
        return final

    def read_round(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of round `n`, hashed again.

        Raises:
            StateError: The round is missing, or one byte of it is not what was written.
        """
        manifest, about, _ = self._manifest(n)
        path = self.round_path(n) / MODEL_FILE
        move = "resume from an earlier round or restore a backup"
        try:
            with safetensors.safe_open(path, "numpy") as file:
                said, arrays = file.metadata(), file.get_tensors()
            manifest.check(arrays, str(path))
            got = model_digest(manifest.pack(arrays)).hex()
        except (OSError, safetensors.SafetensorError, PeerError) as error:
            raise StateError(str(path), "the arrays of the manifest", error, move) from error
        if (got, said) != (about["digest"], about):
            raise StateError(str(path), f"the model {about}", f"digest {got} under {said}", move)
        return {entry.name: arrays[entry.name] for entry in manifest.entries}

    def digest(self, n: int) -> bytes:
        """Return the model digest that the manifest of round `n` names."""
        return bytes.fromhex(self._manifest(n)[1]["digest"])

    def stored_extra(self, n: int) -> dict[str, Any]:
        """Return what was stored beside the model of round `n`."""
        return self._manifest(n)[2]

    def kept(self) -> tuple[int, ...]:
        """Return the numbers of the rounds on the disk, ascending."""
        names = (folder.name for folder in (self.path / "rounds").iterdir())
        return tuple(sorted(int(name) for name in names if _ROUND.fullmatch(name)))

    def committed(self) -> frozenset[int]:
        """Return the rounds that the ledger calls finished, and 0."""
        return self.ledger.finished("train") | {0}

    def latest(self) -> int | None:
        """Return the newest round that is on the disk and committed, if there is one."""
        return max(self.committed().intersection(self.kept()), default=None)

    def prune(self, best: int | None) -> tuple[int, ...]:
        """Remove the rounds that the rule does not keep; return their numbers.

        Kept are the newest committed one, the last `KEEP_LAST`, `best`, and whatever is newer
        than the newest committed one.
        """
        kept = self.kept()
        newest = max(self.committed().intersection(kept), default=None)
        stay = {*kept[-KEEP_LAST:], best, newest}
        gone = tuple(n for n in kept if n not in stay and (newest is None or n < newest))
        for n in gone:
            path = self.round_path(n)
            doomed = path.with_name(f".{path.name}.gone")
            path.rename(doomed)
            shutil.rmtree(doomed)
        return gone

    def round_path(self, n: int) -> Path:
        """Return the folder of round `n`, whether it exists or not."""
        return self.path / "rounds" / f"{n:06d}"

    def _drop_uncommitted(self) -> None:
        """Remove the hidden leftovers of a crash, and rounds that the ledger does not know."""
        committed = self.committed()
        for folder in (self.path / "rounds").iterdir():
            number = int(folder.name) if _ROUND.fullmatch(folder.name) else None
            if folder.name.startswith(".") or (number is not None and number not in committed):
                shutil.rmtree(folder)

    def _write_folder(
        self,
        final: Path,
        arrays: Mapping[str, NDArray[Any]],
        about: Mapping[str, str],
        manifest: Manifest,
        extra: Mapping[str, Any],
    ) -> None:
        """Write the folder of a round under a hidden name, and rename it when it is on the disk."""
        temporary = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            for stale in (temporary, final):
                if stale.exists():
                    shutil.rmtree(stale)
            temporary.mkdir(mode=0o700)
            files = temporary / MODEL_FILE, temporary / "manifest.json"
            _save(files[0], arrays, about)
            _write_manifest(files[1], about, manifest, extra)
            # At once: a file system commits them together.
            list(self._syncs.map(_sync, (*files, temporary)))
            temporary.rename(final)
            _sync(final.parent)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _check_space(self, manifest: Manifest) -> None:
        needed = manifest.total_bytes + SPARE_BYTES
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise StateError(
                str(self.path), f"{needed} bytes free for this round", f"{free} bytes",
                "free the disk, then resume the run",
            )  # fmt: skip

    def _manifest(self, n: int) -> tuple[Manifest, dict[str, str], dict[str, Any]]:
        path = self.round_path(n) / "manifest.json"
        try:
            return _parse_manifest(path, n)
        except (OSError, ValueError, TypeError, KeyError, PeerError) as error:
            raise StateError(
                str(path), f"the manifest of round {n}", error,
                "resume from an earlier round or restore a backup",
            ) from error  # fmt: skip


def list_runs(root: Path) -> tuple[str, ...]:
    """Return the ids of the runs under `root`, sorted."""
    found = (path.parent.name for path in root.glob("runs/*/ledger.sqlite"))
    return tuple(sorted(name for name in found if _RUN_ID.fullmatch(name)))


def sweep(root: Path) -> tuple[str, ...]:
    """Remove what writers that were killed left half-written; return the runs that had some.

    A run that is being written is left alone, as is one whose ledger is damaged.
    """
    left = sorted({folder.parents[1].name for folder in root.glob("runs/*/rounds/.*")})
    swept = []
    for run in left:
        with suppress(StateError):
            RunDirectory.resume(root, run).close()
            swept.append(run)
    return tuple(swept)


def write_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write one safetensors file of named arrays and fsync it.

    Raises:
        OSError: The file cannot be written.
    """
    _save(path, arrays, metadata)
    _sync(path)


def _save(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    flat = {
        name: array if array.flags.c_contiguous else array.copy(order="C")
        for name, array in arrays.items()
    }
    try:
        safetensors.numpy.save_file(flat, path, metadata=dict(metadata))
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error


def _write_manifest(
    path: Path, about: Mapping[str, str], manifest: Manifest, extra: Mapping[str, Any]
) -> None:
    """Write `[body, SHA-256 of the body's JSON]`."""
    body = {
        "format": FORMAT,
        "about": dict(about),
        "files": [MODEL_FILE],
        "manifest": json.loads(manifest.to_json()),
        "extra": dict(extra),
    }
    check = hashlib.sha256(_json(body)).hexdigest()
    path.write_bytes(b"[" + _json(body) + b',"' + check.encode() + b'"]\n')


def _parse_manifest(path: Path, n: int) -> tuple[Manifest, dict[str, str], dict[str, Any]]:
    """Return manifest, the model's metadata and extra, or raise one of several errors."""
    if path.stat().st_size > MANIFEST_LIMIT:
        raise ValueError(f"more than {MANIFEST_LIMIT} bytes")
    body, check = json.loads(path.read_bytes())
    if check != hashlib.sha256(_json(body)).hexdigest():
        raise ValueError("a text whose own hash does not match")
    about = body["about"]
    if (body["format"], about["round"]) != (FORMAT, str(n)):
        raise ValueError(f"{body['format']} of round {about['round']}")
    manifest = Manifest.from_json(json.dumps(body["manifest"]), str(path))
    return manifest, about, body["extra"]


def _json(body: object) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _place(root: Path, run_id: str) -> Path:
    if not _RUN_ID.fullmatch(run_id):
        raise SettingsError("run id", "letters, digits, `.`, `_`, `-`, at most 64", run_id)
    return root / "runs" / run_id


def _locked(path: Path) -> int:
    """Take the writer's lock, an flock on the directory itself; it goes with the process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            str(path), "a run that nobody writes", "another process holds it", "stop that process"
        ) from error
    return descriptor


def _sync(path: Path) -> None:
    """Force a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
