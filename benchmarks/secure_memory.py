"""The clients of the memory benchmark: real sessions, their server in a process of its own.

One short run of three clients and a small model comes first, so that code, caches and arenas of
the server are there before it is measured; then one run of as many rounds as peaks are wanted.
Nobody is lost: a loss costs the server no memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .secure_cast import METRICS, POLICY, VALUES, WEIGHT, Cast, model, update
from .secure_server import Packet, Say, receive, send
from ..clients.journal import MemoryJournal
from ..clients.session import Device, Fetch, Send, Session, Upload
from ..clients.update import Update
from ..protocol.entropy import os_entropy
from ..protocol.errors import RoundFailed, StateError
from ..protocol.frames import Kind, frames
from ..strategies.task import Site
from ..strategies.trainer import TrainResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from ..clients.session import Action
    from ..strategies.trainer import Settings

_WARM_UP = 3, 1000
"""Clients and parameters of the run before the one that counts."""
_BUFFER = 4 << 20


def server_peaks(cast: Cast, params: int, rounds: int) -> list[float]:
    """Return the server's peak memory in each round, in models of 4 bytes a parameter."""
    with _server() as process:
        clients, small = _WARM_UP
        Run(process, cast, clients, small).drive("warm-up", 1)
        found = Run(process, cast, len(cast.identities), params).drive("measured", rounds)
    return [peak / (4 * params) for peak in found]


class Still:
    """A trainer that trains nothing: every client has the same update."""

    def __init__(self, params: int) -> None:
        """Make the one update."""
        self._params = params
        self._delta = update(params)

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return model(self._params)

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metrics of a phase."""
        return dict(METRICS) if phase == "train" else {}

    def train(
        self,
        arrays: Mapping[str, NDArray[Any]],
        site: Site,
        settings: Settings,
    ) -> TrainResult:
        """Return the update."""
        return TrainResult(self._delta, WEIGHT, VALUES)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Return nothing: no round here evaluates."""
        return TrainResult({}, 1, {})

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server has no test data."""
        return {}


class Run:
    """One run: the clients here, the server behind the pipe."""

    def __init__(
        self, process: subprocess.Popen[bytes], cast: Cast, clients: int, params: int
    ) -> None:
        """Open the sessions of the first `clients` members."""
        self._process, self._cast, self._params = process, cast, params
        trainer = Still(params)
        self._sessions = [
            Session(
                Device(
                    identity=identity,
                    policy=POLICY,
                    membership=cast.membership,
                    ca=cast.root_digest,
                    journal=MemoryJournal(),
                    update=Update(trainer, Site(), POLICY, entropy=os_entropy),
                    clock=lambda: datetime.now(UTC),
                    entropy=os_entropy,
                    log=_refused,
                )
            )
            for identity in cast.identities[:clients]
        ]
        self._queue: deque[tuple[int, bytes]] = deque()
        self._uploads: dict[int, Upload] = {}
        self._peaks: list[float] = []
        self._over = False
        self._buffer = bytearray(_BUFFER)

    def drive(self, name: str, rounds: int) -> list[float]:
        """Carry packets until the run is over; return the peak of each round in bytes.

        Raises:
            RoundFailed: A round did not end in a sum.
        """
        about = {
            "name": name,
            "params": self._params,
            "rounds": rounds,
            "root": self._cast.root.hex(),
        }
        self._call(Say.START, 0, json.dumps(about).encode())
        for client in range(len(self._sessions)):
            self._call(Say.JOIN, client, self._cast.identities[client].certificate)
        self._call(Say.BEGIN)
        while not self._over:
            if self._queue:
                client, data = self._queue.popleft()
                self._do(client, self._sessions[client].receive(data))
            elif self._uploads:
                self._upload(*self._uploads.popitem())
            else:
                raise StateError("benchmark", "a message on its way", "none", "report this")
        return self._peaks

    def _do(self, client: int, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._call(Say.MESSAGE, client, action.data)
            elif isinstance(action, Upload):
                self._uploads[client] = action
            else:
                self._fetch(client, action)

    def _fetch(self, client: int, wanted: Fetch) -> None:
        for frame in self._call(Say.FETCH, client, wanted.digest):
            self._do(client, self._sessions[client].frame(frame))

    def _upload(self, client: int, upload: Upload) -> None:
        """Send a whole vector; one at a time, so there is always room for it."""
        self._call(Say.WANTS, client)
        for frame in frames(Kind.UPLOAD, upload.subject, upload.buffer):
            self._call(Say.FRAME, client, frame)
        self._sessions[client].delivered()

    def _call(self, kind: Say, client: int = 0, data: bytes = b"") -> list[bytes]:
        """Send a packet and take what it causes; return the frames among it."""
        sink, source = self._process.stdin, self._process.stdout
        if sink is None or source is None:
            raise StateError("benchmark", "a pipe to the server", "none", "report this")
        send(sink, kind, client, data)  # type: ignore[arg-type]
        found: list[bytes] = []
        while True:
            packet = receive(source, self._buffer)  # type: ignore[arg-type]
            if packet.kind in {Say.DONE, Say.OVER}:
                self._over = packet.kind is Say.OVER
                return found
            if packet.kind is Say.FRAME:
                found.append(bytes(packet.data))
            else:
                self._note(packet)

    def _note(self, packet: Packet) -> None:
        if packet.kind is Say.POST:
            self._queue.append((packet.client, bytes(packet.data)))
            return
        about = json.loads(bytes(packet.data))
        if about["outcome"] != "finished":
            raise RoundFailed(f"a round of the benchmark: {about['cause']}")
        self._peaks.append(float(about["peak"]))


@contextmanager
def _server() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", f"{__package__}.secure_server"]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()


def _refused(line: str) -> None:
    raise RoundFailed(f"a client of the benchmark: {line}")
