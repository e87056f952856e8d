"""Tickets: what admits one node's TLS certificate to the sessions of one run.

A ticket is `umbel/ticket/1` and the length-prefixed fields run, node id, fingerprint of the
TLS certificate, gateway, expiry (seconds since 1970, decimal ASCII) and nonce; then 32 bytes
of HMAC-SHA256 over all that, under the run's own 32-byte key. It admits that certificate
only, for any number of reconnects, until goodbye, expiry or the end of the run. No trust
anchor is in it: it tells the gateway something, and the device nothing.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .certificates import ID_BYTES
from .errors import Malformed, PeerError, SettingsError
from .fields import number, pack, unpack

if TYPE_CHECKING:
    from datetime import datetime

LABEL = b"umbel/ticket/1"
KEY_BYTES = 32
NONCE_BYTES = 16
MAX_BYTES = 4096

_TAG = 32


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket says; `expires` is in seconds since 1970, never after the leaf's end."""

    run: str
    node_id: bytes
    tls_fingerprint: bytes
    gateway: str
    expires: int
    nonce: bytes


def mint(key: bytes, ticket: Ticket) -> bytes:
    """Return the ticket's bytes under the run's key.

    Raises:
        SettingsError: A field has another length than its own; the key is not named.
    """
    fields = (
        ("key", key, KEY_BYTES),
        ("node id", ticket.node_id, ID_BYTES),
        ("TLS fingerprint", ticket.tls_fingerprint, 32),
        ("nonce", ticket.nonce, NONCE_BYTES),
    )
    for name, value, length in fields:
        if len(value) != length:
            raise SettingsError(f"ticket: {name}", f"{length} bytes", len(value))
    body = pack(
        LABEL,
        ticket.run.encode(),
        ticket.node_id,
        ticket.tls_fingerprint,
        ticket.gateway.encode(),
        str(ticket.expires).encode("ascii"),
        ticket.nonce,
    )
    return body + hmac.digest(key, body, "sha256")


def admit(
    key: bytes,
    raw: bytes,
    *,
    run: str,
    node_id: bytes,
    tls_fingerprint: bytes,
    gateway: str,
    now: datetime,
) -> Ticket:
    """Return the ticket of the certificate on the other end of a connection.

    Args:
        key: The run's 32 bytes.
        raw: The ticket's bytes.
        run: Umbel's id of the run that is served.
        node_id: From the TLS certificate that the connection presented.
        tls_fingerprint: SHA-256 of that certificate's DER.
        gateway: The name under which this gateway issued it.
        now: An aware datetime.

    Raises:
        PeerError: Forged, cut, expired, or replayed: it belongs to another run, node,
            certificate or gateway.
    """
    peer = f"node {node_id.hex()}"
    ticket = _parse(key, raw, peer)
    for what, got, expected in (
        ("run", ticket.run, run),
        ("node", ticket.node_id, node_id),
        ("certificate", ticket.tls_fingerprint, tls_fingerprint),
        ("gateway", ticket.gateway, gateway),
    ):
        if got != expected:
            raise PeerError(peer, f"replayed a ticket of another {what}")
    if now.timestamp() >= ticket.expires:
        raise PeerError(peer, "replayed a ticket that has expired")
    return ticket


def _parse(key: bytes, raw: bytes, peer: str) -> Ticket:
    """Read a ticket whose MAC is right; no field is looked at before that."""
    if not _TAG < len(raw) <= MAX_BYTES:
        raise Malformed(peer, "ticket", f"{_TAG} to {MAX_BYTES} bytes", len(raw))
    body, tag = raw[:-_TAG], raw[-_TAG:]
    if not hmac.compare_digest(tag, hmac.digest(key, body, "sha256")):
        raise PeerError(peer, "a forged or damaged ticket, or one of another key")
    run, node_id, tls_fingerprint, gateway, expires, nonce = unpack(LABEL, body, 6, peer)
    at = number(expires, peer)
    try:
        return Ticket(run.decode(), node_id, tls_fingerprint, gateway.decode(), at, nonce)
    except UnicodeDecodeError as error:  # of whoever holds the key
        raise Malformed(peer, "ticket", "UTF-8", "other bytes") from error
