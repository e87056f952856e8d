"""The issuer: it gives nodes their certificates, and takes their membership.

`Issuer` is the work of it, under the lock of issuer_store.py and without any network of its own:
issuer_socket.py lets the front and the commands of `umbel server` ask for it in a process of its
own, which alone opens `issuing.key`. A change is committed before anything of it leaves, so one
who is killed in the middle has lost nothing: the same request finds the same node, its keys being
the same, and the same certificates.

    enrol     token (open, not past) -> node and leaves, committed at once; then the SuperLink is
              told of the node's Flower key, then the registry is written
    renew     by the node's own keys, at any time while it is not removed; a young leaf is given
              again, so that repeats change nothing
    remove    the node is revoked, and the next member list lies on the disk; then the registry
              and the SuperLink forget it
    refresh   what time asks for: tokens end, the list is signed anew every day, servers' leaves
              are renewed, files and the SuperLink are brought to what the database says

A CSR gives its public key and nothing else: id, name and site are the token's. The epoch of a
member list is the time of its signing, in seconds, or one more than the last: it goes up even
where a backup brought back an older database.
"""

from __future__ import annotations

import json
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from . import issuer_books as books
from .federation_files import (
    MEMBERS,
    NODES,
    ROOT,
    certificate_pem,
    issuing,
    organisation,
    write_changed,
)
from .issuer_registration import Registration
from .issuer_signing import Signing
from .issuer_store import locked, transaction
from .server_toml import FILE as SETTINGS
from .server_toml import ServerSettings
from ..protocol.certificates import BACKDATED, ID_BYTES, fingerprint
from ..protocol.enrolment import (
    Declined,
    EnrolAnswer,
    EnrolRequest,
    LeaveRequest,
    RenewRequest,
    requested_flower,
    requested_signing,
    requested_tls,
)
from ..protocol.enrolment_token import SECRET_BYTES, Token
from ..protocol.errors import SettingsError, StateError, UmbelError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ec

    from .registrar import Registrar
    from .token_terms import Terms


class Issuer:
    """The issuing CA of one federation at work."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], datetime],
        registrar: Registrar,
        *,
        life: timedelta | None = None,
    ) -> None:
        """Read the settings; the key is read when something is signed.

        Args:
            folder: Of the federation.
            clock: Returns an aware datetime.
            registrar: The SuperLink.
            life: Of a node's leaves, where it is not `node_days` of server.toml.

        Raises:
            SettingsError: server.toml is none, or names another federation.
            StateError: The root cannot be read.
        """
        self._folder, self._clock = folder, clock
        self._registration = Registration(folder, registrar)
        self._settings = ServerSettings.read(folder)
        self._check_name()
        self._signing = Signing(folder, self._settings, life)

    # ---- what devices ask for ---------------------------------------------------------------

    def ca(self) -> bytes:
        """Return the root, PEM."""
        file = self._folder / ROOT
        try:
            return file.read_bytes()
        except OSError as error:
            raise StateError(str(file), "the root certificate", error.strerror) from error

    def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        """Make a node of whoever holds a token.

        Raises:
            Declined: The token, the federation or a CSR will not do; or the SuperLink is away.
            StateError: The database, the disk or the CA does not let it.
        """
        self._check_ours(request.federation)
        tls, signing = requested_tls(request.tls), requested_signing(request.signing)
        keys = _keys(tls, signing, requested_flower(request.flower))
        digest = sha256(request.secret).digest()
        with locked(self._folder):
            now = self._clock()
            with transaction(self._folder) as db:
                books.end_tokens(db, books.seconds(now))
            with transaction(self._folder) as db:
                found = self._admitted(db, digest, keys, now)
                if found is None:
                    found = secrets.token_bytes(ID_BYTES)
                    site = db.execute("SELECT site FROM token WHERE hash = ?", (digest,)).fetchone()
                    leaves = self._signing.leaves(found, site[0], (tls, signing), now)
                    about = request.about, request.about.time - books.seconds(now)
                    at = books.seconds(now)
                    books.add_node(db, digest, found, keys, leaves, about, at)
                self._signing.sign_list(db, now)
        return self._member(found)

    def renew(self, request: RenewRequest) -> EnrolAnswer:
        """Give a node new leaves for its own keys.

        Raises:
            Declined: It is no node of ours or was removed, or these are not its keys.
            StateError: The database, the disk or the CA does not let it.
        """
        self._check_ours(request.federation)
        tls, signing = requested_tls(request.tls), requested_signing(request.signing)
        with locked(self._folder):
            now = self._clock()
            with transaction(self._folder) as db:
                row = _of_ours(db, request.id)
                if (_spki(tls), _spki(signing)) != (row["tls_key"], row["signing_key"]):
                    raise Declined("other keys")
                leaves = books.Leaves(row["tls"], row["signing"])
                if not self._signing.is_young(leaves, now):
                    leaves = self._signing.leaves(request.id, row["site"], (tls, signing), now)
                about = request.about, request.about.time - books.seconds(now)
                books.renew_node(db, request.id, leaves, about, books.seconds(now))
                self._signing.sign_list(db, now)
        return self._member(request.id)

    def leave(self, request: LeaveRequest) -> None:
        """Let a node go that says so itself.

        Raises:
            Declined: It is no node of ours, or another key has signed.
            StateError: The database, the disk or the CA does not let it.
        """
        self._check_ours(request.federation)
        with locked(self._folder), transaction(self._folder) as db:
            row = books.node(db, request.id)
        if row is None:
            raise Declined("unknown node")
        key = load_der_public_key(row["signing_key"])
        if not isinstance(key, Ed25519PublicKey) or not request.is_of(key):
            raise Declined("other keys")
        self._remove(row, "left")

    # ---- what the operator asks for ---------------------------------------------------------

    def token(self, terms: Terms) -> Token:
        """Make a token.

        Raises:
            SettingsError: A node or an open token has the name.
            StateError: The database, the disk or the CA does not let it.
        """
        with locked(self._folder), transaction(self._folder) as db:
            now = books.seconds(self._clock())
            books.end_tokens(db, now)
            root = x509.load_pem_x509_certificate(self.ca())
            made = Token(
                federation=self._settings.name,
                root=fingerprint(root.public_bytes(Encoding.DER)),
                address=self._settings.front,
                secret=secrets.token_bytes(SECRET_BYTES),
                expires=now + terms.seconds,
                apps=terms.apps,
            )
            digest = sha256(made.secret).digest()
            books.add_token(db, made, digest, terms.name, terms.site, now)
        return made

    def tokens(self) -> list[dict[str, Any]]:
        """Return every token without its secret, the newest first."""
        with locked(self._folder), transaction(self._folder) as db:
            books.end_tokens(db, books.seconds(self._clock()))
            return books.tokens(db)

    def revoke_token(self, which: str) -> str:
        """Revoke the open token of a name or id, and return its name.

        Raises:
            SettingsError: There is none.
        """
        with locked(self._folder), transaction(self._folder) as db:
            return books.revoke_token(db, which)

    def nodes(self) -> list[dict[str, Any]]:
        """Return what is known of every node."""
        with locked(self._folder), transaction(self._folder) as db:
            return books.listed(db)

    def remove(self, which: str) -> dict[str, Any]:
        """Revoke the node of a name or an id in hex.

        Returns:
            `id`, `name`, and whether the SuperLink has been told already (`superlink`).

        Raises:
            SettingsError: There is none.
            StateError: The database, the disk or the CA does not let it.
        """
        with locked(self._folder), transaction(self._folder) as db:
            row = books.named(db, which)
        told = self._remove(row, "removed")
        return {"id": row["id"].hex(), "name": row["name"], "superlink": told}

    # ---- what time asks for -----------------------------------------------------------------

    def refresh(self, *, superlink: bool = True) -> list[str]:
        """Do what is due, at the SuperLink too unless told not to; return lines about it."""
        with locked(self._folder):
            now = self._clock()
            with transaction(self._folder) as db:
                books.end_tokens(db, books.seconds(now))
                self._signing.sign_list(db, now)
            said = self._signing.server_leaves(now)
            self._write_files()  # before the SuperLink, which may take its time
        if superlink:
            said += self._registration.reconcile()
            with locked(self._folder):
                self._write_files()
        return said

    # ---- inside -----------------------------------------------------------------------------

    def _check_name(self) -> None:
        """Refuse settings of another federation: its name is in every certificate."""
        try:
            name = organisation(x509.load_pem_x509_certificate(self.ca()))
        except UNREADABLE as error:
            move = "restore it from a backup"
            raise StateError(str(self._folder / ROOT), "a certificate", error, move) from error
        if name != self._settings.name:
            where = f"{self._folder / SETTINGS}: name"
            raise SettingsError(where, f"{name!r}, as in {ROOT}", self._settings.name)

    def _check_ours(self, federation: str) -> None:
        if federation != self._settings.name:
            raise Declined("other federation")

    def _admitted(
        self, db: sqlite3.Connection, digest: bytes, keys: books.Keys, now: datetime
    ) -> bytes | None:
        """Return the node that these keys have become by the token; None: they may become one."""
        token = books.token(db, digest)
        if token is None:
            raise Declined("token unknown")
        if token["state"] == "used":
            row = books.node(db, token["node"])
            if row is None or books.keys_of(row) != keys:
                raise Declined("token used")
            if row["removed"] is not None:
                raise Declined("removed")
            if token["expires"] <= books.seconds(now):
                raise Declined("token expired")
            return bytes(row["id"])
        if token["state"] != "open":
            raise Declined(f"token {token['state']}")
        if books.seconds(now + BACKDATED) < token["created"]:
            line = "the server's clock stands before the making of this token; its operator sets it"
            raise Declined("unavailable", line)
        if books.has_keys(db, keys):
            raise Declined("other keys")
        return None

    def _member(self, node: bytes) -> EnrolAnswer:
        """Return what a node is told, once the SuperLink and the registry know it."""
        with locked(self._folder), transaction(self._folder) as db:
            row = _of_ours(db, node)
        if row["flower_node"] is None:
            try:
                self._registration.register(row)
            except StateError as error:
                line = "the SuperLink is away; try again in a minute"
                raise Declined("unavailable", line) from error
        with locked(self._folder):
            self._write_files()
            with transaction(self._folder) as db:
                row, members = _of_ours(db, node), books.members(db)
        settings = self._settings
        return EnrolAnswer(
            federation=settings.name,
            id=node,
            name=row["name"],
            site=row["site"],
            gateway=settings.gateway,
            superlink=settings.front,
            gateways=settings.names,
            tls=row["tls"],
            signing=row["signing"],
            issuing=tuple(certificate_pem(ca).decode() for ca in issuing(self._folder)),
            members=members.signed if members else b"",
            flower_node=int(row["flower_node"]),
        )

    def _remove(self, row: sqlite3.Row, cause: str) -> bool:
        """Revoke a node; tell whether the SuperLink has been told."""
        with locked(self._folder):
            with transaction(self._folder) as db:
                fresh = books.node(db, row["id"])
                if fresh is not None and fresh["removed"] is None:
                    now = self._clock()
                    books.remove_node(db, row["id"], cause, books.seconds(now))
                    self._signing.sign_list(db, now, anew=True)
            self._write_files()
        try:
            self._registration.forget()
        except UmbelError:
            return False
        return True

    def _write_files(self) -> None:
        """Bring the derived files to what the database says; under the lock."""
        with transaction(self._folder) as db:
            rows, members = books.registry_rows(db), books.members(db)
        try:
            if members is not None:
                write_changed(self._folder / MEMBERS, members.signed, 0o644)
            text = json.dumps(rows, indent=1)
            write_changed(self._folder / NODES, text.encode(), 0o600)
        except OSError as error:
            where = str(error.filename or self._folder)
            raise StateError(where, "a file to write", error.strerror, "see to the disk") from error


def _of_ours(db: sqlite3.Connection, node: bytes) -> sqlite3.Row:
    """Return a member's row, or decline."""
    row = books.node(db, node)
    if row is None:
        raise Declined("unknown node")
    if row["removed"] is not None:
        raise Declined("removed")
    return row


def _keys(
    tls: ec.EllipticCurvePublicKey, signing: Ed25519PublicKey, flower: ec.EllipticCurvePublicKey
) -> books.Keys:
    pem = flower.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return books.Keys(_spki(tls), _spki(signing), pem)


def _spki(key: ec.EllipticCurvePublicKey | Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
