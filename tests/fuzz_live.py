"""A core service in a process of its own, under fire: it lives, and its members go on.

A member of the federation that has gone mad, with a certificate and a ticket that are good, and a
program of the same user at `core.sock`, send whatever fuzz_core.py makes. Then three good devices
complete a round of the same run with its ServerApp, which has heard all of it.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from umbel.clients.device_files import DeviceFiles
from umbel.clients.grpc_line import dial
from umbel.protocol import messages_pb2 as pb
from umbel.tests import soak_vitals
from umbel.tests.federations import Run, made
from umbel.tests.fuzz_core import COMMANDS, CTX, packed
from umbel.tests.fuzz_mutators import BLIND, message, tree_change
from umbel.tests.fuzz_protocol import _some_frames, _to_server
from umbel.tests.test_core_deaths import Core
from umbel.tests.wire_federation import METHOD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_MB = 100.0
"""By how much the core's memory may grow."""
CALL_S = 0.5


@dataclass
class Report:
    """What came of it."""

    seconds: float = 0.0
    attacks: dict[str, int] = field(default_factory=dict)
    grown_mb: float = 0.0
    lived: bool = False
    survivors: int = 0
    """Of the good round."""
    tracebacks: int = 0
    """In the core's log."""
    log_kb: float = 0.0


class Madman:
    """One attacker, in a thread."""

    def __init__(self, device: DeviceFiles, run: str, ticket: bytes, sock: Path, seed: int) -> None:
        """Take what a member and a local program have."""
        self._device, self._run, self._ticket, self._sock = device, run, ticket, sock
        self._files = device.tls(datetime.now(UTC))
        self._der = device.identity(datetime.now(UTC)).certificate
        self._rng, self._stop = Random(seed), threading.Event()  # noqa: S311 - repeatable
        self.ways = (self._session, self._upload, self._fetch, self._tls, self._tcp, self._local)
        self.count: dict[str, int] = {}
        self._thread = threading.Thread(target=self._attack, daemon=True)

    def start(self) -> Madman:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End, after the attack in progress."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _attack(self) -> None:
        left = list(self.ways)
        with dial(self._device.gateway, self._files) as channel:
            while not self._stop.is_set():
                way = left.pop() if left else self._rng.choice(self.ways)  # each at least once
                self.count[way.__name__[1:]] = self.count.get(way.__name__[1:], 0) + 1
                with suppress(OSError, grpc.RpcError, ssl.SSLError, grpc.FutureTimeoutError):
                    way(channel)

    def _spoilt(self, data: bytes) -> bytes:
        for _ in range(self._rng.randrange(3)):
            data = self._rng.choice((message, *BLIND))(self._rng, data)
        return data

    # -- as a member ------------------------------------------------------------------------

    def _ups(self) -> Iterator[bytes]:
        rng = self._rng
        hello = pb.Hello(run=self._run, ticket=self._ticket, certificate=self._der)
        first = pb.Up(hello=hello).SerializeToString()
        yield first if rng.randrange(3) else self._spoilt(first)
        bodies = _to_server()
        for seq in range(1, rng.randrange(2, 12)):
            body = self._spoilt(rng.choice(bodies))
            up = pb.Up(seq=seq, ack=rng.choice((0, 0, 0, 1, 2**63)), message=body)
            data = up.SerializeToString()
            yield data if rng.randrange(4) else self._spoilt(data)

    def _session(self, channel: grpc.Channel) -> None:
        call: Any = channel.stream_stream(METHOD + "Session")
        for _ in itertools.islice(call(self._ups(), timeout=CALL_S), 20):
            pass

    def _upload(self, channel: grpc.Channel) -> None:
        rng = self._rng
        run = self._run if rng.randrange(4) else "x" * rng.randrange(200)
        ctx = CTX if rng.randrange(2) else bytes(rng.randrange(60))
        frames = [self._spoilt(f) for f in _some_frames() for _ in range(rng.randrange(4))]
        metadata = (("umbel-run", run), ("umbel-ctx-bin", ctx))
        call: Any = channel.stream_unary(METHOD + "Upload")
        call(iter(frames), metadata=metadata, timeout=CALL_S)

    def _fetch(self, channel: grpc.Channel) -> None:
        request = pb.FetchRequest(run=self._run, digest=CTX, offset=self._rng.choice((0, 9, 2**63)))
        call: Any = channel.unary_stream(METHOD + "Fetch")
        for _ in call(self._spoilt(request.SerializeToString()), timeout=CALL_S):
            pass

    # -- as a stranger, and as a stranger with a certificate --------------------------------

    def _noise(self) -> bytes:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
        noise = self._rng.randbytes(self._rng.randrange(2000))
        return self._rng.choice((noise, preface + noise, self._spoilt(preface * 3)))

    def _connected(self) -> socket.socket:
        port = int(self._device.gateway.rpartition(":")[2])
        return socket.create_connection(("127.0.0.1", port), timeout=CALL_S)

    def _tcp(self, _: grpc.Channel) -> None:
        with self._connected() as stream:
            stream.sendall(self._noise())

    def _tls(self, _: grpc.Channel) -> None:
        context = ssl.create_default_context(cadata=self._files.root.decode())
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(
            self._device.directory / "tls.pem", self._device.directory / "tls.key"
        )
        with (
            self._connected() as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
        ):
            stream.sendall(self._noise())
            stream.recv(1000)

    # -- as a program of the same user ------------------------------------------------------

    def _local(self, _: grpc.Channel) -> None:
        rng = self._rng
        opening = packed({"op": "open", "run": f"mad-{rng.randrange(8)}", "scheme": "A"})
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(CALL_S)
            stream.connect(str(self._sock))
            stream.sendall(opening if rng.randrange(5) else self._spoilt(opening))
            for _times in range(rng.randrange(6)):
                command = tree_change(rng, rng.choice(COMMANDS))
                if isinstance(command, dict) and command.get("op") != "sum":  # it may ask for RAM
                    stream.sendall(packed(command))
            stream.sendall(rng.randbytes(rng.randrange(64)))
            with suppress(TimeoutError):
                stream.recv(1 << 16)


def fire(folder: Path, seconds: float, seed: int = 1, madmen: int = 2) -> Report:
    """Attack a core for so many seconds, then let a good round be made; return what came of it."""
    federation = made(folder / "federation", 4)
    core = Core(federation, folder / "core.log")
    report = Report()
    try:
        run = Run(federation, folder, "run-1", rounds=1, final_evaluation=False)
        ticket, node = run.ticket(3), federation.nodes[3]
        mad = DeviceFiles.read(federation.device(node.name))
        sock = federation.folder / "core.sock"
        attackers = [Madman(mad, "run-1", ticket, sock, seed + i).start() for i in range(madmen)]
        _heard(run, 1.0)  # the first connections and imports are no growth
        before = soak_vitals.look(core.process.pid, 0)
        began = time.monotonic()
        _heard(run, seconds)
        run.pump(lambda: all(len(a.count) == len(a.ways) for a in attackers))
        report.seconds = time.monotonic() - began
        for attacker in attackers:
            attacker.stop()
            for way, count in attacker.count.items():
                report.attacks[way] = report.attacks.get(way, 0) + count
        after = soak_vitals.look(core.process.pid, 0)
        assert before is not None
        assert after is not None, "the core service is gone"
        report.grown_mb = after.rss - before.rss
        report.survivors = _round(run)
        report.lived = core.process.poll() is None
    finally:
        core.end()
    text = core.log.read_text(errors="replace")
    report.tracebacks, report.log_kb = text.count("Traceback"), len(text) / 1e3
    return report


def _heard(run: Run, seconds: float) -> None:
    """Let the ServerApp hear what comes, for so long; its run has not begun."""
    until = time.monotonic() + seconds
    run.pump(lambda: time.monotonic() > until, seconds + 60)


def _round(run: Run) -> int:
    """Let the three good devices make a round with the ServerApp; return how many are in it."""
    threads = [d.start("run-1", run.ticket(i)) for i, d in enumerate(run.devices()[:3])]
    good = {node.id for node in run.federation.nodes[:3]}
    run.pump(lambda: good <= set(run.coordinator.nodes))
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done, 90)
    run.core.goodbye()
    for thread in threads:
        thread.join()
    (record,) = (r for r in run.records if (r.phase, r.outcome) == ("train", "finished"))
    assert good <= set(record.survivors)
    run.close()
    return len(record.survivors)
