"""The secrets that lie in a directory, in every form in which one could be written elsewhere.

For the last look at what leaves a machine (bundle.py). A secret is

    a private key    its file; its lines of base64; its number or seed raw, in hex and in base64
    any other file   that is small, of this user alone and not known to be harmless: a ticket's key,
                     a passphrase, a file that somebody laid there; its text, raw, in hex, in base64

A token's secret is kept nowhere; it is known by its form.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from typing import TYPE_CHECKING, BinaryIO

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 1 << 16
"""Bytes of a file that may be a secret."""
SHORTEST = 12
"""Bytes below which a text is found everywhere."""
MOST_FILES = 20_000
_LINE = 40
"""Characters of a line of base64 that is long enough to be a part of one key only."""
PATTERNS = (
    re.compile(rb"umbel1-[A-Za-z0-9_-]{40,}"),  # a token
    re.compile(rb"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----"),
)
"""What is a secret by its form."""
_OTHERS = 0o077


class Secrets:
    """What must not be in a text."""

    def __init__(self) -> None:
        """Know nothing but the forms."""
        self._needles: dict[bytes, str] = {}

    def add_directory(self, folder: Path, harmless: re.Pattern[str]) -> None:
        """Learn the secrets of a directory and those below.

        Args:
            folder: A directory, which may be gone.
            harmless: Matches the paths, relative to it, of files that hold no secret.
        """
        for path in _files(folder):
            name = path.relative_to(folder).as_posix()
            if harmless.fullmatch(name) is None:
                self._add_file(path, name)

    def add(self, secret: bytes, name: str) -> None:
        """Learn one secret, in its forms."""
        for form in _forms(secret):
            if len(form) >= SHORTEST:
                self._needles.setdefault(form, name)

    def found_in(self, data: bytes) -> str:
        """Return the name of a secret that stands in a text, "" if there is none."""
        for pattern in PATTERNS:
            if pattern.search(data):
                return "a token" if b"umbel1" in pattern.pattern else "a private key"
        return next((name for needle, name in self._needles.items() if needle in data), "")

    def without(self, data: bytes, mark: bytes) -> bytes:
        """Return a text with a mark in the place of each secret that was learned."""
        for needle in self._needles:
            data = data.replace(needle, mark)
        return data

    def _add_file(self, path: Path, name: str) -> None:
        file = regular_file(path)
        if file is None:
            return
        with file:
            about = os.fstat(file.fileno())
            if about.st_mode & _OTHERS or about.st_size > LARGEST:
                return
            data = file.read(LARGEST)
        key = _private_key(data)
        if key is None:
            self.add(data, name)
            self.add(data.strip(), name)
            return
        for form in (data, *_long_lines(data), *key):
            self.add(form, name)


def regular_file(path: Path) -> BinaryIO | None:
    """Open a regular file; None where there is none: no link is followed, no pipe waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return open(descriptor, "rb")


def _files(folder: Path) -> Iterator[Path]:
    left = MOST_FILES
    for path in folder.rglob("*"):
        left -= 1
        if left < 0:
            return
        yield path


def _long_lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if len(line) >= _LINE and b"-----" not in line]


def _private_key(data: bytes) -> tuple[bytes, ...] | None:
    """Return the raw forms of a private key; None if it is none."""
    for load in (load_pem_private_key, load_ssh_private_key):
        try:
            key = load(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            continue
        if isinstance(key, ec.EllipticCurvePrivateKey):
            number = key.private_numbers().private_value
            return (number.to_bytes((key.key_size + 7) // 8, "big"), str(number).encode())
        return (key.private_bytes_raw(),) if isinstance(key, Ed25519PrivateKey) else ()
    return None


def _forms(secret: bytes) -> Iterator[bytes]:
    """Yield a secret as it is, in hex, and in base64 whatever stands before and after it.

    In hex with and without the zeros that it begins with: as a number it is written without them.
    """
    yield secret
    for digits in (secret.hex(), secret.hex().lstrip("0")):
        yield digits.encode()
        yield digits.upper().encode()
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            text = encode(bytes(shift) + secret).rstrip(b"=")
            yield text[(0, 2, 3)[shift] : -1]
