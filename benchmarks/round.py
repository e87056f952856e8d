"""What a round costs that trains nothing: real SuperNodes in sessions, beside Flower's own loop.

    plain, secure            seconds a round of 1,000 parameters, masks off and on
    plain/1e6, secure/1e6    the same with 10^6 parameters

Ledger and checkpoint are on. The peer is Flower's FedAvg with the same federation, ClientApp and
model, training messages only. The limit is one durable write of the model, which no round that is
to survive a power cut can do without. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import flower_round as flower
from .record import Measurement
from ..host.programs import direct
from ..host.stopping import no_orphans, stoppable
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL, LARGE = 1_000, 1_000_000
LOOPS = ("plain", "secure")
PASSES, LEAST = 2, 5
"""Into how many runs the rounds of a loop are split, in turn with the other's, if each has 5."""
_NEED = {"clients": 3, "rounds": 1, "large-rounds": 0, "peer-rounds": 0}
_ITEM_BYTES = 4


def run(
    clients: Annotated[int, typer.Option(help="SuperNodes.")] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds of 1,000 parameters, each loop.")] = 60,
    large_rounds: Annotated[int, typer.Option(help="Rounds of 10^6 parameters; 0: none.")] = 12,
    peer_rounds: Annotated[int, typer.Option(help="Rounds of Flower's loop; 0: none.")] = 3,
) -> Iterator[Measurement]:
    """Yield every case; the numbers are checked before anything starts."""
    given = {"clients": clients, "rounds": rounds, "large-rounds": large_rounds}
    for name, value in (given | {"peer-rounds": peer_rounds}).items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    sizes = {SMALL: rounds} | ({LARGE: large_rounds} if large_rounds else {})
    most = sum(count + 2 * PASSES for count in sizes.values()) * len(LOOPS)
    os.environ.update(direct())
    with stoppable(), no_orphans(), flower.IdleFederation(clients, most, _say) as federation:
        for params, count in sizes.items():
            yield from _cases(federation, params, count, peer_rounds)


def _cases(
    federation: flower.IdleFederation, params: int, rounds: int, peer_rounds: int
) -> Iterator[Measurement]:
    """Measure one size: the loops in turn, the limit between them, then Flower's loop."""
    samples: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    writes: list[float] = []
    for count in parts(rounds, min(PASSES, rounds // LEAST)):
        for loop in LOOPS:
            samples[loop] += federation.seconds(loop, params, count)
            writes += [durable_write(federation.home, params * _ITEM_BYTES) for _ in range(count)]
    peer = federation.seconds(flower.FLOWER, params, peer_rounds) if peer_rounds else []
    for loop in LOOPS:
        yield Measurement(
            bench="round",
            case=loop if params == SMALL else f"{loop}/1e6",
            unit="s",
            samples=samples[loop],
            peer=peer,
            peer_name=flower.NAME,
            limit=statistics.median(writes),
            limit_name="one durable write of the model",
        )


def parts(total: int, count: int) -> list[int]:
    """Return `total` as a sum of `count` numbers, one at least, that differ by one at most."""
    count = max(count, 1)
    return [total // count + (place < total % count) for place in range(count)]


def durable_write(folder: Path, nbytes: int) -> float:
    """Return the seconds in which a new file of `nbytes` is on the disk."""
    path, content = folder / "limit", os.urandom(nbytes)
    start = time.perf_counter()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench round: {line}", file=sys.stderr, flush=True)
