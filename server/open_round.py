"""An open secure round on the disk: what a successor finishes it from.

    rounds/000005.train.0.open/sum          the folded sum, still masked; whoever holds it writes it
    rounds/000005.train.0.open/transcript   which attempt, the sum's SHA-256, and what its members
                                            signed (protocol/transcript.py)

Both are on the disk before the first vote is asked for, and gone when the round's outcome is in
the ledger. No share, sealed or open, and no vector of one member is in them (docs/protocol.md,
section 7.3). Without a whole transcript, or with another sum than it names, there is no open round.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from .disk_space import move
from .plain_files import read_file, sync, why
from ..host.disk_room import free_bytes
from ..protocol import fields
from ..protocol.errors import PeerError, StateError
from ..protocol.transcript import LIMIT, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .ingest import Intake
    from .invitation import Plan
    from ..protocol.reopening import Reopenable

SUFFIX = ".open"
_NAME = re.compile(r"([0-9]{6,12})\.(train|evaluate)\.([0-9]{1,12})\.open")
SUM, TRANSCRIPT = "sum", "transcript"
_LABEL = b"umbel/open-round/1"
_HASH, _ID, _HEAD = 32, 16, 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRound:
    """One attempt whose survivors are fixed."""

    round: int
    phase: str
    attempt: int
    digest: bytes
    """SHA-256 of the folded sum."""
    survivors: tuple[str, ...]
    """Node ids, hex, that are asked to vote."""
    transcript: Transcript
    path: Path
    """The file of the folded sum."""

    @property
    def members(self) -> tuple[bytes, ...]:
        """Certificates (DER) of the roster, in its order."""
        return tuple(der for der, _ in self.transcript.members)


class OpenRounds:
    """The open attempts of a run; there is one at most, and what a crash left."""

    def __init__(
        self, rounds: Path, later: Callable[..., None] = lambda work, *args: work(*args)
    ) -> None:
        """Keep them in the directory `rounds`; `later` removes when all before it is durable."""
        self._rounds, self._later = rounds, later

    def keep(self, plan: Plan, server: Reopenable, intake: Intake) -> None:
        """Write an attempt durably: its survivors are fixed, its sum is folded.

        Raises:
            StateError: The disk takes no more.
        """
        terms = plan.terms
        by_id = {joined.member.id: joined.der for joined in plan.cohort.values()}
        transcript = server.transcript(by_id.__getitem__)
        name = f"{terms.round:06d}.{terms.phase}.{terms.attempt}{SUFFIX}"
        folder = self._rounds / name
        try:
            folder.mkdir(mode=0o700)
            digest = intake.save(folder / SUM)
            survivors = b"".join(server.ids(server.u))
            body = fields.pack(_LABEL, name.encode(), digest, survivors, transcript.pack())
            _write(folder / TRANSCRIPT, body + sha256(body).digest())
            for directory in (folder, self._rounds):
                sync(directory)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            got = f"{free_bytes(self._rounds)} bytes free, and {why(error)}"
            raise StateError(
                str(folder), "an open round on the disk", got, move(self._rounds.parent.name)
            ) from error

    def kept(self) -> OpenRound | None:
        """Return the newest attempt that is whole; the sum itself is checked when it is loaded."""
        found = [(_NAME.fullmatch(path.name), path) for path in self._rounds.iterdir()]
        named = [(match, path) for match, path in found if match is not None]
        order = sorted(named, key=lambda item: (int(item[0][1]), item[0][2] == "evaluate",
                                                int(item[0][3])), reverse=True)  # fmt: skip
        for match, path in order:
            try:
                digest, survivors, transcript = _read(path)
            except (OSError, ValueError, PeerError):
                continue
            return OpenRound(
                round=int(match[1]),
                phase=match[2],
                attempt=int(match[3]),
                digest=digest,
                survivors=survivors,
                transcript=transcript,
                path=path / SUM,
            )
        return None

    def drop(self) -> None:
        """Remove every open attempt that is here now, when what was written before is durable."""
        for path in self._rounds.glob(f"*{SUFFIX}"):
            self._later(shutil.rmtree, path, True)


def write_sum(path: Path, data: bytes | bytearray | memoryview) -> bytes:
    """Write a sum to a new file (0600), fsync it and return its SHA-256.

    Raises:
        OSError: The file exists, or the disk takes no more.
    """
    _write(path, data)
    return sha256(data).digest()


def read_sum(path: Path, size: int, digest: bytes) -> bytes:
    """Return the `size` bytes of a file of this SHA-256.

    Raises:
        PeerError: There is no such file, or other bytes are in it.
    """
    try:
        data = read_file(path, size)
    except OSError as error:
        raise PeerError(str(path), f"cannot be read: {why(error)}") from error
    except ValueError as error:
        raise PeerError(str(path), "sum", f"{size} bytes", error) from error
    if len(data) != size or sha256(data).digest() != digest:
        raise PeerError(str(path), "sum", f"{size} bytes of the noted hash", "other bytes")
    return data


def _read(folder: Path) -> tuple[bytes, tuple[str, ...], Transcript]:
    """Return a folder's sum digest, survivors and transcript, or raise."""
    path = folder / TRANSCRIPT
    data = read_file(path, LIMIT + _HEAD)
    body, check = data[:-_HASH], data[-_HASH:]
    if sha256(body).digest() != check:
        raise PeerError(str(path), "is not what was written")
    name, digest, survivors, packed = fields.unpack(_LABEL, body, 4, str(path))
    if name != folder.name.encode() or len(digest) != _HASH or len(survivors) % _ID:
        raise PeerError(str(path), "is not of this folder")
    ids = (survivors[at : at + _ID].hex() for at in range(0, len(survivors), _ID))
    return digest, tuple(ids), Transcript.unpack(packed)


def _write(path: Path, data: bytes | bytearray | memoryview) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)
