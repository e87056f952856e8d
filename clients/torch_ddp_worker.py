"""The processes of a training group: `python -P -m umbel.clients.torch_ddp_worker ...`.

    parent ═pipe═ rank 0 ═pipe═ rank 1        each pipe as in pipe.py: calls down, answers up
                     ╚═pipe═ rank 2 ...       between ranks: gloo or NCCL, tensors only

Rank 0 is the training child of the session's process and alone talks to it. It starts the other
ranks as interpreters of their own (nothing is forked, nothing pickled), hands every call of `train`
and `evaluate` on to them and answers for all. They say nothing unless something broke.

The group lives and dies as one. A rank that ends, or fails where others may wait for it, ends the
group: rank 0 kills the others, says to the parent what happened if that waits for an answer, and
leaves; the parent's next call starts a new group. A rank leaves when rank 0 does, however that
happens. torch is imported after the other ranks are on their way, so that all import it at once.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import pipe
from .child import LOOK_S, InProcess, boundary, fill
from .worker import CALLS, listen, refusal
from ..host.spawned import ended, module_command, take_pipe
from ..protocol.errors import Refused
from ..strategies.app import AppRef

if TYPE_CHECKING:
    import io
    import queue
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .torch_ddp import Group
    from .worker import Request

SHARED = {"train", "evaluate"}
"""Calls that every rank serves; the others are rank 0's own."""
END_S = 1.0
"""How long rank 0 waits for killed ranks to be gone."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What every rank is started with."""

    directory: str
    component: str
    max_bytes: int
    ranks: int
    rank: int
    meeting: Path
    gpus: bool

    @classmethod
    def parse(cls, words: list[str]) -> Arguments:
        """Return the arguments of a rank; rank 0 is started without the last three.

        DIRECTORY COMPONENT MAX_BYTES PROCESSES GPUS [RANK MEETING gpu|cpu]: PROCESSES is how many
        ranks there are where there is no GPU, else at most GPUS of them, each with its own.
        """
        directory, component, max_bytes, processes, gpus, *own = words
        if own:
            rank, meeting, kind = own
            place = int(processes), int(rank), Path(meeting), kind == "gpu"
        else:
            found = min(_gpus(), int(gpus))
            meeting = tempfile.mkdtemp(prefix="umbel-ranks-")  # its mode is 0700
            place = found or int(processes), 0, Path(meeting), bool(found)
        return cls(directory, component, int(max_bytes), *place)

    def words(self, rank: int) -> list[str]:
        """Return what another rank is started with."""
        fixed = [self.directory, self.component, str(self.max_bytes), str(self.ranks), "0"]
        return [*fixed, str(rank), str(self.meeting), "gpu" if self.gpus else "cpu"]


def _gpus() -> int:
    """Return how many GPUs torch can use; it is not imported where there can be none."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 0
    import torch  # noqa: PLC0415 - seconds

    return torch.cuda.device_count()


class Rank:
    """One process of the group, and what it serves calls with."""

    def __init__(self, arguments: Arguments, source: io.FileIO, sink: io.FileIO) -> None:
        """Listen to the pipe; the group is joined with the first call."""
        self.arguments = arguments
        self._sink = sink
        self._requests: queue.SimpleQueue[Request] = listen(source, arguments.max_bytes, self.leave)
        self._trainer: InProcess | None = None

    def join(self) -> Group:
        """Meet the other ranks."""
        with boundary():
            from .torch_ddp import Group, Place  # noqa: PLC0415 - imports torch

            own = self.arguments
            return Group(Place(own.rank, own.ranks, own.meeting, own.gpus))

    def call(
        self, group: Group, fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]]]:
        """Run one call here, after the task was loaded: by all ranks or by none."""
        with boundary():
            if fields["call"] in SHARED:
                with group.together():
                    trainer = self._loaded(group)
            else:
                trainer = self._loaded(group)
            return CALLS[fields["call"]](trainer, fields, arrays)

    def leave(self, code: int) -> NoReturn:
        """End this process at once."""
        shutil.rmtree(self.arguments.meeting, ignore_errors=True)
        os._exit(code)

    def _loaded(self, group: Group) -> InProcess:
        from .torch_ddp import load  # noqa: PLC0415 - imports torch

        if self._trainer is None:
            app = AppRef(Path(self.arguments.directory), self.arguments.component)
            self._trainer = InProcess(app, lambda ref: load(ref, group))
        return self._trainer


class Follower(Rank):
    """Rank 1 or higher."""

    def serve(self) -> NoReturn:
        """Serve calls until rank 0 is gone."""
        threading.Thread(target=self._follow, args=(os.getppid(),), daemon=True).start()
        group = self.join()
        while True:
            fields, arrays = self._requests.get()
            try:
                self.call(group, fields, arrays)
            except Refused as error:
                print(f"rank {self.arguments.rank}: {error}", file=sys.stderr, flush=True)
                if group.broken:
                    pipe.send(self._sink, refusal(error), {})
                    self.leave(1)
            sys.stdout.flush()

    def _follow(self, leader: int) -> NoReturn:
        """Leave with rank 0, though a process that the user's code forked holds the pipe open."""
        while os.getppid() == leader:
            time.sleep(LOOK_S)
        self.leave(0)


class Leader(Rank):
    """Rank 0."""

    def __init__(self, arguments: Arguments, source: io.FileIO, sink: io.FileIO) -> None:
        """Start the other ranks, and watch them."""
        self._lock = threading.Lock()
        self._asked = True  # the parent starts this process to ask something
        self._others = [self._start(arguments, rank) for rank in range(1, arguments.ranks)]
        super().__init__(arguments, source, sink)
        for rank, process in enumerate(self._others, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def serve(self) -> NoReturn:
        """Serve calls until the parent is gone."""
        group: Group | None = None
        while True:
            fields, arrays = self._requests.get()
            self._asked = True
            try:
                group = group or self.join()
                self._hand_on(fields, arrays)
                answer, found = self.call(group, fields, arrays)
                with boundary():
                    self._answer(answer, found)
            except Refused as error:
                if group is None or group.broken:
                    self.over(f"ended its group: {refusal(error)['detail']}")
                self._answer(refusal(error), {})
            sys.stdout.flush()

    def over(self, how: str) -> NoReturn:
        """End the group, and say why to a parent that waits."""
        with self._lock:
            if self._asked:
                with suppress(BrokenPipeError):
                    pipe.send(self._sink, {"over": how}, {})
            else:
                print(f"training group, idle: {how}", file=sys.stderr, flush=True)
            self.leave(1)

    def leave(self, code: int) -> NoReturn:
        """End the other ranks and this one."""
        for process in self._others:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            for process in self._others:
                process.wait(END_S)
        super().leave(code)

    def _answer(self, fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        with self._lock:
            pipe.send(self._sink, fields, arrays)
            self._asked = False

    def _hand_on(self, fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Send a shared call to the other ranks."""
        if fields["call"] in SHARED:
            for process in self._others:
                with suppress(BrokenPipeError):  # whoever watches that rank ends the group
                    pipe.send(process.stdin, fields, arrays)  # type: ignore[arg-type]

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait for a rank to end, or to say that it broke a call."""
        name = f"rank {rank} of {self.arguments.ranks}"
        try:
            words, _ = pipe.receive(lambda view: fill(process, view), 0, name)
        except EOFError:
            how = f"lost {name}, which {ended(process.wait())}"
        else:
            how = f"ended its group: {name}: {words.get('detail')}"
        self.over(how)

    def _start(self, arguments: Arguments, rank: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own module
            module_command(sys.executable, __package__, "torch_ddp_worker", *arguments.words(rank)),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


def main(words: list[str]) -> None:
    """Be one rank."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would hold the data and the model
    # DDP warns of each model whose parameters are all used, at length.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    source, sink = take_pipe()
    arguments = Arguments.parse(words)
    kind = Follower if arguments.rank else Leader
    kind(arguments, source, sink).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
