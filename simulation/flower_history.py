"""The record of a Flower app's simulated run: a run directory, as of any other run.

A Flower strategy says nothing to anybody before it is through, so the record is made of what passes
the Grid, and of what `Strategy.start` is given and returns: its arguments before the first round,
the server's own tests and the last model after it. Messages of type `train` that are sent
together, or under one group, are a round; those of type `evaluate` after it evaluate the model of
that round. A round's entry is made when its model is known, from the messages that carry it next.
Means are weighted by `num-examples`, as Flower's strategies weight them.

A model that is not one record of plain numpy arrays is not kept; the rounds' numbers are.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard

from flwr.app import ArrayRecord, MessageType
from flwr.serverapp.strategy import Strategy

from .federation import Result, node_id
from ..protocol.digest import model_digest
from ..protocol.errors import RoundFailed, SettingsError
from ..protocol.manifest import Manifest
from ..server.ledger import TESTED, RoundRecord
from ..server.run_directory import RunDirectory
from ..server.write_behind import WriteBehind
from ..strategies import npy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from flwr.app import Message, MetricRecord
    from flwr.serverapp.strategy import Result as StrategyResult
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

WEIGHT = "num-examples"
SECURITY = "off (plain Flower messages, all in one process)"


class _Step:
    """What was sent in one phase of a round, and what came back; no message is kept."""

    def __init__(self, kind: str, group: str, round_: int) -> None:
        """Nothing was sent yet."""
        self.kind, self.group, self.round = kind, group, round_
        self.survivors: list[int] = []
        self._roster: list[int] = []
        self._told: list[dict[str, float]] = []
        self._cause = "no client answered in time"
        self._seconds, self._up, self._down = 0.0, 0, 0

    def add(self, messages: Sequence[Message], replies: Sequence[Message], seconds: float) -> None:
        """Note some of it."""
        good = [reply for reply in replies if reply.has_content()]
        self._cause = next((str(r.error.reason) for r in replies if r.has_error()), self._cause)
        self._roster += [message.metadata.dst_node_id for message in messages]
        self.survivors += [reply.metadata.src_node_id for reply in good]
        self._told += [numbers(reply) for reply in good]
        self._seconds += seconds
        self._up += sum(map(_size, good))
        self._down += sum(map(_size, messages))

    def record(self, name: Callable[[int], str], model: str) -> RoundRecord:
        """Return the entry of it, with the digest of the model in force after it."""
        prefix = "train" if self.kind == MessageType.TRAIN else "eval"
        return RoundRecord(
            round=self.round,
            attempt=0,
            phase=self.kind,
            outcome="finished" if self.survivors else "aborted",
            cause="" if self.survivors else self._cause,
            roster=tuple(map(name, self._roster)),
            survivors=tuple(map(name, self.survivors)),
            model=model,
            metrics={f"{prefix}.{key}": value for key, value in means(self._told).items()},
            seconds={self.kind: self._seconds},
            bytes_up=self._up,
            bytes_down=self._down,
        )


class History:
    """What is known of a run, and its directory."""

    def __init__(
        self,
        run: str,
        home: Path,
        about: Mapping[str, object],
        observe: Callable[[RoundRecord], None],
        begin: Callable[[int], None],
    ) -> None:
        """Write nothing before the first step.

        Args:
            run: Id of the run.
            home: Where `runs/` is.
            about: Settings of the run, for the ledger.
            observe: Called with every record.
            begin: Called with the number of rounds, once, when it is known.
        """
        self._run, self._home, self._about = run, home, dict(about)
        self._observe, self._begin = observe, begin
        self._directory: RunDirectory | None = None
        self._disk: WriteBehind | None = None
        self._round = 0
        self._open: _Step | None = None
        self._digest = ""
        self.records: list[RoundRecord] = []
        self.names: dict[str, int] = {}
        self.model: Arrays = {}
        self._written, self._closed = -1, False

    def step(self, messages: Sequence[Message], replies: Sequence[Message], seconds: float) -> None:
        """Note one step of messages and what came back."""
        kind = messages[0].metadata.message_type.partition(".")[0]
        if kind not in {MessageType.TRAIN, MessageType.EVALUATE}:
            return
        group = messages[0].metadata.group_id
        if self._open is None or not group or (kind, group) != (self._open.kind, self._open.group):
            self._is_now(next(iter(messages[0].content.array_records.values()), None))
            self._round += kind == MessageType.TRAIN
            self._open = _Step(kind, group, self._round)
        self._open.add(messages, replies, seconds)

    def started(self, strategy: Strategy, rounds: int, initial: ArrayRecord) -> None:
        """Note what `Strategy.start` was given."""
        if self._directory is None:
            self._about |= {"rounds": rounds, "strategy": type(strategy).__name__}
            self._begin(rounds)
            self._is_now(initial)

    def returned(self, result: StrategyResult) -> None:
        """Note what `Strategy.start` returned."""
        self._is_now(result.arrays or None)
        for number, found in result.evaluate_metrics_serverapp.items():
            self._tested(number, found)

    def close(self) -> Result | None:
        """Write what is left, and return the run; None where nothing was sent."""
        if self._disk is None or self._directory is None:
            return None
        if not self._closed:
            self._closed = True
            self._settle()
            with self._disk:
                self._disk.prune(None)
            self._directory.close()
        failed = self.records[-1] if self.records else None
        failure = None
        if failed is not None and failed.outcome != "finished":
            failure = RoundFailed(f"round {failed.round}, {failed.phase}: {failed.cause}")
        return Result(
            run=self._run, security=SECURITY, records=tuple(self.records),
            path=self._directory.path,
            model=dict(self.model), names=self.names, failure=failure,
        )  # fmt: skip

    def _is_now(self, record: ArrayRecord | None) -> None:
        """Take the model in force: the initial one, or the result of the round that is open."""
        disk, step = self._created(), self._open
        trained = step is not None and step.kind == MessageType.TRAIN and bool(step.survivors)
        first = self._written < 0 and self._round == 0
        model = readable(record) if record is not None and (trained or first) else None
        if model is not None:
            manifest = Manifest.of(model)
            digest = model_digest(manifest.pack(model))
            disk.write_round(self._round, model, manifest, digest, {})
            self._written, self._digest, self.model = self._round, digest.hex(), model
        self._settle()

    def _settle(self) -> None:
        """Make the entry of the step that is open; its model is known now, if it ever is."""
        step, self._open = self._open, None
        if step is None or (step.round, step.kind) in {(r.round, r.phase) for r in self.records}:
            return  # an app may evaluate one model twice: the first time is the round's
        made = step.kind == MessageType.TRAIN and bool(step.survivors)
        known = self._written == step.round or not made
        record = step.record(self._name, self._digest if known else "")
        self.records.append(record)
        self._created().commit_round(record)
        self._observe(record)

    def _created(self) -> WriteBehind:
        """Return the run's directory, made now if it is not there."""
        if self._disk is None:
            self._directory = RunDirectory.create(self._home, self._run)
            stamp = datetime.now(UTC).isoformat(timespec="seconds")
            self._directory.ledger.create_run(self._run, stamp, self._about, SECURITY)
            self._disk = WriteBehind(self._directory)
        return self._disk

    def _tested(self, number: int, found: MetricRecord) -> None:
        """Note the server's own test of a round's model."""
        tests = {f"test.{name}": float(v) for name, v in found.items() if _is_number(v)}
        for place, record in enumerate(self.records):
            if record.round == number and record.phase == MessageType.TRAIN and tests:
                self._created().event(
                    TESTED, round=number, attempt=record.attempt, code=record.model, detail=tests
                )
                self.records[place] = replace(record, metrics={**record.metrics, **tests})

    def _name(self, node: int) -> str:
        name = node_id(int(str(self._about["seed"])), node).hex()
        self.names[name] = node
        return name


@contextmanager
def watched(history: History) -> Iterator[None]:
    """Let a history see every `Strategy.start` of Flower's and of ours inside."""
    start = Strategy.start

    def seen(
        self: Strategy, grid: Any, initial_arrays: ArrayRecord, num_rounds: int = 3, *more: Any,
        **named: Any,
    ) -> StrategyResult:  # fmt: skip
        history.started(self, num_rounds, initial_arrays)
        result = start(self, grid, initial_arrays, num_rounds, *more, **named)
        history.returned(result)
        return result

    Strategy.start = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = start  # type: ignore[method-assign]


def numbers(reply: Message) -> dict[str, float]:
    """Return the single numbers in a reply's metrics."""
    return {
        name: float(value)
        for record in reply.content.metric_records.values()
        for name, value in record.items()
        if _is_number(value)
    }


def means(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of numbers, weighted by `num-examples` where all have it."""
    weights = [numbers.get(WEIGHT, 0.0) for numbers in told]
    if not all(weight > 0 for weight in weights):
        weights = [1.0] * len(told)
    found: dict[str, float] = {}
    for name in {name: None for numbers in told for name in numbers if name != WEIGHT}:
        has = [(w, n[name]) for w, n in zip(weights, told, strict=True) if name in n]
        mean = math.fsum(w * v for w, v in has) / math.fsum(w for w, _ in has)
        if math.isfinite(mean):
            found[name] = mean
    return found


def readable(record: ArrayRecord) -> Arrays | None:
    """Return the arrays of a record; None where they are no model of numpy arrays."""
    try:
        found = {
            name: npy.decoded(array.data, array.dtype)
            for name, array in record.items()
            if array.stype == "numpy.ndarray"
        }
        Manifest.of(found)
    except (ValueError, SettingsError):
        return None
    return found if found and len(found) == len(record) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(message: Message) -> int:
    return sum(
        len(array.data) for r in message.content.array_records.values() for array in r.values()
    )
