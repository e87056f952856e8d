"""Many session clients in one process, for tests of what a gateway bears.

    python -m umbel.tests.crowd sessions|joins    with one JSON order on stdin

`sessions` holds a real session for each device, in threads, until all have ended, and prints their
outcomes. `joins` opens connection and session of each device so many times, one after another and
some devices at a time, each with its own TLS handshake, and prints the seconds that all took.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.clients.device_files import DeviceFiles
from umbel.clients.grpc_line import SERVICE, dial
from umbel.protocol import messages_pb2 as pb
from umbel.tests.federations import DeviceThread
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

AT_A_TIME = 4
"""Devices of one process that join at the same time."""


class Even(Numbers):
    """The same update for every device: any cohort has the same mean."""

    def train(self, arrays, site, settings):  # type: ignore[no-untyped-def]
        """Return the numbers of device 0."""
        return super().train(arrays, type(site)(partition=0, partitions=1), settings)


def sessions(order: Mapping[str, Any]) -> dict[str, Any]:
    """Hold a session for each device, and return how each ended."""
    started = [
        DeviceThread(DeviceFiles.read(Path(d["directory"])), Even(), 0).start(
            order["run"], bytes.fromhex(d["ticket"])
        )
        for d in order["devices"]
    ]
    outcomes = [device.join(600.0) for device in started]
    return {"reasons": [int(o.reason) for o in outcomes], "rounds": [o.rounds for o in outcomes]}


def joins(order: Mapping[str, Any]) -> dict[str, Any]:
    """Join with each device so many times, and return how long it took."""
    began = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        counts = list(pool.map(lambda device: _join(device, order), order["devices"]))
    return {"joins": sum(counts), "seconds": time.monotonic() - began}


def _join(device: Mapping[str, Any], order: Mapping[str, Any]) -> int:
    """Dial, say hello, be welcomed and hang up, again and again."""
    files = DeviceFiles.read(Path(device["directory"]))
    tls, identity = files.tls(files.clock()), files.identity(files.clock())
    hello = pb.Hello(
        run=order["run"],
        ticket=bytes.fromhex(device["ticket"]),
        certificate=identity.certificate,
    )
    first = pb.Up(hello=hello).SerializeToString()
    for count in itertools.count(1):
        over = threading.Event()
        channel = dial(files.gateway, tls)
        method: Any = channel.stream_stream(f"{SERVICE}/Session")
        stream = method(_until(over, first))
        down = pb.Down.FromString(next(stream))
        if down.welcome.epoch != count:
            raise RuntimeError(f"connection {count} is called {down.welcome.epoch}")
        over.set()
        stream.cancel()
        channel.close()
        if count == order["times"]:
            return count
    raise AssertionError


def _until(over: threading.Event, first: bytes) -> Iterator[bytes]:
    yield first
    over.wait()


WHAT: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "sessions": sessions,
    "joins": joins,
}


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    print(json.dumps(WHAT[sys.argv[1]](json.load(sys.stdin))), flush=True)
