"""What `umbel server doctor` looks at in a federation's directory; nothing is changed.

Each file by itself, for a doctor is asked when some are missing. Private keys are read to be
compared with their certificates, by whoever may read them; `issuing.key` only where that is this
user, for the issuer may have an account of its own. The issuer's database is opened read-only.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from . import issuer_books, registry
from .federation_files import (
    ISSUING,
    ISSUING_KEY,
    MEMBERS,
    NODES,
    ROOT,
    ROOT_KEY,
    SERVERS,
    leaf_names,
    organisation,
)
from .issuer_store import FILE as BOOKS
from .server_toml import FILE as SETTINGS
from .server_toml import ServerSettings
from ..host.doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from ..host.doctor_machine import private
from ..host.doctor_tls import sound
from ..protocol.errors import Refused, SettingsError, StateError
from ..protocol.members import MemberList
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from ..host.doctor import Finding

DEV_KEY = "ca.key"
LEAF_SOON = timedelta(days=14)
"""A server's leaf that ends so soon was not renewed: the issuer does it with 30 days left."""
ISSUING_SOON = timedelta(days=60)
"""An issuing CA that ends so soon wants its successor."""
ROOT_SOON = timedelta(days=365)
"""A root that ends so soon: every device must enrol anew before."""
LIST_SOON = timedelta(days=3)
"""A member list that ends so soon was not signed anew: the issuer does it daily."""
BOOKS_S = 5.0
"""Seconds to wait for the issuer's database while another program writes it."""
_RENEW = "start the issuer, which renews it: umbel server up"
_RESTORE = "umbel server restore, from a backup"

FILES = Table({
    "federation.bad": Kind(PROBLEM, "server.toml is missing or wrong"),
    "federation.ok": Kind(OK, "server.toml is read"),
    "federation.development": Kind(NOTE, "a development federation of `umbel up`: no server.toml, "
                                   "no issuer"),
    "ca.bad": Kind(PROBLEM, "the root certificate is missing, damaged or not in force"),
    "ca.soon": Kind(WARNING, "the root ends within a year"),
    "ca.key-here": Kind(NOTE, "the root's key lies on this machine: a development CA"),
    "ca.key-away": Kind(OK, "the root's key is not on this machine"),
    "issuing.bad": Kind(PROBLEM, "no issuing CA is in force, or its key is missing or another's"),
    "issuing.soon": Kind(WARNING, "the newest issuing CA ends within 60 days"),
    "issuing.ok": Kind(OK, "the issuing CA, and when it ends"),
    "server.missing": Kind(PROBLEM, "a server's certificate is missing or no certificate"),
    "server.ended": Kind(PROBLEM, "a server's certificate is not in force"),
    "server.soon": Kind(WARNING, "a server's certificate ends within 14 days: it was not renewed"),
    "server.names": Kind(PROBLEM, "a server's certificate lacks a name of server.toml"),
    "server.chain": Kind(PROBLEM, "a server's certificate is by no CA of this federation"),
    "server.key": Kind(PROBLEM, "a server's key is missing, or of another certificate"),
    "server.ok": Kind(OK, "a server's certificate and key, its names and its end"),
    "members.bad": Kind(PROBLEM, "there is no member list in force: devices join no secure round"),
    "members.soon": Kind(WARNING, "the member list ends within 3 days: it was not signed anew"),
    "members.ok": Kind(OK, "the member list, whom it revokes and its end"),
    "nodes.bad": Kind(PROBLEM, "the registry of nodes cannot be read"),
    "nodes.ok": Kind(OK, "how many nodes are enrolled"),
    "books.bad": Kind(PROBLEM, "the issuer's database is missing or damaged"),
    "books.ok": Kind(OK, "the issuer's database is whole"),
    "tokens.open": Kind(NOTE, "enrolment tokens that nobody has used yet"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """What could be read of a federation's directory, whatever else is broken."""

    folder: Path
    settings: ServerSettings | None
    wrong: str
    """What is wrong with server.toml."""
    development: bool
    """Whether `umbel up` made it."""
    root: x509.Certificate | None
    issuing: tuple[x509.Certificate, ...]

    @classmethod
    def read(cls, folder: Path) -> Place:
        """Read what there is."""
        settings, wrong = None, ""
        try:
            settings = ServerSettings.read(folder)
        except SettingsError as error:
            wrong = str(error)
        development = not (folder / SETTINGS).exists() and (folder / "nodes").is_dir()
        roots = _certificates(folder / ROOT)
        return cls(folder, settings, wrong, development, roots[0] if roots else None,
                   _certificates(folder / ISSUING))  # fmt: skip

    @property
    def renew(self) -> str:
        """What makes certificates and lists anew."""
        return "umbel up makes it anew" if self.development else _RENEW

    @property
    def name(self) -> str:
        """The federation, "" where that is not known."""
        with suppress(*UNREADABLE):
            return organisation(self.root) if self.root else ""
        return ""


def directory(place: Place) -> Iterator[Finding]:
    """Look at server.toml, modes and owners."""
    folder = place.folder
    if place.settings is not None:
        yield FILES("federation.ok", f"{folder / SETTINGS}: the federation {place.settings.name!r}")
    elif place.development:
        yield FILES("federation.development", f"{folder}: made by `umbel up`")
    else:
        yield FILES("federation.bad", place.wrong, f"mend {folder / SETTINGS}, or {_RESTORE}")
    keys = [f"{server}.key" for server in SERVERS]
    names = ("", *keys, DEV_KEY, ROOT_KEY, "root", ISSUING_KEY, BOOKS, "tickets", NODES)
    yield from private(*(folder / name for name in names))


def authorities(place: Place, now: datetime) -> Iterator[Finding]:
    """Look at the root, where its key is, and at the issuing CAs."""
    file = place.folder / ROOT
    if place.root is None or not _in_force(place.root, now):
        what = "not in force" if place.root else "missing, or no certificate"
        yield FILES("ca.bad", f"{file}: {what}", f"set the clock, or {_RESTORE}")
    elif place.root.not_valid_after_utc - now < ROOT_SOON:
        line = f"{file}: ends {place.root.not_valid_after_utc:%Y-%m-%d}, and every device with it"
        yield FILES("ca.soon", line, "umbel server init a new one, and enrol the devices there")
    key = next((place.folder / k for k in (ROOT_KEY, DEV_KEY) if (place.folder / k).exists()), None)
    if key is None:
        yield FILES("ca.key-away", "the root's key is not in this directory")
    else:
        line = f"{key}: whoever has this machine can add members (development CA)"
        fix = "" if place.development else f"move {key} to another machine, offline"
        yield FILES("ca.key-here", line, fix)
    if not place.development:
        yield from _issuing(place, now)


def _issuing(place: Place, now: datetime) -> Iterator[Finding]:
    """Look at the issuing CA and its key."""
    file, roll = place.folder / ISSUING, "umbel server roll-ca"
    newest = place.issuing[0] if place.issuing else None
    if newest is None or not _in_force(newest, now) or not _by(newest, place.root):
        yield FILES("issuing.bad", f"{file}: no issuing CA of this root in force", roll)
        return
    secret = place.folder / ISSUING_KEY
    if os.access(secret, os.R_OK) or not secret.exists():
        wrong = _key_wrong(secret, newest)
        if wrong:
            yield FILES("issuing.bad", wrong, f"{_RESTORE}, or {roll}")
            return
    line = f"{file}: ends {newest.not_valid_after_utc:%Y-%m-%d}"
    if newest.not_valid_after_utc - now < ISSUING_SOON:
        yield FILES("issuing.soon", line, roll)
    else:
        yield FILES("issuing.ok", line)


def servers(place: Place, now: datetime) -> Iterator[Finding]:
    """Look at the certificates of gateway, front and SuperLink."""
    for server in SERVERS:
        found = list(_server(place, server, now))
        yield from found
        if not any(finding.severity == PROBLEM for finding in found):
            leaf = _certificates(place.folder / f"{server}.pem")[0]
            until, names = leaf.not_valid_after_utc, ", ".join(leaf_names(leaf))
            yield FILES("server.ok", f"{server}.pem: {names}; until {until:%Y-%m-%d %H:%M} UTC")


def _server(place: Place, server: str, now: datetime) -> Iterator[Finding]:
    file = place.folder / f"{server}.pem"
    chain = _certificates(file)
    if not chain:
        yield FILES("server.missing", f"{file}: missing, or no certificate", place.renew)
        return
    leaf = chain[0]
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begins <= now <= ends:
        line = f"{file}: in force {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, not now"
        yield FILES("server.ended", line, f"set the clock, or {place.renew}")
    elif ends - now < LEAF_SOON:
        yield FILES("server.soon", f"{file}: ends {ends:%Y-%m-%d %H:%M} UTC", place.renew)
    if place.settings is not None:
        borne = _names(leaf)
        missing = [name for name in place.settings.names_of(server) if name not in borne]
        if missing:
            line = f"{file}: bears {', '.join(borne) or 'no name'}, but not {', '.join(missing)}"
            yield FILES("server.names", line, place.renew)
    if place.root is not None and not any(_by(leaf, ca) for ca in (place.root, *place.issuing)):
        yield FILES(
            "server.chain", f"{file}: issued by {leaf.issuer.rfc4514_string()}", place.renew
        )
    if wrong := _key_wrong(place.folder / f"{server}.key", leaf):
        yield FILES("server.key", wrong, f"remove {file}; {place.renew}")


def members(place: Place, now: datetime) -> Iterator[Finding]:
    """Look at the member list and the registry of nodes."""
    file = place.folder / MEMBERS
    try:
        yield _members(place, file.read_bytes(), now)
    except OSError as error:
        yield FILES("members.bad", f"{file}: {error.strerror}", place.renew)
    try:
        nodes = registry.read(place.folder)
        yield FILES("nodes.ok", f"{len(nodes)} nodes are enrolled")
    except StateError as error:
        yield FILES("nodes.bad", str(error), place.renew)


def _members(place: Place, raw: bytes, now: datetime) -> Finding:
    """Return what is to be said of a member list, by whichever CA has signed it."""
    authorities_ = (*place.issuing, *([place.root] if place.root else []))
    keys = [key for ca in authorities_ if (key := _public(ca)) is not None]
    try:
        found = MemberList.open(raw, keys, place.name)
        found.check(now)
    except Refused as error:
        return FILES("members.bad", f"{place.folder / MEMBERS}: {error}", place.renew)
    line = f"member list: epoch {found.epoch}, {len(found.revoked)} removed, "
    line += f"until {found.expires:%Y-%m-%d %H:%M} UTC"
    if found.expires - now < LIST_SOON:
        return FILES("members.soon", line, place.renew)
    return FILES("members.ok", line)


def books(place: Place, now: datetime) -> Iterator[Finding]:
    """Look at the issuer's database, and for tokens that nobody has used."""
    file = place.folder / BOOKS
    if place.development:
        return
    try:
        address = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, BOOKS_S, uri=True)) as db:
            db.row_factory = sqlite3.Row
            said = [row[0] for row in db.execute("PRAGMA quick_check(1)")]
            tokens = issuer_books.tokens(db)
        limit = now.timestamp()
        waiting = [one for one in tokens if one["state"] == "open" and one["expires"] > limit]
    except (sqlite3.Error, OSError, TypeError, ValueError, AttributeError) as error:
        yield FILES("books.bad", f"{file}: {error}", _RESTORE)
        return
    if said != ["ok"]:
        yield FILES("books.bad", f"{file}: {said or 'no database'}", _RESTORE)
        return
    yield FILES("books.ok", f"{file}: whole")
    if waiting:
        names = ", ".join(str(one["name"]) for one in waiting[:5])
        more = ", …" if len(waiting) > 5 else ""  # noqa: PLR2004
        line = f"{len(waiting)} enrolment tokens wait for their device: {names}{more}"
        yield FILES("tokens.open", line, "umbel server token list; umbel server token revoke NAME")


def _certificates(file: Path) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a file; none where it is missing or something else."""
    with suppress(OSError, *UNREADABLE):
        return tuple(map(sound, x509.load_pem_x509_certificates(file.read_bytes())))
    return ()


def _public(ca: x509.Certificate) -> ec.EllipticCurvePublicKey | None:
    with suppress(*UNREADABLE):
        key = ca.public_key()
        return key if isinstance(key, ec.EllipticCurvePublicKey) else None
    return None


def _names(leaf: x509.Certificate) -> list[str]:
    with suppress(*UNREADABLE):
        return leaf_names(leaf)
    return []


def _in_force(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _by(certificate: x509.Certificate, ca: x509.Certificate | None) -> bool:
    """Tell whether a CA's own key signed a certificate."""
    with suppress(TypeError, InvalidSignature, *UNREADABLE):
        if ca is not None:
            certificate.verify_directly_issued_by(ca)
            return True
    return False


def _key_wrong(file: Path, certificate: x509.Certificate) -> str:
    """Return what is wrong with the key of a certificate; empty where nothing is."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
        return "" if key.public_key() == certificate.public_key() else f"{file}: another's key"
    except OSError as error:
        return f"{file}: {error.strerror}"
    except UNREADABLE:
        return f"{file}: no private key"
