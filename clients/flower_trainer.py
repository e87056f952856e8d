"""The trainer of a wrapped Flower app: its train and evaluate functions, called as Flower does.

    received arrays ─► Message{arrays, config} ─► app(message, context) ─► delta, weight, sums

Runs in the child, like any user code. The app is called through its own `__call__`, so its mods
and its lifespan are around each call. `num-examples` of a reply is the weight. A declared `Sum` is
taken for what Flower apps report, a mean over the reply's examples, and multiplied by their
number: the server's quotient of two sums is then the mean that Flower's own strategies compute. A
declared `Count` adds up as it is. What a reply carries beside the declared metrics stays here,
with one warning a name.

`Context.state` lives as long as the child does; `run_config` and the ids come from
`$UMBEL_CONTEXT`, which the parent sets before the child starts.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused
from ..strategies.metrics import Count, checked, fractional_bits, of_app
from ..strategies.trainer import TrainResult, differences, is_buffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.clientapp import ClientApp
    from numpy.typing import NDArray

    from ..strategies.metrics import Sum
    from ..strategies.task import Site
    from ..strategies.trainer import Settings

CONTEXT = "UMBEL_CONTEXT"
EXAMPLES = "num-examples"


def context_facts(context: Context) -> str:
    """Return what of a context a child's wrapped app is given, as JSON for `$UMBEL_CONTEXT`."""
    return json.dumps(
        {
            "run_id": context.run_id,
            "node_id": context.node_id,
            "run_config": dict(context.run_config),
            "series_id": context.series_id,
        }
    )


class FlowerTrainer:
    """The `Trainer` of a Flower ClientApp; it has no model of its own: the run's is used."""

    def __init__(self, app: ClientApp, metrics: Mapping[str, Sum | Count]) -> None:
        """Wrap `app`; `metrics` are the declared ones, as in `strategies.metrics.of_app`."""
        self._app = app
        self._declared = of_app(metrics)
        self._context: Context | None = None
        self._warned: set[str] = set()

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return nothing: a wrapped app takes the model that comes."""
        return {}

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        return fractional_bits(self._declared[phase])

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Evaluate the received model where that is declared, then train it."""
        metrics = self._evaluated(arrays, site)
        reply = self._call("train", arrays, site)
        records = list(reply.array_records.values())
        if len(records) != 1:
            raise _failed(f"the train reply has {len(records)} ArrayRecords, expected one")
        local = {name: array.numpy() for name, array in records[0].items()}
        weight, found = self._measured("train", reply)
        metrics |= found
        return TrainResult(differences(_like(local, arrays), arrays), weight, metrics)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Evaluate the received model; the weight is 1, as the phase `evaluate` wants."""
        return TrainResult({}, 1, self._evaluated(arrays, site))

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return nothing: the server's own test is the ServerApp's."""
        return {}

    def _evaluated(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> dict[str, int | float]:
        if not self._declared["evaluate"]:
            return {}
        return self._measured("eval", self._call("evaluate", arrays, site))[1]

    def _call(self, kind: str, arrays: Mapping[str, NDArray[Any]], site: Site) -> RecordDict:
        """Call the app with a message of its own and return what its reply holds."""
        context = self._context = self._context or _context(site)
        content = RecordDict(
            {
                "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
                "config": ConfigRecord(dict(site.settings)),
            }
        )
        message = Message(content, dst_node_id=context.node_id, message_type=kind)
        reply = self._app(message, context)
        if not reply.has_content():
            raise _failed(f"the {kind} reply is an error of code {reply.error.code}")
        return reply.content

    def _measured(self, prefix: str, reply: RecordDict) -> tuple[int, dict[str, int | float]]:
        """Return the number of examples and the declared metrics of a reply, as sums."""
        phase = "evaluate" if prefix == "eval" else "train"
        found: dict[str, Any] = {}
        for record in reply.metric_records.values():
            found |= record
        weight = _examples(found.pop(EXAMPLES, None), phase)
        declared = {
            name.partition(".")[2]: metric
            for name, metric in self._declared[phase].items()
            if name.startswith(f"{prefix}.")
        }
        self._warn(prefix, found.keys() - declared.keys())
        sums = {
            name: found[name] if isinstance(declared[name], Count) else found[name] * weight
            for name in found.keys() & declared.keys()
        }
        values = checked(sums | {"examples": weight}, declared)
        return weight, {f"{prefix}.{name}": value for name, value in values.items()}

    def _warn(self, prefix: str, names: set[str]) -> None:
        """Say once which metrics stay on the device."""
        for name in sorted(names):
            key = f"{prefix}.{name}"
            if key not in self._warned:
                self._warned.add(key)
                print(
                    f"umbel: metric {name!r} stays on this device: "
                    f"umbel.secure(app, metrics=...) does not declare {key!r}",
                    file=sys.stderr,
                )


def _context(site: Site) -> Context:
    """Return the context of every call in this process."""
    facts = json.loads(os.environ.get(CONTEXT, "{}"))
    context = Context(
        run_id=facts.get("run_id", 0),
        node_id=facts.get("node_id", 0),
        node_config=dict(site.config),
        state=RecordDict(),
        run_config=facts.get("run_config", {}),
        series_id=facts.get("series_id", 0),
    )
    TaskIdentity.task_id = 0  # what Flower's Message asks for where nobody replies
    TaskIdentity.run_id = context.run_id
    TaskIdentity.node_id = context.node_id
    return context


def _like(
    local: Mapping[str, NDArray[Any]], received: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the reply's arrays in the received order and float dtypes.

    Names and shapes must be the received ones: numpy would broadcast (1, 3) to (4, 3) in silence.
    """
    for name in sorted(local.keys() | received.keys()):
        got, expected = (
            f"{side[name].shape}" if name in side else "nothing" for side in (local, received)
        )
        if got != expected:
            raise _failed(f"array {name!r} of the train reply: expected {expected}, got {got}")
    return {
        name: np.asarray(local[name], dtype=None if is_buffer(array) else array.dtype)
        for name, array in received.items()
    }


def _examples(value: object, phase: str) -> int:
    """Return a reply's number of examples."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _failed(f"the {phase} reply needs a metric {EXAMPLES!r}, an integer of 1 or more")
    return value


def _failed(detail: str) -> Refused:
    return Refused(pb.REASON_TASK_FAILED, detail)
