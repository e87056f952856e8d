"""A gateway that has gone mad: a device's session with it ends in a code, whatever it says.

It has the federation's own certificate, so the device speaks to it. It sends what a gateway may
send, spoilt, in any order: welcomes, terms of attempts, trips, frames of models, grants of slots,
endings with any words. Each session ends by itself within `PATIENCE` seconds, with an outcome that
names no trace of Python's, and the next one begins.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from umbel.clients import grpc_session
from umbel.clients.device_files import DeviceFiles
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.digest import model_digest
from umbel.protocol.frames import Kind, frames
from umbel.server.invitation import start_of
from umbel.tests.actors import agreed
from umbel.tests.federations import DeviceThread, addressed, made
from umbel.tests.fuzz_mutators import BLIND, TERMINAL, message
from umbel.tests.fuzz_roles import played
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 30.0
CODES = (
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
)  # fmt: skip


class MadGateway:
    """The server."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Listen with the certificate of a federation's gateway."""
        self._rng, self._attempt = Random(seed), 0  # noqa: S311 - repeatable
        self._lock = threading.Lock()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch),
        }
        self._server = grpc.server(ThreadPoolExecutor(8))
        generic = grpc.method_handlers_generic_handler("umbel.v1.Gateway", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        pair = ((folder / "gateway.key").read_bytes(), (folder / "gateway.pem").read_bytes())
        root = (folder / "ca.pem").read_bytes()
        credentials = grpc.ssl_server_credentials([pair], root, require_client_auth=True)
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def close(self) -> None:
        """Stop."""
        self._server.stop(0).wait(5)

    def _spoilt(self, data: bytes, most: int = 3) -> bytes:
        for _ in range(self._rng.randrange(most)):
            data = self._rng.choice((message, *BLIND))(self._rng, data)
        return data

    def _start(self) -> bytes:
        self._attempt += 1
        known = played("A")
        terms = agreed(model=model_digest(known.model), attempt=self._attempt)
        start = start_of(terms, len(known.model), known.layout.manifest.to_json())
        return pb.ToClient(start=start).SerializeToString()

    def _downs(self) -> Iterator[bytes]:
        rng, seq = self._rng, 0
        for _ in range(rng.randrange(1, 25)):
            body = self._start() if rng.randrange(2) else rng.choice(played("A").down)
            seq += 1
            spoilt = self._spoilt(body) if rng.randrange(2) else body
            down = pb.Down(seq=seq, ack=rng.randrange(30) // 29, message=spoilt)
            if not rng.randrange(9):
                down = pb.Down(ack=0, welcome=pb.Welcome(epoch=rng.choice((1, 2**63))))
                seq -= 1
            data = down.SerializeToString()
            yield data if rng.randrange(12) else self._spoilt(data)

    def _session(self, _: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._lock:
            first = pb.Down(welcome=pb.Welcome(epoch=1)).SerializeToString()
            downs = [first, *self._downs()]
            pauses = [self._rng.choice((0.0, 0.0, 0.05)) for _ in downs]
            code, words = self._rng.choice(CODES), self._rng.choice((TERMINAL[:4], "x" * 900, ""))
        for down, pause in zip(downs, pauses, strict=True):
            time.sleep(pause)  # else the device has not asked for a model before the next terms
            yield down
        context.abort(code, words)

    def _upload(self, requests: Iterator[bytes], context: Any) -> bytes:
        with self._lock:
            offset = self._rng.choice(("0", "9", "-1", "x" * 50, "1" * 4000, str(2**63)))
            answer = self._rng.randbytes(self._rng.randrange(12))
        context.send_initial_metadata((("umbel-offset", offset),))
        for _ in requests:
            pass
        return answer

    def _fetch(self, _: bytes, context: Any) -> Iterator[bytes]:
        known = played("A")
        with self._lock:
            good = list(frames(Kind.MODEL, model_digest(known.model), known.model))
            sent = [f if self._rng.randrange(3) else self._spoilt(f) for f in good * 2]
        yield from sent
        context.abort(grpc.StatusCode.UNAVAILABLE, "again")


@dataclass
class Ended:
    """What came of it."""

    sessions: int = 0
    rounds: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """What the device said on its console."""


def sessions(folder: Path, seconds: float, seed: int = 1) -> Ended:
    """Let a device have sessions with it for so many seconds, and three at least."""
    federation = made(folder / "federation", 1)
    gateway, ended = MadGateway(federation.folder, seed), Ended()
    before, grpc_session.AWAY_S = grpc_session.AWAY_S, 0.5
    try:
        addressed(federation, f"127.0.0.1:{gateway.port}")
        until = time.monotonic() + seconds
        while time.monotonic() < until or ended.sessions < 3:
            files = DeviceFiles.read(federation.device("edge-0"))
            device = DeviceThread(files, Numbers(), 0).start("run", b"a ticket", lease=PATIENCE)
            outcome = device.join(PATIENCE)
            name = pb.Reason.Name(outcome.reason)
            ended.sessions += 1
            ended.rounds += outcome.rounds
            ended.reasons[name] = ended.reasons.get(name, 0) + 1
            ended.lines += [*device.log, outcome.detail]
    finally:
        grpc_session.AWAY_S = before
        gateway.close()
    return ended
