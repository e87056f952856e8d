"""All ranks of a simulation, as one of them sees them: gloo, tensors and JSON.

gloo over CPU memory, whatever trains: what is reduced are integers that a GPU has given back.
Nothing is pickled. **gloo neither encrypts nor authenticates**: ranks on several machines need a
network of their own; those of one machine talk over loopback.
"""

from __future__ import annotations

import ipaddress
import json
import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ...protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .replicas import World

    Blob = bytes | bytearray | memoryview

TOGETHER = timedelta(hours=6)
"""How long a rank waits for the others: one that died is noticed at once, and one that is slow, or
the coordinator between two rounds, is not cut."""
LOOPBACK = "lo"


class Group:
    """All ranks, as one of them sees them."""

    def __init__(self, world: World) -> None:
        """Meet the others; returns when all are there.

        Raises:
            StateError: They do not come.
        """
        self.rank, self.size = world.rank, world.size
        self.private = _loopback(world.address)
        """Whether all that is said stays on this machine."""
        if self.private:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        if torch.cuda.is_available():
            torch.cuda.set_device(world.local % torch.cuda.device_count())
        with _together():
            distributed.init_process_group("gloo", timeout=TOGETHER)

    def __str__(self) -> str:
        """Return the words of the log line."""
        way = "over loopback" if self.private else "in clear text over a network of their own"
        return f"{self.size} processes, {way}"

    def broadcast(
        self,
        fields: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes | bytearray | memoryview] = (),
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send fields and blobs from rank 0, where they are given, to all others."""
        text = json.dumps({"fields": fields, "sizes": [len(blob) for blob in blobs]}).encode()
        size = torch.tensor([len(text), sum(map(len, blobs))], dtype=torch.int64)
        with _together():
            distributed.broadcast(size, 0)
            body = torch.empty(int(size.sum()), dtype=torch.uint8)
            if not self.rank:
                whole = b"".join([text, *blobs])
                body = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
            distributed.broadcast(body, 0)
        if not self.rank:
            return dict(fields or {}), []
        view = body.numpy().data.cast("B")
        told, start = json.loads(bytes(view[: int(size[0])])), int(size[0])
        found = []
        for length in told["sizes"]:
            found.append(bytes(view[start : start + length]))
            start += length
        return told["fields"], found

    def tell(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Say something to all, and return what every rank says."""
        text = json.dumps(fields).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _together():
            distributed.all_gather(sizes, torch.tensor([len(text)]))
            width = max(int(size) for size in sizes)
            own = torch.zeros(width, dtype=torch.uint8)
            own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            found = [torch.empty(width, dtype=torch.uint8) for _ in range(self.size)]
            distributed.all_gather(found, own)
        return [
            json.loads(bytes(one.numpy()[: int(size)]))
            for one, size in zip(found, sizes, strict=True)
        ]

    def reduce(self, values: NDArray[np.int64]) -> None:
        """Add up every rank's integers at rank 0, in place."""
        with _together():
            distributed.reduce(torch.from_numpy(values), 0)

    def hand(self, rows: NDArray[Any], rank: int) -> None:
        """Send rows of a rank to rank 0, which receives them in its own array of that shape."""
        with _together():
            if self.rank:
                distributed.send(torch.from_numpy(rows), 0)
            else:
                distributed.recv(torch.from_numpy(rows), rank)

    def close(self) -> None:
        """Part."""
        distributed.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """Wait for the others in this block."""
    try:
        yield
    except RuntimeError as error:
        raise StateError(
            "replicas",
            "every process of the group",
            str(error).partition("\n")[0],
            "start them all again; a run goes on with umbel runs resume",
        ) from error


def _loopback(address: str) -> bool:
    """Return whether the ranks meet on this machine."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
