"""What a front says on its pages, on a connection to trust: its clock, and what is behind it.

Both doctors ask: a device's, at the address that it dials, and the server's, where it listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import doctor_tls as tls
from .doctor import OK, PROBLEM, Kind, Table

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Mapping

    from .doctor import Finding

_GOOD = 200

FRONT = Table({
    "front.ok": Kind(OK, "the front answers, and the SuperLink behind it"),
    "front.other": Kind(PROBLEM, "another server of the federation answers where the front should"),
    "front.superlink": Kind(PROBLEM, "the front answers, and the SuperLink behind it is away"),
})  # fmt: skip


def pages(secure: ssl.SSLSocket, what: str) -> Generator[Finding, None, Mapping[str, str] | None]:
    """Look at a front's pages; return the headers of the first if the SuperLink is there too.

    Args:
        secure: A connection, verified.
        what: For the lines: `front fl.example.org:443`.
    """
    host = what.rpartition(" ")[2]
    health = tls.page(secure, host, "/healthz")
    if health is None or health.status != _GOOD:
        said = f"/healthz gives {health.status}" if health else "no answer to a request"
        fix = "the address is the front's, not the SuperLink's: superlink of device.toml"
        yield FRONT("front.other", f"{what}: {said}", fix)
        return None
    if health.skew is not None:
        yield tls.clock("front", health.skew, health.error_s)
    ready = tls.page(secure, host, "/readyz")
    if ready is None or ready.status != _GOOD:
        said = ready.body[:80].decode("ascii", "replace").strip() if ready else "no answer"
        fix = "umbel server up starts it; umbel server doctor there says more"
        yield FRONT("front.superlink", f"{what}: not ready: {said}", fix)
        return None
    yield FRONT("front.ok", f"{what}: ready")
    return health.headers
