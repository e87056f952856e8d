"""What a device says of its own clock, which may be years off: a board without a battery.

Every certificate is judged by it, so with a wrong clock this device trusts nobody and nobody trusts
it. Nothing that comes over the network sets it, and no duration is measured with it. What shows
that it is wrong, and by how much:

| evidence | shows |
|---|---|
| an own certificate begins later | it is behind, by the difference at least |
| an own certificate has ended | it is ahead, or the certificate was not renewed |
| the gateway's certificate does not hold now | the same of both clocks |
| the time in the gateway's `Welcome` | the difference of two clocks |

A clock that is surely behind is waited for: a board sets it soon after it has a network.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BEARABLE = timedelta(minutes=2)
"""A difference of clocks that is not worth a line: certificates begin five minutes early."""
PATIENCE_S = 60.0
"""How long a clock that is behind is waited for, before the device gives up until it is asked."""
LOOK_S = 0.5
ASK_S = 5.0
"""For a look at the gateway's certificate."""
_UNITS = (("years", 31_557_600), ("days", 86_400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


def misfit(name: str, leaf: x509.Certificate, now: datetime) -> str:
    """Return what is wrong between a certificate's life and this clock; empty where it fits."""
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    says = f"this device's clock says {_minute(now)}"
    if now < begins:
        return (
            f"{name} begins {_minute(begins)}, but {says}: it is at least {span(begins - now)} "
            f"behind; set it (NTP)"
        )
    if now > ends:
        return (
            f"{name} ended {_minute(ends)}, and {says}, {span(now - ends)} later: renew the "
            f"certificate, or set the clock if it is ahead"
        )
    return ""


def skew(theirs: int, now: datetime) -> str:
    """Return what the gateway's clock shows of this one; empty where both agree or it said none.

    Args:
        theirs: Seconds since 1970.
        now: By this device's clock.
    """
    try:
        ahead = now - datetime.fromtimestamp(theirs, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    if not theirs or abs(ahead) <= BEARABLE:
        return ""
    which = "ahead of" if ahead > timedelta(0) else "behind"
    return f"this device's clock is {span(abs(ahead))} {which} the gateway's; set it (NTP)"


def settle(
    fault: Callable[[], str],
    behind: Callable[[], bool],
    log: Callable[[str], None],
    patience: float | None = None,
) -> None:
    """Wait, for a while, until a clock that is surely behind has been set; say so once.

    Args:
        fault: What is wrong now, empty when nothing is.
        behind: Whether that can only be a clock that is behind.
        log: Takes the line.
        patience: Seconds, in place of `PATIENCE_S`.
    """
    found, seconds = fault(), PATIENCE_S if patience is None else patience
    if not found or not behind():
        return
    log(f"{found}; waiting {seconds:.0f} s for that")
    until = time.monotonic() + seconds
    while time.monotonic() < until and behind():
        time.sleep(LOOK_S)
    if not fault():
        log("this device's clock has been set")


def gateway_leaf(
    address: str, root: x509.Certificate, issuing: Sequence[x509.Certificate] = ()
) -> x509.Certificate | None:
    """Return the certificate that the pinned root, or a CA below it, issued for who listens there.

    For a line in the log only: nobody is trusted for it, and nothing is sent.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), ASK_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        shown = secure.getpeercert(binary_form=True) or b""
        for authority in (root, *(ca for ca in issuing if issued(_der(ca), root))):
            if (leaf := issued(shown, authority)) is not None:
                return leaf
    return None


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def issued(der: bytes, root: x509.Certificate) -> x509.Certificate | None:
    """Return a certificate if this CA's own key has signed it; a stranger may have made it."""
    with suppress(TypeError, InvalidSignature, *UNREADABLE):
        leaf = x509.load_der_x509_certificate(der)
        leaf.verify_directly_issued_by(root)
        return leaf
    return None


def span(length: timedelta) -> str:
    """Return a length in its largest whole unit."""
    seconds = int(length.total_seconds())
    for unit, size in _UNITS:
        count = seconds // size
        if count >= (1 if unit == "seconds" else 2):
            return f"{count} {unit}"
    return f"{seconds} seconds"


def _minute(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
