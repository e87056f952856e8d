"""What a robust rule costs on one thread, beside Flower's own functions.

    median/n=N       exact coordinate-wise median            peer: np.median, as FedMedian
    trimmed/n=N      exact trimmed mean, a fifth off each end  peer: FedTrimmedAvg's trim_mean
    trimmed-stream/n=N   the same from updates in batches of 8, in 2k + 1 vectors
    multikrum/n=N    distances, choice and mean of n / 2     peer: MultiKrum
    geomedian/n=N    geometric median to 1e-10               peer: OpenFL's algorithm, 4 steps

Unit: GB of client payload (4 bytes a parameter and client) a CPU second. The limit is a read-only
sum of the payload. Results are compared with the peer's before anything is timed, and Krum's pick
with float64's at an update of 1e-5 of the weights. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import typer

from . import flower_robust as peer
from .record import Measurement, interleave
from ..protocol.errors import SettingsError, VoidRound
from ..strategies import gram
from ..strategies.robust_rules import Robust, aggregate, kernels
from ..strategies.trimmed_stream import TrimmedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from ..strategies.robust_rules import Tiles

    Floats = NDArray[np.float32]

SHARE = 0.2
BYZANTINE = 3
BATCH = 8
WEIGHT, RATIO, SMALL = 0.05, 2e-2, 1e-5
_CLOSE = {"median": 0.0, "geomedian": 1e-5}
_ROUNDING = 1e-6
_WIDE = ("trimmed-stream", "multikrum", "geomedian")
"""Cases that are measured with the larger number of clients only."""


class Case(NamedTuple):
    """Both sides of a comparison; each call returns its result."""

    ours: Callable[[], Floats]
    theirs: Callable[[], Floats]
    peer_name: str


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 1_000_000,
    clients: Annotated[int, typer.Option(help="The larger number of clients.")] = 32,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value, least in (("params", params, 1), ("runs", runs, 1), ("clients", clients, 18)):
        if value < least:
            raise SettingsError(f"--{name}", f"{least} or more", value)
    tiles, line = kernels(clients)
    _say(line)
    _picks(tiles, params)
    for count in (clients // 2, clients):
        rows = payload(count, params)
        for name, case in cases(tiles, rows).items():
            if count == clients or name not in _WIDE:
                yield _race(f"{name}/n={count}", name, case, rows, runs)


def payload(clients: int, params: int) -> Floats:
    """Return the clients' models, shape (n, params): weights about 0.05, updates 2e-2 of them.

    Clients differ in the size of their updates by up to four times, and the last few are hostile:
    theirs are 20 times as large and point one way.
    """
    rng = np.random.default_rng(clients)
    rows = rng.standard_normal((clients, params), np.float32)
    rows *= rng.uniform(0.5, 2.0, (clients, 1)).astype(np.float32) * np.float32(WEIGHT * RATIO)
    rows[-BYZANTINE:] = rows[-1] * np.float32(20.0)
    rows += model(params)
    return rows


def model(params: int) -> Floats:
    """Return the global model that the updates started from."""
    return np.random.default_rng(0).standard_normal(params, np.float32) * np.float32(WEIGHT)


def cases(tiles: Tiles, rows: Floats) -> dict[str, Case]:
    """Return both sides of every case for these clients; outputs are made once."""
    clients, params = rows.shape
    updates, replies, centre = list(rows), peer.records(list(rows)), model(params)
    out = np.empty(params, np.float32)
    keep = clients // 2

    deltas = rows - centre
    state = TrimmedStream(params, int(SHARE * clients), tiles)

    def of(robust: Robust, *, models: bool = True) -> Floats:
        given, around = (rows, centre) if models else (deltas, None)
        aggregate(robust, given, out, tiles, centre=around)
        return out

    trimmed = partial(peer.trimmed_mean, updates, SHARE)
    name = f"{peer.FLOWER} trim_mean"
    return {
        "median": Case(
            partial(of, Robust(rule="median")),
            partial(peer.median, updates),
            f"{peer.FLOWER} np.median",
        ),
        "trimmed": Case(partial(of, Robust(rule="trimmed-mean", cut=SHARE)), trimmed, name),
        "trimmed-stream": Case(partial(_stream, state, rows, out), trimmed, name),
        "multikrum": Case(
            partial(of, Robust(rule="multi-krum", byzantine=BYZANTINE, keep=keep)),
            partial(peer.multi_krum, replies, BYZANTINE, keep),
            f"{peer.FLOWER} MultiKrum",
        ),
        "geomedian": Case(
            partial(of, Robust(rule="geometric-median"), models=False),
            partial(peer.geometric_median, list(deltas)),
            peer.OPENFL,
        ),
    }


def _stream(state: TrimmedStream, rows: Floats, out: Floats) -> Floats:
    """Pass all updates through a state that has been used before, batch by batch."""
    state.reset()
    for low in range(0, len(rows), BATCH):
        state.update(rows[low : low + BATCH])
    state.result(out)
    return out


def _race(label: str, name: str, case: Case, rows: Floats, runs: int) -> Measurement:
    """Compare results, which also warms up, then time both and the limit in turn.

    Raises:
        VoidRound: The results differ by more than rounding.
    """
    _say(f"{label}: {rows.shape[1]} parameters, {runs} runs")
    off = float(np.abs(case.ours() - case.theirs()).max())
    if off > _CLOSE.get(name, _ROUNDING):
        raise VoidRound(f"benchmark: {label} is {off} away from {case.peer_name}")
    calls = {
        "ours": partial(_rate, case.ours, rows.nbytes),
        "theirs": partial(_rate, case.theirs, rows.nbytes),
        "limit": partial(_rate, partial(np.sum, rows), rows.nbytes),
    }
    found = interleave(calls, runs)
    return Measurement(
        bench="robust",
        case=label,
        unit="GB/s",
        samples=found["ours"],
        peer=found["theirs"],
        peer_name=case.peer_name,
        limit=statistics.median(found["limit"]),
        limit_name="read-only sum of the payload",
    )


def _rate(call: Callable[[], object], nbytes: int) -> float:
    start = time.process_time()
    call()
    return nbytes / (time.process_time() - start) / 1e9


def _picks(tiles: Tiles, params: int) -> None:
    """Say what Krum picks where updates are 1e-5 of the weights, and Flower's.

    Raises:
        VoidRound: Ours is not float64's.
    """
    clients, size = 16, min(params, 1 << 18)
    rng = np.random.default_rng(1)
    centre = model(size)
    steps = rng.standard_normal((clients, size)) * WEIGHT * SMALL
    rows = (centre + steps).astype(np.float32)
    products = np.zeros((clients, clients))
    tiles.gram(rows, centre, products)
    wide = rows.astype(np.float64) - centre
    exact = gram.krum(wide @ wide.T, BYZANTINE)
    ours, replies = gram.krum(products, BYZANTINE), peer.records(list(rows))
    negative = int((peer.squared_distances(replies) < 0).sum())
    _say(
        f"krum at an update of {SMALL} of the weights: float64 picks client {exact}, umbel {ours}, "
        f"{peer.FLOWER} {peer.krum_pick(replies, BYZANTINE)} ({negative} negative distances)"
    )
    if ours != exact:
        raise VoidRound(f"benchmark: krum picks client {ours}, float64 client {exact}")


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench robust: {line}", file=sys.stderr, flush=True)
