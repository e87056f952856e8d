"""A stream of bytes under a passphrase: whoever has none reads nothing of it and changes nothing.

    salt 16 bytes · log2 N 1 byte · pieces of 1 MiB, each followed by its tag of 16 bytes

The key is scrypt(passphrase, salt, N, r = 8, p = 1) (RFC 7914), 32 bytes; each piece is sealed by
ChaCha20-Poly1305 (RFC 8439) under the nonce `number of the piece, 8 bytes · 1 for the last one ·
3 zero bytes`, with what stands before the first piece as additional data. So pieces can neither be
changed, left out, moved nor added, and a stream that was cut off is found at its end (the STREAM
construction of Hoang, Reyhanitabar, Rogaway and Vizar, 2015). A salt is used once, so a key is too.

Memory: two pieces, and 128 MiB while the key is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from ..protocol.entropy import os_entropy, random_bytes
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from typing import BinaryIO

PIECE = 1 << 20
TAG = 16
SALT = 16
COST = 17
"""log2 N: 128 MiB and half a second for each passphrase that is tried."""
MOST_COST = 18
_KEY, _R = 32, 8


class Sink(Protocol):
    """Takes bytes."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of them."""


class Source(Protocol):
    """Gives bytes."""

    def read(self, count: int, /) -> bytes:
        """Return `count` bytes; fewer only at the end."""


class Sealer:
    """Seals what is written; `close` makes its end one that can be told from a cut."""

    def __init__(self, out: Sink, passphrase: bytes, head: bytes) -> None:
        """Write salt and cost; `head` stands before them already, and is sealed in with them."""
        self._out, self._number, self._rest = out, 0, bytearray()
        start = bytes(random_bytes(SALT, os_entropy)) + bytes((COST,))
        out.write(start)
        self._head = head + start
        self._key = _key(passphrase, start)

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes; what fills a piece leaves, once it is known not to be the last."""
        self._rest += data
        while len(self._rest) > PIECE:
            self._seal(self._rest[:PIECE], last=False)
            del self._rest[:PIECE]

    def close(self) -> None:
        """Write the last piece."""
        self._seal(self._rest, last=True)
        self._rest = bytearray()

    def _seal(self, piece: bytearray, *, last: bool) -> None:
        self._out.write(self._key.encrypt(_nonce(self._number, last=last), piece, self._head))
        self._number += 1


class Unsealer:
    """Opens what `Sealer` wrote."""

    def __init__(self, file: BinaryIO, passphrase: bytes, head: bytes, name: str) -> None:
        """Read salt and cost; `name` is the file's, for errors.

        Raises:
            StateError: They are none.
        """
        self._file, self._name, self._number = file, name, 0
        start = file.read(SALT + 1)
        if len(start) != SALT + 1 or not 1 <= start[-1] <= MOST_COST:
            raise StateError(name, "a sealed backup", "another head", _MOVE)
        self._head = head + start
        self._key = _key(passphrase, start)
        self._ahead = file.read(PIECE + TAG)
        self._piece, self._at = b"", 0
        self._ended = False

    def read(self, count: int) -> bytes:
        """Return so many bytes; fewer only at the end.

        Raises:
            StateError: A piece is not as it was sealed, or the passphrase is another.
        """
        found = bytearray()
        while len(found) < count:
            if self._at == len(self._piece):
                if self._ended:
                    break
                self._open()
            taken = self._piece[self._at : self._at + count - len(found)]
            found += taken
            self._at += len(taken)
        return bytes(found)

    def _open(self) -> None:
        sealed, self._ahead = self._ahead, self._file.read(PIECE + TAG)
        self._ended = not self._ahead
        try:
            nonce = _nonce(self._number, last=self._ended)
            self._piece, self._at = self._key.decrypt(nonce, sealed, self._head), 0
        except InvalidTag as error:
            what = "the passphrase that it was sealed with, and every byte as it was written"
            raise StateError(
                self._name, what, f"another one, or damage in MiB {self._number + 1}", _MOVE
            ) from error
        self._number += 1


_MOVE = "take another copy"


def _key(passphrase: bytes, start: bytes) -> ChaCha20Poly1305:
    kdf = Scrypt(salt=start[:SALT], length=_KEY, n=1 << start[SALT], r=_R, p=1)
    return ChaCha20Poly1305(kdf.derive(passphrase))


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(8, "big") + bytes((last, 0, 0, 0))
