"""Small servers in threads, each wrong in one way, for what the doctors find on the way to them.

Sockets, certificates and handshakes are real. A server here answers every connection by one
function; `Stage` ends them all.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from umbel.protocol.certificates import Authority
from umbel.tests.wire_federation import key_pem, pem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

S = TypeVar("S", bound=socket.socket)
NOW = datetime.now(UTC)
NAMES = ("localhost", "127.0.0.1")
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's first frame, empty, which a server that accepts a connection sends by itself."""


class Stage:
    """Servers, and the federation whose certificates they have."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = authority or Authority.create("tested", NOW - timedelta(days=400))
        self._open: list[socket.socket] = []
        self._made = 0

    def close(self) -> None:
        """End every server and connection."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    # -- places ------------------------------------------------------------------------------

    def bound(self) -> str:
        """Return an address that is taken, and on which nothing listens."""
        taken = self._kept(socket.socket())
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"

    def silent(self) -> str:
        """Return an address that answers to nothing: its queue of connections is full."""
        full = self._kept(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        for _ in range(3):
            waiting = self._kept(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        return f"127.0.0.1:{address[1]}"

    def serve(
        self, answer: Callable[[socket.socket], None], family: socket.AddressFamily = socket.AF_INET
    ) -> int:
        """Serve every connection by a function, and return the port."""
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        listener = self._kept(socket.create_server((host, 0), family=family))

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                self._kept(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError, ValueError):
                answer(connection)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    # -- certificates ------------------------------------------------------------------------

    def context(
        self, names: Sequence[str] = NAMES, *, by: Authority | None = None, alpn: str = "",
        begins: timedelta = timedelta(0), days: int = 90, clients: bool = False,
    ) -> ssl.SSLContext:  # fmt: skip
        """Return a server's TLS, with a certificate of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = by or self.authority
        leaf = issuer.issue_gateway(key.public_key(), names, NOW + begins, days)
        return self.with_leaf(leaf, key, alpn=alpn, clients=clients)

    def with_leaf(
        self, leaf: x509.Certificate, key: Any, *, alpn: str = "", clients: bool = False
    ) -> ssl.SSLContext:
        """Return a server's TLS with a certificate."""
        chain, secret = self.files(leaf, key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, secret)
        if alpn:
            context.set_alpn_protocols([alpn])
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=pem(self.authority.certificate).decode())
        return context

    def files(self, leaf: x509.Certificate, key: Any) -> tuple[Path, Path]:
        """Write a certificate and its key."""
        self._made += 1
        chain, secret = self.folder / f"{self._made}.pem", self.folder / f"{self._made}.key"
        chain.write_bytes(pem(leaf))
        secret.write_bytes(key_pem(key))
        secret.chmod(0o600)
        return chain, secret

    def tls(self, context: ssl.SSLContext, answer: Callable[[ssl.SSLSocket], None]) -> int:
        """Serve by TLS, and return the port."""

        def shake(connection: socket.socket) -> None:
            with context.wrap_socket(connection, server_side=True) as secure:
                answer(self._kept(secure))

        return self.serve(shake)

    def pages(self, context: ssl.SSLContext, said: dict[str, bytes]) -> int:
        """Serve pages by path, each a whole answer."""

        def answer(line: ssl.SSLSocket) -> None:
            while path := _asked(line):
                line.sendall(said.get(path, page("nothing here", status=404)))

        return self.tls(context, answer)

    def _kept(self, one: S) -> S:
        self._open.append(one)
        return one


def _asked(line: ssl.SSLSocket) -> str:
    """Return the path of a request that was read whole; empty where none comes any more."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = line.recv(1)
        if not piece:
            return ""
        head += piece
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    left = int(length[1]) if length else 0
    while left:
        left -= len(line.recv(left))
    return head.split(b" ", 2)[1].decode()


def page(body: str, *headers: str, status: int = 200) -> bytes:
    """Return an answer's bytes."""
    head = [f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body.encode()


def hang(line: socket.socket) -> None:
    """Say nothing, until the other end goes."""
    while line.recv(4096):
        pass


def proxying(status: str, wanted: str = "") -> Callable[[socket.socket], None]:
    """Return a proxy that answers CONNECT by a status, and relays after 200."""

    def answer(line: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(1)
        if wanted and f"Proxy-Authorization: {wanted}\r\n".encode() not in head:
            line.sendall(b"HTTP/1.1 407 who are you\r\n\r\n")
            line.close()
            return
        line.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
        if not status.startswith("200"):
            line.close()
            return
        host, _, port = head.split(b" ")[1].decode().rpartition(":")
        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=_relay, args=(there, line), daemon=True)
            back.start()
            _relay(line, there)

    return answer


def _relay(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def inspecting(names: Sequence[str] = NAMES) -> tuple[x509.Certificate, Any]:
    """Return a certificate as a proxy that inspects TLS makes it, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Corporate Web Gateway CA")])
    san = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = (
        x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=90)).add_extension(san, critical=False)
    )  # fmt: skip
    return builder.sign(key, hashes.SHA256()), key
