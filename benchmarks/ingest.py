"""Ingest: GB/s of one client's update into the core's memory, beside Flower's push of objects.

    stream/plain   gRPC without TLS, frames checked and hashed; peer: Flower's HTTP push without TLS
    stream/tls     as in service, with mutual TLS; peer: Flower's push with TLS
    publish        seconds from a round's last frame to the next model in force, digest and all
    publish/fedadam, publish/ranks=2    the same with another rule, and by two processes
    flower-objects    replies in Flower messages into the mean (flower_objects.py); peer: Flower's

Sender and receiver are two processes of this machine. The limit is the same bytes over one plain
TCP or TLS connection into memory that is there. How each is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import statistics
import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from . import flower_ingest, flower_objects, grpc_ingest, ingest_publish, tcp_ingest
from .ingest_process import certificates, other
from .record import Measurement, interleave
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator


MIB = 1 << 20
WAYS = ("plain", "tls")
_HASHED = 64
_NEED = {"mib": 1, "params": 1000, "runs": 1}


class End(Protocol):
    """The sending end of one way."""

    def seconds(self) -> float:
        """Send the payload once; return when it has landed."""

    def close(self) -> None:
        """Hang up."""


def run(
    mib: Annotated[int, typer.Option(help="MiB of an update; Flower cuts it into 5.")] = 80,
    params: Annotated[int, typer.Option(help="Parameters of a published model.")] = 10_000_000,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 9,
    ranks: Annotated[bool, typer.Option(help="Publish by ranks, too.")] = True,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"mib": mib, "params": params, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    yield from _streams(os.urandom(mib * MIB), runs)
    yield from _published(params, runs, ranks)
    yield from flower_objects.cases(params, runs)


def _streams(payload: bytes, runs: int) -> Iterator[Measurement]:
    """Race the three ways of a payload, with TLS and without."""
    _say(f"SHA-256, which Umbel's figure has in it, is {_hash_rate(payload):.2f} GB/s here")
    with ExitStack() as stack:
        ends = _ends(stack, payload)
        for end in ends.values():
            end.seconds()
        found = interleave({name: end.seconds for name, end in ends.items()}, runs)
    rates = {name: [len(payload) / s / 1e9 for s in took] for name, took in found.items()}
    for way in WAYS:
        yield Measurement(
            bench="ingest",
            case=f"stream/{way}",
            unit="GB/s",
            samples=rates[f"umbel/{way}"],
            peer=rates[f"flower/{way}"],
            peer_name=f"{flower_ingest.NAME}, {way}",
            limit=statistics.median(rates[f"raw/{way}"]),
            limit_name=f"one connection, recv_into, {way}",
        )


def _published(params: int, runs: int, ranks: bool) -> Iterator[Measurement]:
    """Race the worlds at the end of a round."""
    played, torch = ingest_publish.Round(params), importlib.util.find_spec("torch")
    wanted = [case for case in ingest_publish.CASES if ranks or not case.ranks]
    cases = [case for case in wanted if torch or not case.ranks]
    with ExitStack() as stack:
        calls = {case.name: played.ends(stack, case) for case in cases}
        found = interleave({**calls, "digest": played.digest_seconds}, runs)
    for case in wanted:
        yield Measurement(
            bench="ingest",
            case=case.name,
            unit="s",
            samples=found.get(case.name, ()),
            absent=None if case in cases else "ranks need torch; `pip install umbel[torch]`",
            limit=statistics.median(found["digest"]),
            limit_name="the model's SHA-256 tree on one core",
        )


def _ends(stack: ExitStack, payload: bytes) -> dict[str, End]:
    """Start the three other processes and connect to each in both ways."""
    papers, buffer = certificates(), bytearray(payload)
    others = [stack.enter_context(other(f"{name}_ingest")) for name in ("grpc", "flower", "tcp")]
    service, link, sink = others
    ends: dict[str, End] = {}
    for way in WAYS:
        shown = papers if way == "tls" else None
        sender = grpc_ingest.Sender(service, papers, buffer, tls=way == "tls")
        ends[f"umbel/{way}"] = sender
        ends[f"flower/{way}"] = flower_ingest.SuperNode(link, shown, payload)
        ends[f"raw/{way}"] = tcp_ingest.Source(sink, shown, payload)
    for end in ends.values():
        stack.enter_context(closing(end))
    return ends


def _hash_rate(payload: bytes) -> float:
    digest, part = hashlib.sha256(), payload[:MIB]
    start = time.thread_time()
    for _ in range(_HASHED):
        digest.update(part)
    return _HASHED * len(part) / (time.thread_time() - start) / 1e9


def _say(line: str) -> None:
    """Tell the reader of a terminal what goes on; stdout is for results."""
    print(f"umbel bench ingest: {line}", file=sys.stderr, flush=True)
