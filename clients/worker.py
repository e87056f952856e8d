"""The training child: `python -P -m umbel.clients.worker DIRECTORY COMPONENT MAX_BYTES`.

Serves the calls of `Child` one after the other. Its pipe is moved away from file descriptors 0 and
1 before user code is imported, so that what user code prints lands on stderr. A thread reads the
pipe: it closes when the parent ends, however it ends, and then this process leaves at once, in the
middle of training too.
"""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import pipe
from .child import InProcess, boundary
from ..host.spawned import take_pipe
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Malformed, Refused, reason_text
from ..strategies.app import AppRef
from ..strategies.task import Site
from ..strategies.trainer import Settings, TrainResult

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Answer = tuple[dict[str, Any], Arrays]

Request = tuple[dict[str, Any], dict[str, "NDArray[Any]"]]


def _site(fields: Mapping[str, Any]) -> Site:
    data = fields["site"].pop("data")
    return Site(**fields["site"], data=tuple(map(Path, data)))


def _answer(result: TrainResult) -> Answer:
    return {"weight": result.weight, "metrics": result.metrics}, result.deltas


CALLS: dict[str, Callable[[InProcess, Mapping[str, Any], Arrays], Answer]] = {
    "arrays": lambda t, f, _: ({}, t.arrays(f["seed"])),
    "declared": lambda t, f, _: ({"metrics": t.declared(f["phase"])}, {}),
    "epochs": lambda t, _f, _a: ({"metrics": {"epochs": t.epochs()}}, {}),
    "train": lambda t, f, a: _answer(t.train(a, _site(f), Settings(**f["settings"]))),
    "evaluate": lambda t, f, a: _answer(t.evaluate(a, _site(f))),
    "test": lambda t, _, a: ({"metrics": t.test(a)}, {}),
}


def main(arguments: list[str]) -> None:
    """Serve calls until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the data and the model
    directory, component, max_bytes = arguments
    source, sink = take_pipe()
    requests = listen(source, int(max_bytes))
    trainer: InProcess | None = None
    while True:
        fields, arrays = requests.get()
        try:
            trainer = trainer or InProcess(AppRef(Path(directory), component))
            answer, found = CALLS[fields["call"]](trainer, fields, arrays)
            with boundary():
                pipe.send(sink, answer, found)
        except Refused as error:
            pipe.send(sink, refusal(error), {})
        sys.stdout.flush()


def refusal(error: Refused) -> dict[str, Any]:
    """Return the answer that says it."""
    detail = str(error).removeprefix(f"{reason_text(error.reason)}: ")[:1024]
    return {"refused": pb.Reason.Name(error.reason), "detail": detail, "key": error.key}


def listen(
    source: io.FileIO, limit: int, leave: Callable[[int], NoReturn] = os._exit
) -> queue.SimpleQueue[Request]:
    """Return where the parent's messages arrive; `leave` ends the process after the last one."""
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, limit, requests, leave), daemon=True).start()
    return requests


def _listen(
    source: io.FileIO,
    limit: int,
    requests: queue.SimpleQueue[Request],
    leave: Callable[[int], NoReturn],
) -> None:
    """Hand on the parent's messages until its pipe closes."""

    def fill(view: memoryview) -> None:
        while view:
            count = source.readinto(view)
            if not count:
                raise EOFError
            view = view[count:]

    while True:
        try:
            message = pipe.receive(fill, limit, "parent")
        except EOFError:
            leave(0)
        except Malformed as error:
            print(f"training child: {error}", file=sys.stderr, flush=True)
            leave(1)
        requests.put(message)


if __name__ == "__main__":
    main(sys.argv[1:])
