"""User code in one spawned process, and the one boundary that catches what it raises.

`Child` has the methods of a `Trainer` and runs them in a fresh interpreter (worker.py): a crash, an
out-of-memory kill or a leak of the user's code ends the child and not the session with its keys. It
is named at once and started anew at the next call. `interrupt` ends it when nobody waits for its
work any more. A client keeps nothing between rounds, so a new
child gives the same numbers. `InProcess` is the same without the process, for speed.

Whatever user code raises, its trace goes to this machine's stderr and upwards only a reason:
exception texts can carry data.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from . import pipe
from .bounds import Bounds
from .traces import Traces
from ..host.spawned import THREADS, module_command, reap
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Malformed, Refused, UmbelError
from ..protocol.manifest import Manifest
from ..strategies.app import AppRef, load_trainer
from ..strategies.task import Task
from ..strategies.trainer import Settings, TaskTrainer, TrainResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from ..strategies.task import Site
    from ..strategies.trainer import Trainer

LOOK_S = 0.2
"""How often the parent looks whether a silent child lives; its closed pipe is seen at once."""
GRACE_S = 2.0
"""How long a child may take to leave before it is killed."""


MEMORY = "limits.memory"
_TRACES = Traces()
"""Of this process: a child's are told in the child."""


class ChildDied(Refused):
    """The training child ended in the middle of a call."""

    def __init__(self, pid: int, how: str) -> None:
        """Name the process and how it ended."""
        super().__init__(
            pb.REASON_TASK_FAILED, f"training child {pid} {how}; the next call starts a new one"
        )


@contextmanager
def boundary() -> Iterator[None]:
    """Run user code: what it raises becomes a trace on stderr and `task failed`."""
    try:
        yield
    except Refused:
        raise
    except UmbelError as error:
        raise Refused(pb.REASON_TASK_FAILED, str(error)) from None
    except MemoryError as error:
        _TRACES.tell(error)
        detail = "no memory is left for the task; its trace is above"
        raise Refused(pb.REASON_LIMITS, detail, MEMORY) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code's boundary, sys.exit(0) too
        _TRACES.tell(error)
        raise Refused(pb.REASON_TASK_FAILED, "the task raised; its trace is above") from None


def _nothing() -> None:
    """Watch nothing."""


class Around(NamedTuple):
    """What bounds a child."""

    bounds: Bounds = Bounds()
    watch: Callable[[], None] = _nothing
    """Called while it works; raises `Refused` to end it."""


FREE = Around()


class InProcess:
    """The `Trainer` of an app or a task in this process: no protection, no start-up time."""

    def __init__(
        self, app: AppRef | Task, load: Callable[[AppRef], Trainer] = load_trainer
    ) -> None:
        """Import the task and build its model; `load` returns the trainer of an app."""
        with boundary():
            self._trainer = TaskTrainer(app) if isinstance(app, Task) else load(app)

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model of a run with this seed."""
        with boundary():
            return self._trainer.arrays(seed)

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        with boundary():
            return self._trainer.declared(phase)

    def epochs(self) -> int:
        """Return how often a client goes through its examples where the settings do not say it."""
        return self._trainer.task.epochs if isinstance(self._trainer, TaskTrainer) else 1

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Evaluate and then train the model that came."""
        with boundary():
            return self._trainer.train(arrays, site, settings)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Evaluate the model that came on the client's own examples."""
        with boundary():
            return self._trainer.evaluate(arrays, site)

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return test means of the server's own examples."""
        with boundary():
            return self._trainer.test(arrays)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class Child:
    """The `Trainer` of an app in a child process; calls from several threads take turns."""

    def __init__(
        self,
        app: AppRef,
        *,
        python: str = sys.executable,
        max_bytes: int = pipe.MAX_BYTES,
        around: Around = FREE,
    ) -> None:
        """Remember what to start; the first call starts it.

        Args:
            app: Where the task is.
            python: The interpreter, with umbel and the app's packages.
            max_bytes: Most bytes of arrays in one message, either way.
            around: What bounds it.
        """
        self._around = around
        self.app = app
        self._python = python
        self._max_bytes = max_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._interrupted: tuple[int, str] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the child that runs, or None."""
        return None if self._process is None else self._process.pid

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model of a run with this seed."""
        return self._call("arrays", {"seed": seed})[1]

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        return _numbers(self._call("declared", {"phase": phase})[0], int)

    def epochs(self) -> int:
        """Return how often a client goes through its examples where the settings do not say it."""
        return int(_numbers(self._call("epochs", {})[0], int).get("epochs", 1))

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Evaluate and then train the model that came."""
        fields = {"site": packed(site), "settings": asdict(settings)}
        result = _result(*self._call("train", fields, arrays))
        Manifest.of(arrays).check_deltas(result.deltas, "training child")
        return result

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Evaluate the model that came on the client's own examples."""
        return _result(*self._call("evaluate", {"site": packed(site)}, arrays))

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return test means of the server's own examples."""
        found = _numbers(self._call("test", {}, arrays)[0], int, float)
        return {name: float(value) for name, value in found.items()}

    def interrupt(self, why: str) -> bool:
        """End the child and what it has started now, in the middle of a call too.

        The call raises `Refused` with `why`, and the next one starts another child. From any
        thread.

        Returns:
            Whether there was one.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return False
        self._interrupted = process.pid, why
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return True

    def close(self) -> None:
        """End the child: its pipe closes, and what does not leave is killed."""
        with self._lock:
            if self._process is not None:
                self._end(self._process, GRACE_S)

    def __enter__(self) -> Self:
        """Return this child; `close` comes at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child."""
        self.close()

    def _call(
        self,
        name: str,
        fields: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send one call and return header and arrays of the answer."""
        with self._lock:
            process = self._running()
            try:
                pipe.send(process.stdin, {"call": name, **fields}, arrays or {})  # type: ignore[arg-type]
                answer, found = pipe.receive(
                    lambda view: fill(process, view, self._around.watch),
                    self._max_bytes,
                    "training child",
                )
            except (BrokenPipeError, EOFError):
                raise self._died(process) from None
            except BaseException:  # half a message is on the pipe: this child cannot go on
                self._end(process, 0)
                raise
            if "over" in answer:  # its last words: one of its processes is gone
                self._end(process, GRACE_S)
                raise ChildDied(process.pid, str(answer["over"]))
        if "refused" in answer:
            raise _refusal(answer)
        return answer, found

    def _died(self, process: subprocess.Popen[bytes]) -> Refused:
        """Reap the child and return what to raise."""
        how = self._end(process, GRACE_S)
        if self._interrupted is not None and self._interrupted[0] == process.pid:
            why = f"training child {process.pid} was stopped: {self._interrupted[1]}"
            return Refused(pb.REASON_ATTEMPT_CLOSED, why)
        return ChildDied(process.pid, how)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the child, started now if there is none."""
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self._end(self._process, 0)
            command = module_command(self._python, __package__, *self._program())
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                self._around.bounds.around(command, self._python),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | dict.fromkeys(THREADS, str(self._threads())),
                process_group=0,  # Ctrl-C is the parent's: it closes the pipe
            )
        return self._process

    def _threads(self) -> int:
        """Return how many threads the child's libraries may start."""
        return self._around.bounds.threads or 1

    def _program(self) -> tuple[str, ...]:
        """Return the module that the child runs, and its arguments."""
        return "worker", str(self.app.directory), self.app.component, str(self._max_bytes)

    def _end(self, process: subprocess.Popen[bytes], grace: float) -> str:
        """Reap the child, by force after `grace` seconds, and return how it ended."""
        self._process = None
        return reap(process, grace)


def fill(
    process: subprocess.Popen[bytes], view: memoryview, watch: Callable[[], None] = _nothing
) -> None:
    """Read exactly `len(view)` bytes from the child; `watch` is called while it is silent.

    A process that the user's code forked can hold the pipe open after the child's death, so the
    child itself is looked at too.

    Raises:
        EOFError: The child is gone.
    """
    out = process.stdout
    if out is None:
        raise EOFError
    poller = select.poll()
    poller.register(out, select.POLLIN)
    while view:
        gone = process.poll() is not None
        if not poller.poll(0 if gone else 1000 * LOOK_S):
            if gone:
                raise EOFError
            watch()
            continue
        count = out.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        view = view[count:]


def packed(site: Site) -> dict[str, Any]:
    """Return a site as JSON says it."""
    data = [str(root) for root in site.data]
    plain = asdict(replace(site, config={}, settings={}))
    return plain | {"config": dict(site.config), "settings": dict(site.settings), "data": data}


def _refusal(answer: Mapping[str, Any]) -> Refused:
    """Return what the child refused with; a code that is none counts as `task failed`."""
    code = dict(pb.Reason.items()).get(str(answer["refused"]), pb.REASON_TASK_FAILED)
    key = MEMORY if answer.get("key") == MEMORY else ""  # user code chooses no word that travels
    return Refused(cast("pb.Reason", code), str(answer.get("detail", "")), key)


def _result(fields: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> TrainResult:
    """Return a result whose numbers have been checked: they come from the user's process."""
    weight = fields.get("weight")
    if type(weight) is not int or weight < 1:
        raise Malformed("training child", "weight", "an integer of at least 1", type(weight))
    return TrainResult(arrays, weight, _numbers(fields, int, float))


def _numbers(fields: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """Return the metrics of an answer, which comes from the user's process."""
    found = fields.get("metrics")
    if not isinstance(found, dict) or not all(type(v) in kinds for v in found.values()):
        raise Malformed("training child", "metrics", "numbers by name", type(found))
    return found
