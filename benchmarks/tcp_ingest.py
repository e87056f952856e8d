"""The limit of `umbel bench ingest`: the same bytes over one socket into memory that is there.

Without TLS plain TCP, with it Python's ssl, the same certificate. `recv_into`, no frames, no hash.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ingest_process import HOST, Certificates, Other, answering

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE = 1 << 20
"""Bytes of a write."""


class Sink:
    """The other process: takes what comes, each connection into memory of its own."""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Listen for one connection."""
        context = None
        if asked["key"]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            with files(asked["chain"], asked["key"]) as (chain, key):
                context.load_cert_chain(chain, key)
        listener, slot = socket.create_server((HOST, 0)), bytearray(asked["nbytes"])
        threading.Thread(target=_serve, args=(listener, context, slot), daemon=True).start()
        return {"port": listener.getsockname()[1]}


def _serve(listener: socket.socket, context: ssl.SSLContext | None, slot: bytearray) -> None:
    connection, _ = listener.accept()
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    view = memoryview(slot)
    while True:
        received = 0
        while received < len(view):
            got = connection.recv_into(view[received:])
            if not got:
                return
            received += got
        connection.sendall(b"!")


@contextmanager
def files(*texts: str) -> Iterator[list[Path]]:
    """Give texts as files, as ssl wants certificates."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(place)) for place in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.touch(0o600)
            path.write_text(text, "ascii")
        yield paths


class Source:
    """This process's end."""

    def __init__(self, sink: Other, papers: Certificates | None, payload: bytes) -> None:
        """Connect; with certificates over TLS."""
        key, chain = papers.server if papers else ("", "")
        port = sink.ask(nbytes=len(payload), key=key, chain=chain)["port"]
        self._payload = memoryview(payload)
        self._socket = socket.create_connection((HOST, port))
        if papers:
            context = ssl.create_default_context(cadata=papers.root)
            self._socket = context.wrap_socket(self._socket, server_hostname=HOST)

    def seconds(self) -> float:
        """Return how long the bytes take until the other end has them all."""
        start = time.perf_counter()
        for low in range(0, len(self._payload), PIECE):
            self._socket.sendall(self._payload[low : low + PIECE])
        self._socket.recv(1)
        return time.perf_counter() - start

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


if __name__ == "__main__":
    answering(Sink().answer)
