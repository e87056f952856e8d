"""The other process of `umbel bench ingest`: asked and answering in lines of JSON.

What is measured goes over a socket between this process and that one. What has to be said beside
it, such as the keys of a connection or the hash of what comes next, goes over its stdin and stdout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ..protocol.certificates import Authority
from ..protocol.errors import VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "localhost"
FEDERATION = "benchmark"
_ENDS_IN = 10.0


class Identity(NamedTuple):
    """PEM of a P-256 key and of its leaf."""

    key: str
    chain: str


class Certificates(NamedTuple):
    """A throw-away CA and what it issued: one server, one node."""

    root: str
    server: Identity
    node: Identity
    signing: str
    """The node's signing certificate, PEM."""


def certificates() -> Certificates:
    """Return a new CA's."""
    now, number = datetime.now(UTC), bytes(15) + b"\1"
    authority = Authority.create(FEDERATION, now)
    server, node = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signing = Ed25519PrivateKey.generate().public_key()
    chains = (
        authority.issue_gateway(server.public_key(), [HOST, "127.0.0.1"], now),
        authority.issue_tls(node.public_key(), number, "site", now),
    )
    server_own, node_own = (
        Identity(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            chain.public_bytes(Encoding.PEM).decode(),
        )
        for key, chain in zip((server, node), chains, strict=True)
    )
    signs = authority.issue_signing(signing, number, "site", now).public_bytes(Encoding.PEM)
    root = authority.certificate.public_bytes(Encoding.PEM)
    return Certificates(root.decode(), server_own, node_own, signs.decode())


class Other:
    """A process of this folder, by the name of its module."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Take a started one."""
        self._process = process

    def ask(self, **question: Any) -> dict[str, Any]:
        """Say a line and return the answer.

        Raises:
            VoidRound: The process has ended, or says what went wrong.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise VoidRound("bench ingest: a process without pipes")
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise VoidRound(f"bench ingest: its server ended: {self._process.args!r}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def other(module: str) -> Iterator[Other]:
    """Run `umbel.benchmarks.MODULE` beside this process, and end it with the block."""
    command = [sys.executable, "-m", f"{__package__}.{module}"]
    with subprocess.Popen(  # noqa: S603 - this package's own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Other(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_ENDS_IN)
            except subprocess.TimeoutExpired:
                process.kill()


def answering(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer line after line until stdin ends: the other process's main loop."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
