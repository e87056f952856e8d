"""What the issuing CA signs: nodes' leaves, member lists, the servers' leaves.

The key is read from the disk each time, so that a CA rolled over is in force at once. Nothing is
signed while the CA is not in force: then this machine's clock is wrong, or the CA has ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography import x509

from . import issuer_books as books
from .federation_files import (
    SERVER_MARGIN,
    SERVERS,
    authority,
    certificate_pem,
    issued_by,
    server_leaf,
)
from ..protocol.certificates import BACKDATED, Authority, fingerprint
from ..protocol.errors import StateError
from ..protocol.members import LIFE, MemberList
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from .server_toml import ServerSettings

LIST_EVERY = timedelta(days=1)
CA_WARNING = timedelta(days=60)
LISTED = timedelta(days=30)
"""How long a removed node is on the list; its certificates ended weeks before."""
_YOUNG = 0.1
"""Share of a leaf's life within which a renewal gives it again."""


class Signing:
    """The issuing CA's hand."""

    def __init__(self, folder: Path, settings: ServerSettings, life: timedelta | None) -> None:
        """Take the life of a node's leaves, where it is not `node_days` of server.toml."""
        self._folder, self._settings = folder, settings
        self._life = life or timedelta(days=settings.node_days)

    def signer(self, now: datetime) -> Authority:
        """Return the CA that signs, if it may now."""
        found = authority(self._folder)
        begins, ends = found.certificate.not_valid_before_utc, found.certificate.not_valid_after_utc
        if not begins <= now < ends:
            got = f"from {begins:%F %R} to {ends:%F %R} UTC, and now is {now:%F %R}"
            move = "`umbel server roll-ca`, or set this machine's clock"
            raise StateError("issuing CA", "one in force", got, move)
        return found

    def leaves(
        self, node: bytes, site: str,
        keys: tuple[ec.EllipticCurvePublicKey, Ed25519PublicKey], now: datetime,
    ) -> books.Leaves:  # fmt: skip
        """Certify a node's two keys."""
        signer, days = self.signer(now), self._life / timedelta(days=1)
        tls = signer.issue_tls(keys[0], node, site, now, days)
        signing = signer.issue_signing(keys[1], node, site, now, days)
        chain = certificate_pem(tls, signer.certificate)
        return books.Leaves(chain.decode(), certificate_pem(signing).decode())

    def is_young(self, leaves: books.Leaves, now: datetime) -> bool:
        """Tell whether leaves were made just now, by the CA that signs now."""
        signer = self.signer(now)
        for pem in leaves:
            leaf = x509.load_pem_x509_certificate(pem.encode())
            age = now - (leaf.not_valid_before_utc + BACKDATED)
            if not timedelta(0) <= age < _YOUNG * self._life or not issued_by(leaf, signer):
                return False
        return True

    def sign_list(self, db: sqlite3.Connection, now: datetime, *, anew: bool = False) -> None:
        """Sign the member list where it is due: of a day ago, of a CA before, or of the future."""
        known = books.members(db)
        signer = self.signer(now)
        if known is not None and not anew:
            same = known.ca == fingerprint(signer.der)
            if same and -BACKDATED <= now - known.issued < LIST_EVERY:
                return
        epoch = max((known.epoch if known else 0) + 1, books.seconds(now))
        made = MemberList(
            self._settings.name, epoch, now, now + LIFE, books.revoked(db, now - LISTED)
        )
        books.keep_members(
            db, books.Members(epoch, now, fingerprint(signer.der), made.sign(signer))
        )

    def server_leaves(self, now: datetime) -> list[str]:
        """Renew the servers' leaves, and say which; and that the CA's end is near."""
        signer = self.signer(now)
        said = []
        for server in SERVERS:
            names = self._settings.names_of(server)
            try:
                fresh = server_leaf(signer, self._folder, server, names, now + SERVER_MARGIN, now)
            except (OSError, TypeError, *UNREADABLE) as error:
                where, move = str(self._folder / server), "restore .pem and .key from a backup"
                raise StateError(where, "certificate and key of a server", error, move) from error
            if fresh:
                said.append(f"{server}.pem is new")
        left = signer.certificate.not_valid_after_utc - now
        if left < CA_WARNING:
            said.append(f"the issuing CA ends in {left.days} days: `umbel server roll-ca`")
        return said
