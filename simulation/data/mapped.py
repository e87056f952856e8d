"""The examples of many clients as two arrays and offsets, mapped from files.

    DIRECTORY/inputs.npy     (examples, ...)     rows of one client lie together
              targets.npy    (examples, ...)
              offsets.npy    (clients + 1,) int64; client c owns rows offsets[c] to offsets[c + 1]
              SHA256SUMS     of the three, as `sha256sum` writes and checks it

What a client gets is a slice, so a million registered clients cost their offsets, 8 bytes each, and
a set may be larger than memory: only pages that somebody trains on are read, and processes on one
machine share them. A client's pages are asked for when its slice is: who asks for all clients of a
cohort before the first trains waits for the disk once (docs/decisions/0104). Files are numpy's own
format (NEP 1) without objects: nothing in them is run. `ClientData.of` has the same in memory.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import shutil
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import numpy as np

from ...host.whole_file import sync_directory
from ...protocol.errors import SettingsError, StateError
from ...strategies.npy import header, read_head

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import NDArray

SUMS = "SHA256SUMS"
NAMES = ("inputs", "targets", "offsets")
_LINE = re.compile(r"([0-9a-f]{64})  (\w+)\.npy")
_HEAD, _MOST_SUMS = 4096, 1024


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """The examples of `clients` clients, each a run of rows."""

    inputs: NDArray[Any] = field(repr=False)
    """Shape (examples, ...)."""
    targets: NDArray[Any] = field(repr=False)
    offsets: NDArray[np.int64] = field(repr=False)
    """Shape (clients + 1,), from 0 to `examples`, never falling."""
    _maps: tuple[_Map, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Check that the three belong together.

        Raises:
            SettingsError: They do not.
        """
        if wrong := _unfit(self.inputs, self.targets, self.offsets):
            raise SettingsError("client data", *wrong)

    @classmethod
    def of(
        cls,
        inputs: NDArray[Any],
        targets: NDArray[Any],
        partitions: Sequence[NDArray[np.intp]] | None = None,
    ) -> ClientData:
        """Return copies of the rows, a client's together, in memory; None is one client for all.

        Args:
            inputs: Shape (examples, ...).
            targets: Shape (examples, ...).
            partitions: The rows of each client (strategies/partition.py).
        """
        if partitions is None:
            return cls(inputs, targets, _offsets([len(inputs)]))
        rows = np.concatenate([np.empty(0, np.intp), *partitions])
        return cls(inputs[rows], targets[rows], _offsets([len(part) for part in partitions]))

    @classmethod
    def open(cls, directory: Path, *, verify: bool = False) -> ClientData:
        """Map a set from its files, read only.

        Args:
            directory: What `write` or a `Writer` made.
            verify: Whether to read all of it and compare its digests, about a second a GB.

        Raises:
            StateError: It is no such set, or a damaged one.
        """
        sums, again = _sums(directory), "make the set again"
        (inputs, *its), (targets, *others), (offsets, _) = (
            _mapped(directory / f"{name}.npy") for name in NAMES
        )
        for name in NAMES if verify else ():
            path = directory / f"{name}.npy"
            if (found := _digest(path)) != sums[name]:
                raise StateError(str(path), f"SHA-256 {sums[name][:16]}…", found[:16] + "…", again)
        if wrong := _unfit(inputs, targets, offsets):
            raise StateError(str(directory), *wrong, again)
        return cls(inputs, targets, offsets, (*its, *others))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many examples each client has, shape (clients,)."""
        found: NDArray[np.int64] = np.diff(self.offsets)
        return found

    def client(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return views of one client's inputs and targets.

        Raises:
            SettingsError: There is no such client.
        """
        if not 0 <= index < self.clients:
            raise SettingsError("client", f"an index below {self.clients}", index)
        start, stop = self.offsets[index : index + 2].tolist()
        for one in self._maps:
            one.fetch(start, stop)
        return self.inputs[start:stop], self.targets[start:stop]

    def write(self, directory: Path) -> None:
        """Write the set, whole or not at all.

        Raises:
            StateError: The directory is there already, or cannot be written.
        """
        with Writer(directory) as out:
            out.extend(self)


class Writer:
    """Writes a set that may be larger than memory, one client after another.

        with Writer(directory) as out:
            for client in range(1_000_000):
                out.add(inputs, targets)

    The directory appears when the block ends, complete and on the disk; after an exception it does
    not appear.
    """

    def __init__(self, directory: Path) -> None:
        """Say where the set will be.

        Raises:
            StateError: Something is there already.
        """
        self._target = directory.absolute()
        if self._target.exists():
            raise _taken(self._target)
        self._sizes = array("q")
        self._files: list[_Growing] = []

    def __enter__(self) -> Self:
        """Make a directory beside it.

        Raises:
            StateError: It cannot be made.
        """
        parent = self._target.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._place = Path(tempfile.mkdtemp(prefix=f".{self._target.name}-", dir=parent))
        except OSError as error:
            raise _unwritable(self._target, error) from error
        return self

    def add(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        """Append the rows of the next client.

        Raises:
            SettingsError: Dtype or shape are not those of the clients before, or counts differ.
        """
        self.extend(ClientData.of(np.asarray(inputs), np.asarray(targets)))

    def extend(self, data: ClientData) -> None:
        """Append all clients of a set that is there.

        Raises:
            SettingsError: Dtype or shape are not those of the clients before.
        """
        pair = (data.inputs, data.targets)
        if not self._files:
            self._files = [
                _Growing(self._place / f"{name}.npy", part)
                for name, part in zip(NAMES, pair, strict=False)
            ]
        for file, part in zip(self._files, pair, strict=True):
            file.append(part)
        self._sizes.extend(data.sizes.tolist())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the set in its place, or remove what there is of it."""
        try:
            if kind is None:
                self._finish()
        except OSError as failure:
            raise _unwritable(self._target, failure) from failure
        finally:
            for file in self._files:
                file.file.close()
            shutil.rmtree(self._place, ignore_errors=True)

    def _finish(self) -> None:
        """Complete the files and give the directory its name."""
        if not self._files:
            raise SettingsError("client data", "at least one client", "none")
        offsets = _offsets(self._sizes)
        last = _Growing(self._place / "offsets.npy", offsets)
        last.append(offsets)
        self._files.append(last)
        for file in self._files:
            file.finish()
        lines = [f"{_digest(self._place / f'{name}.npy')}  {name}.npy\n" for name in NAMES]
        with (self._place / SUMS).open("w") as out:
            out.writelines(lines)
            out.flush()
            os.fsync(out.fileno())
        sync_directory(self._place)
        try:
            self._place.rename(self._target)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise _taken(self._target) from error
            raise
        sync_directory(self._target.parent)


class _Growing:
    """One .npy file whose first axis grows; its head has room for every count of rows."""

    def __init__(self, path: Path, first: NDArray[Any]) -> None:
        if not _plain(first.dtype):
            raise SettingsError(path.stem, "native numbers", str(first.dtype))
        self.name, self.dtype, self.shape, self.rows = path.stem, first.dtype, first.shape[1:], 0
        self.file: BinaryIO = path.open("xb")
        self.file.write(header(self.dtype, (0, *self.shape)))

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows at the end."""
        if rows.dtype != self.dtype or rows.shape[1:] != self.shape:
            raise SettingsError(
                self.name, f"{self.dtype} rows of {self.shape}", f"{rows.dtype} {rows.shape[1:]}"
            )
        self.file.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    def finish(self) -> None:
        """Write the true head and wait for the disk."""
        self.file.seek(0)
        self.file.write(header(self.dtype, (self.rows, *self.shape)))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return where each client begins, and the end."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def _unfit(
    inputs: NDArray[Any], targets: NDArray[Any], offsets: NDArray[Any]
) -> tuple[str, object] | None:
    """Return what was expected and what there is where the three do not belong together."""
    rows = len(inputs)
    if len(targets) != rows:
        return f"{rows} targets", len(targets)
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        return "int64 offsets, one more than clients", f"{offsets.dtype} {offsets.shape}"
    if offsets[0] or offsets[-1] != rows or bool((offsets[1:] < offsets[:-1]).any()):
        return f"offsets from 0 up to {rows}", "others"
    return None


def _sums(directory: Path) -> dict[str, str]:
    """Return the digests by name."""
    path = directory / SUMS
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_SUMS).decode("ascii", "replace")
    except OSError as error:
        raise StateError(
            str(path), "a set of client data", error.strerror, "name the set's directory"
        ) from error
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    sums = {match[2]: match[1] for match in found if match}
    if len(found) != len(NAMES) or set(sums) != set(NAMES):
        raise StateError(str(path), "one line for each of the three files", "others")
    return sums


class _Map(NamedTuple):
    """A mapped file of rows."""

    view: mmap.mmap
    first: int
    """Bytes before the first row."""
    row: int
    """Bytes of a row."""

    def fetch(self, start: int, stop: int) -> None:
        """Have the disk read these rows while something else goes on; none of it is waited for."""
        if stop > start and hasattr(self.view, "madvise"):
            begin = self.first + start * self.row
            page = begin - begin % mmap.PAGESIZE
            self.view.madvise(mmap.MADV_WILLNEED, page, self.first + stop * self.row - page)


def _mapped(path: Path) -> tuple[NDArray[Any], _Map]:
    """Return a read-only view of a whole file's array; no byte of it is read before it is used."""
    try:
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        head = read_head(view[:_HEAD], "")
    except (OSError, ValueError) as error:
        raise StateError(str(path), "a .npy of plain numbers", error) from error
    if not _plain(head.dtype):
        raise StateError(str(path), "native numbers", head.dtype)
    if head.fortran or not head.shape or len(view) != head.start + head.nbytes:
        raise StateError(
            str(path), f"{head.nbytes} bytes in C order for {head.dtype} {head.shape}",
            len(view) - head.start,
        )  # fmt: skip
    flat = np.frombuffer(view, head.dtype, offset=head.start) if head.nbytes else np.empty(0)
    rows = flat.astype(head.dtype, copy=False).reshape(head.shape)
    return rows, _Map(view, head.start, head.nbytes // max(1, head.shape[0]))


def _plain(dtype: np.dtype[Any]) -> bool:
    """Say whether it is a number as this machine has it: not an object, a text or bytes."""
    return dtype.kind in "biuf" and dtype.isnative


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _taken(path: Path) -> StateError:
    return StateError(
        str(path), "a name that is free", "something is there", "open it, or remove it"
    )


def _unwritable(path: Path, error: OSError) -> StateError:
    return StateError(str(path), "a place that can be written", error.strerror)
