"""A front that speaks enrolment only: real TLS by the federation's own leaf, before a real issuer.

`Door` answers as the front does, and fails as networks do: an answer is lost after the CA has done
its work. `Proxy` is a forward proxy that knows CONNECT.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from umbel.protocol.enrolment import Declined, EnrolRequest, LeaveRequest, RenewRequest
from umbel.server.server_toml import ServerSettings
from umbel.tests.issuing import Clock, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.protocol.enrolment_token import Token


class _Handler(BaseHTTPRequestHandler):
    door: Door

    def do_GET(self) -> None:
        self.door.seen.append(self.path)
        self._answer(200, self.door.root or self.door.stage.issuer.ca())

    def do_POST(self) -> None:
        self.door.seen.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        issuer = self.door.stage.issuer
        try:
            if self.path == "/v1/enrol":
                raw = issuer.enrol(EnrolRequest.parse(body)).dumps()
            elif self.path == "/v1/renew":
                raw = issuer.renew(RenewRequest.parse(body)).dumps()
            else:
                issuer.leave(LeaveRequest.parse(body))
                raw = b"{}"
        except Declined as declined:
            self._answer(declined.status, declined.dumps())
            return
        if self.door.lost:
            self.door.lost -= 1
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(200, raw)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing: refused handshakes are wanted."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class Door:
    """A federation whose front listens on loopback, of IPv4 or IPv6."""

    def __init__(self, folder: Path, address: str = "127.0.0.1") -> None:
        self.stage = Stage(folder, Clock(datetime.now(UTC)))
        self.seen: list[str] = []
        """Paths that were asked for."""
        self.lost = 0
        """How many answers are lost, after the work was done."""
        self.root = b""
        """What `/v1/ca` shows, if it is another certificate."""
        handler = type("Handler", (_Handler,), {"door": self})
        self._server = (_Server6 if ":" in address else _Server)((address, 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "front.pem", folder / "front.key")
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self._server.server_address[1]
        self.address = f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def token(self, name: str = "press-17", site: str = "", **terms: object) -> Token:
        """Make a token that leads here."""
        return replace(self.stage.token(name, site, **terms), address=self.address)

    def front_is(self, address: str) -> None:
        """Let certificates come with another address of the front."""
        file = self.stage.folder / "server.toml"
        settings = ServerSettings.read(self.stage.folder)
        file.write_text(replace(settings, front=address).dumps())
        self.stage.issuer = self.stage.again()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Proxy:
    """A forward proxy: whatever it is asked to reach is at one port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._tunnel, args=(near,), daemon=True).start()

    def _tunnel(self, near: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += near.recv(4096)
        self.asked.append(head.split(b"\r\n", 1)[0].decode())
        with near, socket.create_connection(("127.0.0.1", self._port)) as far:
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
