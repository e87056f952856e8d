"""What gRPC says about handshakes, as lines of this service's own log.

A connection that fails in its TLS handshake never reaches Python: no certificate, one of another
CA or expired, plaintext, random bytes. gRPC writes one line about each on file descriptor 2, at
verbosity INFO, in words of OpenSSL. So descriptor 2 becomes a pipe; a thread reads it, says the
handshakes through `say`, which holds floods back, drops what is chatter, and passes everything
else on to where descriptor 2 led before. `sys.stderr` leads there directly.

| gRPC 1.85 writes | the line |
|---|---|
| `HTTP_REQUEST`, `WRONG_VERSION_NUMBER` and others | no TLS: plaintext or random bytes |
| `PEER_DID_NOT_RETURN_A_CERTIFICATE` | no client certificate |
| `CERTIFICATE_VERIFY_FAILED: cause` | a client certificate that does not pass, with the cause |
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING

from .core_log import console

if TYPE_CHECKING:
    from collections.abc import Callable

VERBOSITY = "INFO"
"""Of gRPC, for the lines that are read here."""
LONGEST = 1 << 16
"""Characters of a line; a longer one comes in parts."""
_NO_TLS = (
    *("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE"),
    *("UNEXPECTED_RECORD", "INVALID_OUTER_EXTENSION", "DECODE_ERROR", "BAD_HANDSHAKE_RECORD"),
    *("ENCRYPTED_LENGTH_TOO_LONG", "EXCESSIVE_MESSAGE_SIZE"),
)
_FAILED = re.compile(r"Handshake failed with error \S+ .*?OPENSSL_internal:(\w+)(?:: (.*))?$")
_GRPC = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ (\S+:\d+)\] (.*)")


def said(line: str) -> tuple[str, str] | None:
    """Return the kind and text of a line about gRPC; None for chatter.

    A line that is not gRPC's comes back with the kind `""`.
    """
    found = _GRPC.match(line)
    if found is None:
        return "", line
    level, where, text = found.groups()
    failed = _FAILED.search(text)
    if failed is None:
        kept = level in "EF" or (level == "W" and "not suitable for production" not in text)
        return ("grpc", f"gRPC ({where}): {text}") if kept else None
    reason, cause = failed.groups()
    if reason in _NO_TLS:
        return "tls", f"a connection brought no TLS, but plaintext or random bytes ({reason})"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "tls certificate", "a connection brought no client certificate"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return "tls certificate", f"a connection's client certificate was refused: {cause}"
    return "tls", f"a connection failed in its TLS handshake ({reason})"


def listen(say: Callable[[str, str], None]) -> None:
    """Read descriptor 2 from now on, until the process ends; call it before gRPC is loaded."""
    sys.stderr.flush()
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(kept, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    threading.Thread(target=_read, args=(reading, say), name="stderr", daemon=True).start()


def _read(reading: int, say: Callable[[str, str], None]) -> None:
    with os.fdopen(reading, "r", encoding="utf-8", errors="backslashreplace") as lines:
        while line := lines.readline(LONGEST):
            answer = said(line.rstrip("\n"))
            if answer is None:
                continue
            if answer[0]:
                say(*answer)
            else:
                console(answer[1])
