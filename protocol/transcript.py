"""What a server may keep on disk of an open attempt, so that its successor can finish it.

After the uploads a round needs no vector any more, only the folded sum and what the members signed:

    roster     n certificates and `Keys`
    U2         of each of its members: commitment, share hashes and signature of its `Shares`
    U          of each of its members: the header of its vector

Nothing of it is secret: no sealed blob, no share, no key but public ones. The folded sum, still
masked, stands beside it (server/open_round.py). docs/protocol.md, section 7.3.

The form: lp(magic) lp(ctx0) lp(ctx) and then lp of each part, counts before lists, closed by the
SHA-256 of all that. It is read from the server's own disk and checked all the same: what does not
hash to ctx0 and ctx is no transcript of this attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from . import messages_pb2 as pb
from .canonical import lp
from .errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAGIC = b"umbel/transcript/1"
LIMIT = 256 << 20
"""Bytes: 1,250 members with 32 neighbours take 4 MiB."""
_SIZE, _HASH = 8, 32
_WHO = "transcript"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """The public part of an attempt whose survivors are frozen."""

    ctx0: bytes
    ctx: bytes
    members: tuple[tuple[bytes, pb.Keys], ...]
    """Certificate (DER) and round keys of each member, in roster order."""
    shares: Mapping[int, pb.Shares]
    """By place, of U2; the blobs hold their two hashes only."""
    headers: Mapping[int, pb.MaskedHeader]
    """By place, of U."""

    def pack(self) -> bytes:
        """Return the bytes to keep."""
        fields = [MAGIC, self.ctx0, self.ctx, _number(len(self.members))]
        for der, keys in self.members:
            fields += [der, keys.SerializeToString()]
        for table in (self.shares, self.headers):
            fields.append(_number(len(table)))
            for place, message in table.items():
                fields += [_number(place), message.SerializeToString()]
        body = lp(*fields)
        return body + sha256(body).digest()

    @classmethod
    def unpack(cls, data: bytes) -> Transcript:
        """Read what `pack` wrote.

        Raises:
            Malformed: It is not that, to the byte.
        """
        body, check = data[:-_HASH], data[-_HASH:]
        if len(data) > LIMIT or sha256(body).digest() != check:
            raise Malformed(_WHO, "file", "a text whose hash is behind it", f"{len(data)} bytes")
        try:
            found = cls._read(_fields(body))
        except (StopIteration, RuntimeError, ValueError, DecodeError) as error:
            raise Malformed(_WHO, "file", "the fields of a transcript", "others") from error
        if found.pack() != data:
            raise Malformed(_WHO, "file", "one spelling of its fields", "another")
        return found

    @classmethod
    def _read(cls, fields: Iterator[bytes]) -> Transcript:
        if next(fields) != MAGIC:
            raise ValueError(_WHO)
        ctx0, ctx = next(fields), next(fields)
        members = [
            (next(fields), pb.Keys.FromString(next(fields))) for _ in range(int(next(fields)))
        ]
        shares = {
            int(next(fields)): pb.Shares.FromString(next(fields)) for _ in range(int(next(fields)))
        }
        headers = {
            int(next(fields)): pb.MaskedHeader.FromString(next(fields))
            for _ in range(int(next(fields)))
        }
        places = range(len(members))
        if not headers.keys() <= shares.keys() or not all(place in places for place in shares):
            raise ValueError(_WHO)
        return cls(ctx0=ctx0, ctx=ctx, members=tuple(members), shares=shares, headers=headers)


def without_blobs(message: pb.Shares) -> pb.Shares:
    """Return a member's `Shares` with the hashes of its shares and not what is sealed."""
    hashes = [
        pb.Sealed(mask_share_hash=b.mask_share_hash, seed_share_hash=b.seed_share_hash)
        for b in message.blobs
    ]
    return pb.Shares(commitment=message.commitment, blobs=hashes, signature=message.signature)


def _number(value: int) -> bytes:
    return str(value).encode("ascii")


def _fields(body: bytes) -> Iterator[bytes]:
    """Take lp apart."""
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + _SIZE], "little")
        at += _SIZE
        if at + size > len(body):
            raise ValueError(_WHO)
        yield body[at : at + size]
        at += size
