"""The files of a federation directory that change while its core service runs.

    issuing.pem members.list     the issuer writes them: who issues members, and whom it removed
    gateway.pem gateway.key      a renewed leaf, which the next handshake shows

Each tick looks at size, time and inode of the files; they are read when one has changed. Whoever
writes them puts a whole file in place of another, so what is read is the old or the new one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from .federation_files import ISSUING, MEMBERS
from .service import check_in_force
from ..protocol import messages_pb2 as pb
from ..protocol.errors import StateError, UmbelError
from ..protocol.members import MAX_BYTES
from ..protocol.verification import UNREADABLE
from ..protocol.wire import MAX_CERTIFICATE, MAX_ISSUING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PEM_LIMIT = 2 * MAX_ISSUING * MAX_CERTIFICATE
_MOVE = "the issuer of this federation writes it"


class Watched:
    """Some files, and what is done when one of them has changed."""

    def __init__(
        self, files: tuple[Path, ...], then: Callable[[], None], say: Callable[[str, str], None]
    ) -> None:
        """Call `then` at the first look, and after each change; its error becomes a line, once."""
        self._files, self._then, self._say = files, then, say
        self._seen: list[tuple[int, int, int] | None] = []
        self._said = ""

    def look(self) -> None:
        """Look once."""
        found = [_stamp(file) for file in self._files]
        if found == self._seen:
            return
        try:
            self._then()
        except UmbelError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._say("files", f"{error}; what was there before stays in force")
        else:
            self._said = ""
        self._seen = found


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_trust(directory: Path) -> pb.Trust:
    """Return who issues members, and the member list, as the issuer has written both.

    Either file may be absent: a root may sign members itself, and a list may not be there yet.

    Raises:
        StateError: A file cannot be read, is too large, or holds no certificates.
    """
    trust = pb.Trust(members=_read(directory / MEMBERS, MAX_BYTES))
    text = _read(directory / ISSUING, _PEM_LIMIT)
    if text:
        try:
            found = x509.load_pem_x509_certificates(text)
            trust.issuing.extend(one.public_bytes(Encoding.DER) for one in found[:MAX_ISSUING])
        except UNREADABLE as error:
            raise StateError(str(directory / ISSUING), "PEM certificates", error, _MOVE) from error
    return trust


def _read(file: Path, limit: int) -> bytes:
    try:
        with open(file, "rb") as opened:
            found = opened.read(limit + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StateError(str(file), "a readable file", error.strerror, _MOVE) from error
    if len(found) > limit:
        raise StateError(str(file), f"at most {limit} bytes", "more", _MOVE)
    return found


def read_leaf(directory: Path, name: str) -> tuple[bytes, bytes]:
    """Return a server's private key and certificate chain, PEM, which belong together.

    Raises:
        StateError: A file cannot be read, the key is another one, or the leaf is not in force.
    """
    file = directory / f"{name}.pem"
    chain, key = _read(file, _PEM_LIMIT), _read(directory / f"{name}.key", _PEM_LIMIT)
    try:
        leaf = x509.load_pem_x509_certificate(chain)
        ours = load_pem_private_key(key, None).public_key() == leaf.public_key()
    except (InvalidSignature, *UNREADABLE) as error:
        raise StateError(str(file), "a certificate and its key", "others", _MOVE) from error
    if not ours:
        raise StateError(str(file), f"the certificate of {name}.key", "another one", _MOVE)
    check_in_force(leaf, file)
    return key, chain
