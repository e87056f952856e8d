"""The server of the memory benchmark: `python -m umbel.benchmarks.secure_server`.

It is alone in its process with a real `Coordinator`, run directory, ledger and core of one slot,
no clients and no data, and is fed over a pipe by whoever holds the clients (secure_memory.py):

    u8 kind · u16 client · u32 bytes · the bytes        little-endian, both ways

Every call is answered by what it caused (messages to clients, frames of the model, the peak of a
round) and then by one `DONE`. Peaks are the kernel's own: `VmHWM` of /proc/self/status, set back
after each round, less what the idle server held before the first round beside its model: code,
nodes and their certificates.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import tempfile
import time
from datetime import UTC, datetime
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography import x509

from .process_memory import peak, reset_peak, resident
from .secure_cast import FEDERATION, METRICS, PARAMS, model
from ..protocol.frames import Kind, frames
from ..protocol.verification import Verifier
from ..server.coordinator import Coordinator
from ..server.run_directory import RunDirectory
from ..server.settings import RunSettings
from ..server.surroundings import Surroundings

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from ..server.ledger import RoundRecord

_HEAD = struct.Struct("<BHI")
_LARGEST = 4 << 20
"""Bytes of the receive buffer, which is there before anything is measured."""
_FOREVER = 21600.0
"""Seconds; no deadline decides anything here."""


class Say(IntEnum):
    """What a packet is."""

    START = 1
    """Parent: a run as JSON, `name`, `params`, `rounds`, `root` (DER, hex)."""
    JOIN = 2
    """Parent: a certificate; the clients count from 0 in this order."""
    BEGIN = 3
    MESSAGE = 4
    FRAME = 5
    """Either way: of a vector, of the model."""
    WANTS = 6
    FETCH = 7
    POST = 8
    """Server: a message to a client."""
    ROUND = 9
    """Server: a round ended; JSON, `outcome`, `cause` and `peak` (bytes)."""
    DONE = 10
    """Server: the call is over; 8 bytes of offset after WANTS, if the vector is wanted."""
    OVER = 11
    """Server: as DONE, and the run is over."""


class Packet(NamedTuple):
    """One packet, either way."""

    kind: Say
    client: int
    data: memoryview
    """In the receiver's buffer, until it receives again."""


def send(sink: io.FileIO, kind: Say, client: int = 0, data: bytes | memoryview = b"") -> None:
    """Write one packet whole."""
    for part in (_HEAD.pack(kind, client, len(data)), data):
        view = memoryview(part)
        while view:
            view = view[sink.write(view) or 0 :]


def receive(source: io.FileIO, buffer: bytearray) -> Packet:
    """Read one packet by way of `buffer`.

    Raises:
        EOFError: The other side is gone.
    """
    kind, client, length = _HEAD.unpack(_fill(source, memoryview(buffer)[: _HEAD.size]))
    return Packet(Say(kind), client, _fill(source, memoryview(buffer)[:length]))


def _fill(source: io.FileIO, view: memoryview) -> memoryview:
    rest = view
    while rest:
        count = source.readinto(rest)
        if not count:
            raise EOFError("the other process is gone")
        rest = rest[count:]
    return view


class Served:
    """One run: the coordinator, and the pipe to its clients."""

    def __init__(self, about: dict[str, Any], sink: io.FileIO, home: Path) -> None:
        """Make the coordinator, which writes and publishes the model."""
        self._sink, self._nodes, self._index = sink, list[str](), dict[str, int]()
        self._idle = 0
        root = x509.load_der_x509_certificate(bytes.fromhex(about["root"]))
        settings = RunSettings(
            run=about["name"],
            rounds=about["rounds"],
            params=PARAMS,
            deadline=_FOREVER,
            final_evaluation=False,
        )
        self.directory = RunDirectory.create(home, settings.run)
        self.directory.ledger.create_run(settings.run, _utc().isoformat(), {}, "on (benchmark)")
        around = Surroundings(
            verifier=Verifier(root, FEDERATION),
            ca=sha256(bytes.fromhex(about["root"])).digest(),
            directory=self.directory,
            post=self._post,
            wall=_utc,
            observe=self._observe,
        )
        phases = {"train": METRICS, "evaluate": {}}
        self._coordinator = Coordinator(settings, model(about["params"]), phases, around)

    def take(self, packet: Packet) -> bool:
        """Do what a packet asks for; say whether the run is over."""
        answer = self._calls()[packet.kind](packet.client, packet.data)
        over = self._coordinator.done
        send(self._sink, Say.OVER if over else Say.DONE, packet.client, answer or b"")
        return over

    def _calls(self) -> dict[Say, Callable[[int, memoryview], bytes | None]]:
        to, now = self._coordinator, time.monotonic()
        return {
            Say.JOIN: self._join,
            Say.BEGIN: self._begin,
            Say.MESSAGE: lambda client, data: to.message(self._nodes[client], bytes(data), now),
            Say.FRAME: lambda client, data: to.frame(self._nodes[client], data, now),
            Say.WANTS: self._wants,
            Say.FETCH: self._fetch,
        }

    def _join(self, client: int, der: memoryview) -> None:
        node = self._coordinator.join(bytes(der), time.monotonic())
        self._nodes.append(node)
        self._index[node] = client

    def _begin(self, _: int, __: memoryview) -> None:
        """Note what is held right before the first round, the model itself not counted."""
        gc.collect()
        self._idle = resident() - len(self._coordinator.published)
        reset_peak()
        self._coordinator.begin(time.monotonic())

    def _wants(self, client: int, _: memoryview) -> bytes:
        offset = self._coordinator.wants(self._nodes[client])
        return b"" if offset is None else offset.to_bytes(8, "little")

    def _fetch(self, client: int, digest: memoryview) -> None:
        for frame in frames(Kind.MODEL, bytes(digest), self._coordinator.published):
            send(self._sink, Say.FRAME, client, frame)
            del frame  # else two are held while the next is made

    def _post(self, node: str, data: bytes) -> None:
        send(self._sink, Say.POST, self._index[node], data)

    def _observe(self, record: RoundRecord) -> None:
        found = {
            "outcome": record.outcome,
            "cause": record.cause,
            "peak": peak() - self._idle,
        }
        send(self._sink, Say.ROUND, 0, json.dumps(found).encode())
        reset_peak()


def main() -> None:
    """Serve one run after another until the pipe closes."""
    source = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115 - as long as the process
    sink = open(os.dup(1), "wb", buffering=0)  # noqa: SIM115
    os.dup2(2, 1)  # nothing but packets goes to the pipe
    buffer = bytearray(_LARGEST)
    with tempfile.TemporaryDirectory(prefix="umbel-bench-") as home:
        while True:
            try:
                packet = receive(source, buffer)
            except EOFError:
                return
            run = Served(json.loads(bytes(packet.data)), sink, Path(home))
            send(sink, Say.DONE)
            while not run.take(receive(source, buffer)):
                pass
            run.directory.close()
            del run


def _utc() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
