"""One evaluator: `python -P -m umbel.server.evaluator DIRECTORY COMPONENT`.

It imports the app, loads the test data once, and measures models over the parts that it is asked
for (strategies/testing.py). A model is read from its round's folder, every byte of it hashed:

    > {"folder": …, "run": …, "round": 7, "digest": hex, "parts": [0, 3]}
    < {"examples": 359}                    first of all, unasked; null where there is no test data
    < {"sums": [{"examples": …, …}, …]}    or {"raised": "ValueError: …"}, the last it says

One line of JSON each. User code runs here, on one thread of OpenMP, and in no process that knows a
key or another run. What it prints, and its traces, go to stderr: the ServerApp's log. A thread
reads the pipe: it closes when the ServerApp ends, however it ends, and then this process leaves at
once, in the middle of a test too.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .round_folder import read_model
from ..host.spawned import take_pipe
from ..protocol.errors import StateError, one_line
from ..strategies.app import AppRef, load_task
from ..strategies.trainer import TaskTrainer

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

MOST_SAID = 512
"""Characters of what user code raised."""


def main(arguments: list[str]) -> None:
    """Answer until the parent is gone, or until user code raises."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the data and the model
    source, sink = take_pipe()
    requests = _listen(source)
    said = guarded(lambda: _serve(AppRef(Path(arguments[0]), arguments[1]), requests, sink))
    _say(sink, {"raised": said})


def guarded(call: Callable[[], object]) -> str:
    """Run user code to its end; return the last line of what it raised, or nothing.

    The whole trace goes to stderr. This is where everything is caught: a server's test must not
    end its run.
    """
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the boundary to user code
        traceback.print_exc()
        return one_line(traceback.format_exception_only(error)[-1].strip())[:MOST_SAID]
    return ""


def _serve(app: AppRef, requests: queue.SimpleQueue[dict[str, Any]], sink: io.FileIO) -> None:
    task = load_task(app)
    trainer, data = TaskTrainer(task), task.test_data()
    split = [] if data is None else trainer.split(data)
    _say(sink, {"examples": split[-1].stop if split else None})
    while True:
        asked = requests.get()
        found = read_model(Path(asked["folder"]), asked["run"], asked["round"])
        if found.digest.hex() != asked["digest"]:
            raise StateError(asked["folder"], f"model {asked['digest']}", found.digest.hex())
        start, stop = asked["parts"]
        _say(sink, {"sums": trainer.measured(found.arrays, data, split[start:stop])})
        sys.stdout.flush()


def _say(sink: io.FileIO, answer: dict[str, Any]) -> None:
    line = memoryview(json.dumps(answer, allow_nan=False).encode() + b"\n")
    while line:
        line = line[sink.write(line) or 0 :]


def _listen(source: io.FileIO) -> queue.SimpleQueue[dict[str, Any]]:
    """Return where the parent's lines arrive; the process ends after the last one."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in os.fdopen(os.dup(source.fileno()), "rb"):
            requests.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return requests


if __name__ == "__main__":
    main(sys.argv[1:])
