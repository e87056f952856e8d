"""A new issuing CA under the same root: before the old one ends, or when its key may be known.

The old ones stay trusted until they end, so that nobody notices: nodes and servers get leaves of
the new one when they renew. Where a key is known to others that is not enough: make a new
federation, for nothing takes a CA back (docs/operations.md).

The certificate is written before the key: who is killed in between has a CA too many, never a key
without its certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from .federation_files import (
    ISSUING,
    ISSUING_KEY,
    ROOT,
    certificate_pem,
    issuing,
    key_pem,
    organisation,
)
from .issuer_store import locked
from .plain_files import read_file, why
from ..host.whole_file import write_whole
from ..protocol.certificates import Authority
from ..protocol.errors import SettingsError, StateError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_LIMIT = 1 << 16


def roll(folder: Path, root_key: Path, now: datetime) -> x509.Certificate:
    """Make a new issuing CA, and return its certificate.

    Args:
        folder: Of the federation.
        root_key: File of the root's key.
        now: An aware datetime.

    Raises:
        SettingsError: That is not the root's key.
        StateError: A file cannot be read or written.
    """
    root = _root(folder, root_key)
    made = root.issue_authority(now)
    with locked(folder):
        try:
            kept = [old for old in issuing(folder) if old.not_valid_after_utc > now]
            write_whole(folder / ISSUING, certificate_pem(made.certificate, *kept), 0o644)
            write_whole(folder / ISSUING_KEY, key_pem(made.key), 0o600)
        except OSError as error:
            where = str(error.filename or folder)
            raise StateError(where, "a file to write", why(error), "see to the disk") from error
    return made.certificate


def _root(folder: Path, root_key: Path) -> Authority:
    """Return the root, whose key may lie elsewhere."""
    try:
        root = x509.load_pem_x509_certificate(read_file(folder / ROOT, _LIMIT))
    except (OSError, *UNREADABLE) as error:
        raise StateError(str(folder / ROOT), "the root certificate", why(error)) from error
    try:
        key = load_pem_private_key(read_file(root_key, _LIMIT), None)
    except (OSError, *UNREADABLE) as error:
        move = "`--offline-ca DIR` says where the root's key is"
        raise SettingsError(str(root_key), "the root's key", why(error), move) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingsError(str(root_key), "the root's key", "one of another kind")
    if key.public_key() != root.public_key():
        raise SettingsError(str(root_key), f"the key of {folder / ROOT}", "another key")
    return Authority(organisation(root), root, key)
