"""A node's journal: the records, their line form, and what each forbids afterwards.

| record | written, and fsynced, before |
|---|---|
| `keyed ctx0` | the round keys leave (trip 1) |
| `masked ctx run model H(y)` | the masked vector (trip 3) |
| `voted ctx H(U2) U` | the vote (trip 4) |
| `released ctx` | the shares (trip 5) |
| `closed ctx` (ctx0 where no roster came) | joining a later attempt; the attempt's end |

Each of the first four happens at most once per ctx0 or ctx, a vote only after its vector, a
release only after its vote, and none after `closed`. A record found in the file belongs to a
process that is gone, and with it the secrets of its attempt: this process is out of it.

No secret is in a record. A line is ASCII: the kind, its fields in hex (the run id is
percent-encoded), and the first 8 bytes of the SHA-256 of all that in hex, separated by single
spaces. This module is pure; the file, its lock and its fsync are in clients/journal.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from . import messages_pb2 as pb
from .errors import Refused, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable

_HASH = 32
_ID = 16


@dataclass(frozen=True, slots=True)
class Keyed:
    """Round keys were made for this ctx0."""

    ctx: bytes


@dataclass(frozen=True, slots=True)
class Masked:
    """A vector was masked: for this run and model digest, its bytes hashing to `y_hash`."""

    ctx: bytes
    run: str
    model: bytes
    y_hash: bytes


@dataclass(frozen=True, slots=True)
class Voted:
    """A vote was cast for these survivors (ids, sorted), out of the U2 with this hash."""

    ctx: bytes
    u2_hash: bytes
    survivors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """Shares were released."""

    ctx: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """The attempt is over for this node."""

    ctx: bytes


Record = Keyed | Masked | Voted | Released | Closed
_AFTER: dict[type, type] = {Voted: Masked, Released: Voted}
_SINGLE: dict[str, type[Keyed | Released | Closed]] = {
    "keyed": Keyed,
    "released": Released,
    "closed": Closed,
}


def encode(record: Record) -> bytes:
    """Return the record's line, newline included.

    Raises:
        ValueError: A field has another length than its own, or the ids are not sorted.
    """
    for value, length in _lengths(record):
        if len(value) != length:
            raise ValueError(f"a {_kind(record)} field needs {length} bytes, got {len(value)}")
    words = [_kind(record), record.ctx.hex()]
    match record:
        case Masked(_, run, model, y_hash):
            words += [quote(run, safe=""), model.hex(), y_hash.hex()]
        case Voted(_, u2_hash, survivors):
            if list(survivors) != sorted(set(survivors)):
                raise ValueError("survivors need sorted, distinct ids")
            words += [u2_hash.hex(), b"".join(survivors).hex()]
    body = " ".join(words).encode("ascii")
    return body + b" " + _checksum(body) + b"\n"


def parse(data: bytes) -> tuple[list[Record], int]:
    """Return the records of a journal's bytes, and how many of the bytes are whole lines.

    A last line without its newline is torn: its bytes never left, and it is left out.

    Raises:
        StateError: Damage anywhere else.
    """
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    records = [_record(line, number) for number, line in enumerate(lines, 1)]
    if _whole(data[good:-1]):  # a whole line, and its newline replaced: damage, not a torn write
        raise _damaged(len(lines) + 1)
    return records, good


class History:
    """What one node did, and so what it may still do."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """Take over the records of earlier processes, whose attempts are out of reach.

        Raises:
            StateError: They break the rules of this module.
        """
        self._kinds: dict[bytes, frozenset[type]] = {}
        self._masked: dict[bytes, tuple[str, bytes]] = {}
        self._votes: dict[tuple[str, bytes], list[tuple[bytes, ...]]] = {}
        self._last: frozenset[bytes] | None = None
        self._earlier: frozenset[bytes] = frozenset()
        self._ids: dict[bytes, bytes] = {}
        self._combinations: dict[frozenset[type], frozenset[type]] = {}
        for record in records:
            try:
                self.admit(record)
            except Refused as error:
                raise StateError("journal", "records in their order", error) from error
            self.add(record)
        self._earlier = frozenset(self._kinds)

    def admit(self, record: Record) -> None:
        """Refuse what may not happen any more; change nothing.

        Raises:
            Refused: `attempt closed`, `new process`, or `journal` for a second time or a
                step before its turn.
        """
        if isinstance(record, Closed):
            return
        done = self._kinds.get(record.ctx, frozenset())
        name, where = _kind(record), record.ctx[:4].hex()
        if Closed in done:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, f"`{name}` for {where}, which is closed")
        if record.ctx in self._earlier:
            raise Refused(
                pb.REASON_NEW_PROCESS,
                f"`{name}` for {where}, whose secrets went with the process that began it",
            )
        if type(record) in done:
            raise Refused(pb.REASON_JOURNAL, f"`{name}` for {where} a second time")
        before = _AFTER.get(type(record))
        if before is not None and before not in done:
            raise Refused(pb.REASON_JOURNAL, f"`{name}` for {where} before its {before.__name__}")

    def add(self, record: Record) -> None:
        """Count a record that is on disk.

        Nothing of it is ever forgotten, so what many attempts share is kept once.
        """
        done = self._kinds.get(record.ctx, frozenset()) | {type(record)}
        self._kinds[record.ctx] = self._combinations.setdefault(done, done)
        if isinstance(record, Masked):
            self._masked[record.ctx] = (record.run, record.model)
        elif isinstance(record, Voted):
            survivors = tuple(self._ids.setdefault(i, i) for i in record.survivors)
            self._votes.setdefault(self._masked[record.ctx], []).append(survivors)
            self._last = frozenset(survivors)

    def open_attempts(self) -> tuple[bytes, ...]:
        """Return every ctx0 and ctx with a record and without `closed`, oldest first."""
        return tuple(ctx for ctx, done in self._kinds.items() if Closed not in done)

    @property
    def last_vote(self) -> frozenset[bytes] | None:
        """Return the survivors voted for last, on whatever model of whatever run."""
        return self._last

    def votes(self, run: str, model: bytes) -> list[tuple[bytes, ...]]:
        """Return the survivor sets voted for on this model digest of this run, in any phase."""
        return list(self._votes.get((run, model), ()))


def _record(line: bytes, number: int) -> Record:
    """Return a line's record; encoding it again must give the same line."""
    if not _whole(line):
        raise _damaged(number)
    try:
        record = _fields(line.decode("ascii").split(" ")[:-1])
        same = encode(record) == line + b"\n"
    except (ValueError, TypeError) as error:
        raise _damaged(number) from error
    if not same:
        raise _damaged(number)
    return record


def _fields(words: list[str]) -> Record:
    kind, ctx, *rest = words
    context = bytes.fromhex(ctx)
    if kind == "masked":
        run, model, y_hash = rest
        return Masked(context, unquote(run), bytes.fromhex(model), bytes.fromhex(y_hash))
    if kind == "voted":
        u2_hash, joined = rest
        ids = bytes.fromhex(joined)
        cut = (ids[i : i + _ID] for i in range(0, len(ids), _ID))
        return Voted(context, bytes.fromhex(u2_hash), tuple(cut))
    if rest or kind not in _SINGLE:
        raise ValueError("no such record")
    return _SINGLE[kind](context)


def _lengths(record: Record) -> list[tuple[bytes, int]]:
    """Return the record's byte fields, each with the length that it must have."""
    fields = [(record.ctx, _HASH)]
    if isinstance(record, Masked):
        fields += [(record.model, _HASH), (record.y_hash, _HASH)]
    if isinstance(record, Voted):
        fields += [(record.u2_hash, _HASH), *((item, _ID) for item in record.survivors)]
    return fields


def _kind(record: Record) -> str:
    return type(record).__name__.lower()


def _checksum(body: bytes) -> bytes:
    return sha256(body).hexdigest()[:16].encode("ascii")


def _whole(line: bytes) -> bool:
    """Say whether a line without its newline carries its own checksum."""
    body, _, checksum = line.rpartition(b" ")
    return bool(body) and checksum == _checksum(body)


def _damaged(number: int) -> StateError:
    return StateError(
        f"journal line {number}",
        "a record with its checksum",
        "damage",
        "this node joins no secure round; enrol it anew, which starts a new journal",
    )
