"""What the issuer's database says: tokens, nodes, the member list, by SQL and nowhere else.

Each function works inside a transaction of issuer_store.py. A token is `open` until it is `used`
by the first keys, `expired`, or `revoked`; nothing opens it again, a clock that goes back neither.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from .registry import Node
from ..protocol.certificates import fingerprint
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    import sqlite3

    from ..protocol.enrolment import About
    from ..protocol.enrolment_token import Token

_LIVE = "removed IS NULL"


class Keys(NamedTuple):
    """A node's public keys: SubjectPublicKeyInfo, DER for ours and PEM as Flower takes it."""

    tls: bytes
    signing: bytes
    flower: bytes


class Leaves(NamedTuple):
    """A node's two certificates, PEM; after the TLS leaf comes the issuing CA."""

    tls: str
    signing: str


class Members(NamedTuple):
    """A member list: its epoch, its time, SHA-256 of the CA that signed it, its bytes."""

    epoch: int
    issued: datetime
    ca: bytes
    signed: bytes


def seconds(at: datetime) -> int:
    """Return a time in seconds since 1970."""
    return int(at.timestamp())


# ---- tokens --------------------------------------------------------------------------------


def add_token(
    db: sqlite3.Connection, token: Token, digest: bytes, name: str, site: str, now: int
) -> None:
    """Keep a new token.

    Raises:
        SettingsError: A node or an open token has the name.
    """
    if db.execute(f"SELECT 1 FROM node WHERE name = ? AND {_LIVE}", (name,)).fetchone():  # noqa: S608
        move = f"`umbel server remove {name}` first, where another device takes its place"
        raise SettingsError("--name", "a name that no node has", name, move)
    if db.execute("SELECT 1 FROM token WHERE name = ? AND state = 'open'", (name,)).fetchone():
        move = f"`umbel server token revoke {name}` makes room for another"
        raise SettingsError("--name", "a name that no open token has", name, move)
    db.execute(
        "INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, 'open', NULL)",
        (digest, name, site, b"".join(token.apps), now, token.expires),
    )


def end_tokens(db: sqlite3.Connection, now: int) -> None:
    """Let tokens expire; for good, whatever the clock says later."""
    db.execute("UPDATE token SET state = 'expired' WHERE state = 'open' AND expires <= ?", (now,))


def token(db: sqlite3.Connection, digest: bytes) -> sqlite3.Row | None:
    """Return the token whose secret has this SHA-256."""
    found: sqlite3.Row | None
    found = db.execute("SELECT * FROM token WHERE hash = ?", (digest,)).fetchone()
    return found


def tokens(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return every token, the newest first; `id` is the beginning of its hash."""
    rows = db.execute("SELECT * FROM token ORDER BY created DESC, name").fetchall()
    return [
        {
            "id": row["hash"][:4].hex(),
            **{key: row[key] for key in ("name", "site", "state", "created", "expires")},
            "apps": [row["apps"][i : i + 32].hex() for i in range(0, len(row["apps"]), 32)],
        }
        for row in rows
    ]


def revoke_token(db: sqlite3.Connection, which: str) -> str:
    """Revoke the open token of a name or an id, and return its name.

    Raises:
        SettingsError: There is none.
    """
    for row in db.execute("SELECT hash, name FROM token WHERE state = 'open'").fetchall():
        if which in (row["name"], row["hash"][:4].hex()):
            db.execute("UPDATE token SET state = 'revoked' WHERE hash = ?", (row["hash"],))
            return str(row["name"])
    raise SettingsError("token", "name or id of an open token", which, "`umbel server token list`")


# ---- nodes ---------------------------------------------------------------------------------


def add_node(
    db: sqlite3.Connection, digest: bytes, node: bytes, keys: Keys, leaves: Leaves,
    about: tuple[About, int], now: int,
) -> None:  # fmt: skip
    """Use a token up: from here on it is this node's."""
    name, site = db.execute("SELECT name, site FROM token WHERE hash = ?", (digest,)).fetchone()
    db.execute(
        "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?, NULL, NULL)",
        (node, name, site, *keys, *leaves, now, now, *_said(*about)),
    )
    db.execute("UPDATE token SET state = 'used', node = ? WHERE hash = ?", (node, digest))


def renew_node(
    db: sqlite3.Connection, node: bytes, leaves: Leaves, about: tuple[About, int], now: int
) -> None:
    """Keep a node's leaves and what it says of itself."""
    db.execute(
        "UPDATE node SET tls = ?, signing = ?, renewed = ?, about = ?, skew = ? WHERE id = ?",
        (*leaves, now, *_said(*about), node),
    )


def node(db: sqlite3.Connection, which: bytes) -> sqlite3.Row | None:
    """Return the node of an id."""
    found: sqlite3.Row | None
    found = db.execute("SELECT * FROM node WHERE id = ?", (which,)).fetchone()
    return found


def named(db: sqlite3.Connection, which: str) -> sqlite3.Row:
    """Return the node of a name or of an id in hex; of a name the one that is not removed.

    Raises:
        SettingsError: There is none.
    """
    query = f"SELECT * FROM node WHERE (name = ? AND {_LIVE}) OR hex(id) = ?"  # noqa: S608
    found: sqlite3.Row | None = db.execute(query, (which, which.upper())).fetchone()
    if found is None:
        move = "`umbel server status` lists them"
        raise SettingsError("NODE", "name or id of an enrolled node", which, move)
    return found


def keys_of(row: sqlite3.Row) -> Keys:
    """Return the keys that a node is registered with."""
    return Keys(row["tls_key"], row["signing_key"], row["flower_key"])


def has_keys(db: sqlite3.Connection, keys: Keys) -> bool:
    """Tell whether a node, removed or not, has one of these keys."""
    query = "SELECT 1 FROM node WHERE tls_key = ? OR signing_key = ? OR flower_key = ?"
    return db.execute(query, keys).fetchone() is not None


def set_flower_node(db: sqlite3.Connection, node_id: bytes, flower_node: int | None) -> bool:
    """Keep what the SuperLink calls a node, or that it has forgotten a removed one.

    Returns:
        Whether the node still is (or is no more) a member, as that supposes.
    """
    wanted = "IS NULL" if flower_node is not None else "IS NOT NULL"
    query = f"UPDATE node SET flower_node = ? WHERE id = ? AND removed {wanted}"  # noqa: S608
    text = None if flower_node is None else str(flower_node)  # 64 bits without a sign
    return db.execute(query, (text, node_id)).rowcount == 1


def remove_node(db: sqlite3.Connection, node_id: bytes, cause: str, now: int) -> None:
    """Revoke a node; nothing takes it back."""
    query = "UPDATE node SET removed = ?, cause = ? WHERE id = ? AND removed IS NULL"
    db.execute(query, (now, cause, node_id))


def live(db: sqlite3.Connection) -> list[sqlite3.Row]:
    """Return the nodes that are not removed, by name."""
    query = f"SELECT * FROM node WHERE {_LIVE} ORDER BY name"  # noqa: S608
    return db.execute(query).fetchall()


def forgotten(db: sqlite3.Connection) -> list[sqlite3.Row]:
    """Return removed nodes that the SuperLink still knows."""
    query = "SELECT * FROM node WHERE removed IS NOT NULL AND flower_node IS NOT NULL"
    return db.execute(query).fetchall()


def revoked(db: sqlite3.Connection, since: datetime) -> frozenset[bytes]:
    """Return the ids of nodes that were removed after a time."""
    query = "SELECT id FROM node WHERE removed > ?"
    return frozenset(row[0] for row in db.execute(query, (seconds(since),)))


def registry_rows(db: sqlite3.Connection) -> list[dict[str, str]]:
    """Return the rows of nodes.json: members that the SuperLink knows."""
    return [asdict(_registered(row)) for row in live(db) if row["flower_node"] is not None]


def listed(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return what an operator may see of every node, removed ones last."""
    rows = db.execute("SELECT * FROM node ORDER BY removed IS NOT NULL, name, enrolled").fetchall()
    return [
        {
            "id": row["id"].hex(),
            **{key: row[key] for key in ("name", "site", "enrolled", "renewed", "removed")},
            "state": row["cause"] or ("enrolled" if row["flower_node"] else "not registered yet"),
            "flower_node": row["flower_node"] and int(row["flower_node"]),
            "expires": seconds(_leaf(row["signing"]).not_valid_after_utc),
            "about": json.loads(row["about"]),
            "skew_s": row["skew"],
        }
        for row in rows
    ]


# ---- the member list -----------------------------------------------------------------------


def members(db: sqlite3.Connection) -> Members | None:
    """Return the newest member list."""
    row = db.execute("SELECT epoch, issued, ca, signed FROM members").fetchone()
    return row and Members(row[0], datetime.fromtimestamp(row[1], UTC), row[2], row[3])


def keep_members(db: sqlite3.Connection, new: Members) -> None:
    """Keep a new member list."""
    values = (new.epoch, seconds(new.issued), new.ca, new.signed)
    db.execute("INSERT OR REPLACE INTO members VALUES (1, ?, ?, ?, ?)", values)


def _said(about: About, skew: int) -> tuple[str, int]:
    """Return what a device says of itself, and by how much its clock is ahead of ours."""
    return json.dumps(asdict(about)), skew


def _leaf(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def _registered(row: sqlite3.Row) -> Node:
    return Node(
        name=row["name"],
        id=row["id"].hex(),
        site=row["site"],
        flower_key=row["flower_key"].hex(),
        tls_fingerprint=fingerprint(_leaf(row["tls"]).public_bytes(Encoding.DER)).hex(),
        signing_fingerprint=fingerprint(_leaf(row["signing"]).public_bytes(Encoding.DER)).hex(),
    )
