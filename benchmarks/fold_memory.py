"""What the core holds while a round of n clients comes in: the process behind `memory/64-over-8`.

A round in the core's own world: each client's message is written into its slot a piece at a time,
folded, and makes room for the next; then the model is stepped and put in force. The peak is the
kernel's, less what the process held before the world was made. `named` is what it should be:
accumulator, one slot, the model and the next one, for FedAvg has no moments.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from .ingest_process import answering
from .process_memory import peak, reset_peak, resident
from ..protocol.codec import Codec
from ..protocol.digest import model_digest
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..server.core.run_model import RunModel
from ..server.core.world import World
from ..server.core_cli import SLOTS
from ..server.stepping import StepOrder
from ..strategies.server_rules import FedAvg

_WARM_UP = 1000
_PIECE = bytes(range(256)) * 256


def play(clients: int, params: int) -> int:
    """Play a round; return the bytes that its buffers are."""
    manifest = Manifest.lay_out([("weight", (params,), "float32")])
    layout, codec = MessageLayout(manifest, {}, "train"), Codec(clients, 1.0, 1)
    world = World(SLOTS)
    first = np.zeros(manifest.total_bytes, np.uint8)
    model = RunModel(manifest, model_digest(first.data), first.data)
    del first
    found = world.open(layout.total_bytes, layout.split)
    for place in range(clients):
        slot = found.slot(str(place))
        if slot is None:
            raise RuntimeError("bench fold: no slot is free")
        for low in range(0, layout.split, len(_PIECE)):
            part = slot[low : min(low + len(_PIECE), layout.split)]
            part[:] = _PIECE[: len(part)]
        np.frombuffer(slot[layout.split :], "<u8")[:] = [1, 1, 0, 1]
        found.fold(str(place))
    sums = layout.read(found.numbers(), clients, codec)
    order = StepOrder(FedAvg(), 1, layout, codec, clients, sums.weight)
    model.adopt(found.step(model, order))
    found.close()
    return 2 * layout.total_bytes + 2 * model.nbytes


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Play the round that is asked for, after a small one that loads code."""
    play(3, _WARM_UP)
    gc.collect()
    reset_peak()
    before = resident()
    named = play(asked["clients"], asked["params"])
    return {"peak": peak() - before, "named": named}


if __name__ == "__main__":
    answering(answer)
