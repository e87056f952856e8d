"""What secure aggregation costs a client and the server, beside Flower's SecAgg+.

    client_protect_cpu   CPU seconds of one client for everything beyond training, certificates
                         cached; `client_protect_cpu/STAGE` are its parts
    server_unmask        wall seconds of one thread: checks of the released shares, secrets, mask
                         keys, and every stream taken off the sum
    bytes_per_parameter  all that one client sends, framed, over the parameters
    server_peak          most memory of the server in a round, its model counted and what else it
                         holds when idle not, in models of 4 bytes a parameter; one slot

The limit of the first two is the bare ChaCha20 key stream of as many bytes, of the third the
ring's word of 4 bytes. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from . import flower_secure as flower
from .record import Measurement, interleave
from .secure_cast import PARAMS, Cast, Size, update
from .secure_memory import server_peaks
from .secure_round import STAGES, Round
from ..protocol import masks, plan
from ..protocol.errors import SettingsError, VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .secure_round import Tape

_NEED = {"clients": 3, "params": 1, "runs": 1}
_RING_BYTES = 4.0
_WORDS = 3.0


def run(
    clients: Annotated[int, typer.Option(help="Members of the roster.")] = 100,
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 1_000_000,
    drop: Annotated[float, typer.Option(help="Share of the members lost after trip 2.")] = 0.1,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    size = _size(clients, params, drop)
    _at_least("runs", runs)
    members = Cast(clients)
    yield from Race(members, size, runs).cases()
    _say(f"memory of the server, {runs} rounds with {clients} clients")
    yield Measurement(
        bench="secure",
        case="server_peak",
        unit="models",
        samples=server_peaks(members, params, runs),
        peer=[flower.models(clients)],
        peer_name=f"{flower.NAME} workflow (computed)",
        limit=_WORDS,
        limit_name="accumulator, model, and slot or next model",
    )


def _size(clients: int, params: int, drop: float) -> Size:
    """Return the sizes of a round that can end in a sum.

    Raises:
        SettingsError: Too few clients or parameters, or more losses than scheme A bears.
    """
    _at_least("clients", clients)
    _at_least("params", params)
    bears = plan.numbers(PARAMS.table(), clients).d
    lost = int(drop * clients + 1e-9)
    if not 0 <= lost <= bears:
        expected = f"0 to {bears / clients:.3g}: {clients} members bear {bears} losses"
        raise SettingsError("--drop", expected, drop)
    return Size(clients, params, lost)


def _at_least(name: str, value: int) -> None:
    if value < _NEED[name]:
        raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)


class Race:
    """Umbel, Flower and the limit, in turn."""

    def __init__(self, members: Cast, size: Size, runs: int) -> None:
        """Play one whole round, whose end is repeated, and set Flower up."""
        self._members, self._size, self._runs = members, size, runs
        _say(f"one whole round of {size.clients} members, {size.params} parameters")
        whole = Round(members, size, 0)
        whole.play(self._place, whole=True)
        self._tape = whole.tape
        numbers = plan.numbers(PARAMS.table(), size.clients)
        alive = size.clients - size.lost
        shape = flower.Shape(size.params, numbers.k + 1, numbers.t, alive, size.lost)
        self._client = flower.Client(shape, update(size.params)["weight"])
        self._server = flower.Server(shape)
        self._streams = 1 + numbers.k
        self._watched: list[Round] = []
        self._sent: list[int] = []

    @property
    def _place(self) -> int:
        """Place of the member that is watched: in the middle, and not one of the lost."""
        kept = [i for i in range(self._size.clients) if i not in self._size.gone]
        return kept[len(kept) // 2]

    def cases(self) -> Iterator[Measurement]:
        """Measure, then yield the cases of clients and unmasking."""
        total, taken = self._tape.layout.total_bytes, taken_off(self._tape)
        calls: dict[str, Callable[[], float]] = {
            "client": self._protect,
            "client/peer": self._peer,
            "client/limit": lambda: key_stream(self._streams, total, time.process_time),
            "server": lambda: unmask(self._tape),
            "server/peer": self._server.unmask,
            "server/limit": lambda: key_stream(taken, total, time.perf_counter),
        }
        found = interleave(calls, self._runs)
        yield self._timed("client_protect_cpu", "client", found)
        for stage in STAGES:
            samples = [one.meter.seconds[stage] for one in self._watched]
            case = f"client_protect_cpu/{stage}"
            yield Measurement(bench="secure", case=case, unit="s", samples=samples)
        yield self._timed("server_unmask", "server", found)
        yield self._bytes()

    def _timed(self, case: str, name: str, found: dict[str, list[float]]) -> Measurement:
        return Measurement(
            bench="secure",
            case=case,
            unit="s",
            samples=found[name],
            peer=found[f"{name}/peer"],
            peer_name=flower.NAME,
            limit=statistics.median(found[f"{name}/limit"]),
            limit_name="bare ChaCha20 key stream",
        )

    def _bytes(self) -> Measurement:
        params = self._size.params
        return Measurement(
            bench="secure",
            case="bytes_per_parameter",
            unit="B",
            samples=[one.meter.sent / params for one in self._watched],
            peer=[sent / params for sent in self._sent],
            peer_name=f"{flower.NAME}, no envelopes",
            limit=_RING_BYTES,
            limit_name="a word of the ring",
        )

    def _protect(self) -> float:
        """Play a round for one client's sake and return its CPU seconds."""
        number = 1 + len(self._watched)
        _say(f"run {number} of {self._runs}")
        played = Round(self._members, self._size, number)
        played.play(self._place, whole=False)
        self._watched.append(played)
        return sum(played.meter.seconds.values())

    def _peer(self) -> float:
        done = self._client.protect()
        self._sent.append(done.bytes)
        return done.seconds


def unmask(tape: Tape) -> float:
    """Open the round's sum and return the wall seconds.

    Raises:
        VoidRound: The sum is not that of the unmasked messages, bit for bit.
    """
    server, releases = tape.before_release()
    total = bytearray(tape.total)
    start = time.perf_counter()
    for member, release in releases:
        server.release(member, release)
    masks.apply(total, tape.layout.split, server.finish())
    seconds = time.perf_counter() - start
    if total != tape.expected:
        raise VoidRound("benchmark: the opened sum is not the sum of the messages")
    return seconds


def taken_off(tape: Tape) -> int:
    """Return how many streams the round's sum carries."""
    server, releases = tape.before_release()
    for member, release in releases:
        server.release(member, release)
    return len(server.finish())


def key_stream(streams: int, nbytes: int, clock: Callable[[], float]) -> float:
    """Return the seconds in which the library makes `streams` key streams of `nbytes`."""
    zeros = memoryview(bytes(masks.TILE_BYTES))
    noise = bytearray(masks.TILE_BYTES)
    key = os.urandom(32)
    start = clock()
    for _ in range(streams):
        stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        for low in range(0, nbytes, masks.TILE_BYTES):
            stream.update_into(zeros[: nbytes - low], noise)
    return clock() - start


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench secure: {line}", file=sys.stderr, flush=True)
