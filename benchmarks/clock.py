"""The virtual clock: a million registered clients, rounds of a hundred, asynchronous events.

    register/1e6          seconds until the first round can begin: fleet.toml read, every device
                          drawn
    memory/1e6            MiB by which the process has grown at most, in all that follows too
    round/100-of-1e6      seconds to decide a synchronous round: who of a million is online and
                          asked, when each of 130 arrives, who is used; p95 and worst over all
    event/100-of-1e6      seconds for one end of a launch in an asynchronous run, 100 at work

Each run is a process of its own. The peer is one look of Flower's simulation engine at all of its
nodes, with 100 messages waiting: it does that ten times a second. It has a thousandth of the nodes,
because the time grows with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .ingest_process import other
from .process_memory import MIB
from .record import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PEER = "flwr 1.42.0 InMemoryLinkState, one sweep of {} nodes"


def run(
    clients: Annotated[int, typer.Option(help="Registered clients.")] = 1_000_000,
    cohort: Annotated[int, typer.Option(help="Updates that a round waits for.")] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of a run.")] = 1000,
    nodes: Annotated[int, typer.Option(help="Nodes of the peer.")] = 1000,
    runs: Annotated[int, typer.Option(help="Runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Measure the clock over a fleet, beside Flower's in-memory state."""
    found: list[dict[str, Any]] = []
    peer: list[float] = []
    for _ in range(runs):
        with other("clock_process") as process:
            found.append(process.ask(clients=clients, cohort=cohort, rounds=rounds))
        with other("flower_clock") as process:
            peer.append(process.ask(nodes=nodes, messages=min(cohort, nodes))["sweep"])
    size = f"{clients:.0e}".replace("e+0", "e")
    of = f"{cohort}-of-{size}"
    yield _case(f"register/{size}", "s", [one["register"] for one in found])
    yield _case(f"memory/{size}", "MiB", [one["memory"] / MIB for one in found])
    yield Measurement(
        bench="clock",
        case=f"round/{of}",
        unit="s",
        samples=[seconds for one in found for seconds in one["rounds"]],
        peer=peer,
        peer_name=_PEER.format(nodes),
    )
    yield _case(f"event/{of}", "s", [one["event"] for one in found])


def _case(case: str, unit: str, samples: list[float]) -> Measurement:
    return Measurement(bench="clock", case=case, unit=unit, samples=samples)
