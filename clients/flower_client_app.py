"""`umbel.client_app(task)` and `umbel.secure(app)`: ClientApps that train in a session.

    train message with `umbel.invite` ─► checks ─► session over gRPC, user code in one child
                                      ◄─ rounds, bytes, a code: no array, no metric, no text

Nothing in an invitation is a trust anchor: the device dials the gateway of its own directory
(device_files.py) and trusts its own pinned root. The digest that the invitation names only serves
the line `invited by another federation`. The bundle's SHA-256 comes from the launcher
(flower_launcher.py) and is compared with the policy once more; without a launcher a device cannot
know what it runs and joins no session.

Where the device's own policy requires secure aggregation, no Flower message is answered with
arrays or metrics, whatever it says, and there is no fall-back. Where it does not, a message without
an invitation is answered as Flower would have it. What user code raises stays on this device.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from .apps import Apps
from .child import Child, InProcess, boundary
from .confined import around, remark, roots
from .device_files import device_files, host, no_core_dumps, own_policy
from .flower_launcher import APP, INVITE, RULE, SESSION
from .flower_node import remember
from .flower_trainer import CONTEXT, FlowerTrainer, context_facts
from .grpc_session import LONGEST_S, GatewaySession, Invitation, Outcome
from .journal import FileJournal
from .pause import halted
from .refusals import code_of, keep_refusal
from .trainers import trainer_for
from .update import Update
from ..protocol import messages_pb2 as pb
from ..protocol.entropy import os_entropy
from ..protocol.errors import LONGEST as MOST
from ..protocol.errors import (
    Refused,
    SettingsError,
    StateError,
    UmbelError,
    one_line,
    reason_text,
)
from ..strategies.app_source import source_of
from ..strategies.metrics import of_app
from ..strategies.task import Site, Task
from ..strategies.trainer import Settings, TrainResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import Context

    from .child import Around
    from .device_files import DeviceFiles
    from .trainers import ClosingTrainer
    from ..strategies.metrics import Count, Sum

GPUS = "umbel-gpus"
"""Key of the node's own configuration: processes that train together, with the torch task."""
LONGEST = 4096
"""Most characters or bytes of one field of an invitation."""


class Invited(NamedTuple):
    """What an invitation says; nothing of it is trusted."""

    invitation: Invitation
    gateway: str
    ca: str


def client_app(task: Task | type[Task]) -> ClientApp:
    """Return the Flower ClientApp of a task.

    Args:
        task: What is learned: a class, or an object that a module of the app has under a name.

    Raises:
        SettingsError: `task` is no task.
    """
    return TaskApp(task)


def secure(app: ClientApp, *, metrics: Mapping[str, Sum | Count] | None = None) -> ClientApp:
    """Return an existing Flower ClientApp that trains in secure sessions; its code is unchanged.

    Args:
        app: The app, with its train and evaluate functions, mods and lifespan.
        metrics: What of its replies' metrics is added up over the clients: `train.NAME` and
            `eval.NAME` with a bound. Everything else stays on the device.

    Raises:
        SettingsError: `app` is no ClientApp, or a metric's name has another form.
    """
    if not isinstance(app, ClientApp):
        raise SettingsError("umbel.secure", "a flwr.clientapp.ClientApp", type(app).__name__)
    return SecureApp(app, metrics or {})


class SessionApp(ClientApp):
    """What both have in common: a message is answered by a session, by Flower's way, or not."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one Flower message."""
        if _is_invitation(message):
            return _report(message, self._join(message, context))
        try:
            if own_policy().required:
                detail = "secure aggregation is required by this device's own policy"
                raise Refused(pb.REASON_PLAIN_REFUSED, detail, "secure.required")
            with boundary():
                return self.plain(message, context)
        except UmbelError as error:
            _log(str(error))
            keep_refusal(error, _log, app=os.environ.get(APP, ""))
            reason = code_of(error)
            mine = reason == pb.REASON_TASK_FAILED
            code = (
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION if mine else ErrorCode.MOD_FAILED_PRECONDITION
            )
            return Message(Error(code, reason_text(reason)), reply_to=message)

    def plain(self, message: Message, context: Context) -> Message:
        """Answer as a Flower app without Umbel would."""
        raise NotImplementedError

    def trainer(self, gpus: int, bounds: Around) -> ClosingTrainer:
        """Return what runs the user's code in processes of its own, within `bounds`."""
        raise NotImplementedError

    def _join(self, message: Message, context: Context) -> Outcome:
        """Take part in the run that the message invites to; every refusal is a code."""
        run = ""
        try:
            invited = _read(message)
            run = invited.invitation.run
            return self._session(invited, context)
        except UmbelError as error:
            _log(str(error))
            keep_refusal(error, _log, run=run, app=os.environ.get(APP, ""))
            return Outcome(code_of(error), detail=str(error))

    def _session(self, invited: Invited, context: Context) -> Outcome:
        files = device_files()
        if files is None:
            raise SettingsError("UMBEL_DEVICE", "this device's directory", "nothing", "enrol it")
        if (halt := halted(files.directory)) is not None:
            raise Refused(pb.REASON_PAUSED, halt.why)
        no_core_dumps()
        files.settle_clock(_log)
        _check_invitation(invited, files)
        app = _app(files)
        files = replace(files, policy=files.policy.admitting(app))
        if files.flower_key.exists():
            remember(files.flower_key, context.node_id)
        for words in (*files.policy.remarks(), remark(files.policy)):
            if words:
                _log(words)
        os.environ[CONTEXT] = context_facts(context)
        bounds = around(files.policy, _home())
        trainer = self.trainer(int(context.node_config.get(GPUS, files.ddp)), bounds)
        try:
            journal = FileJournal(files.journal)
            try:
                site = replace(_site(context), data=roots(files.policy))
                update = Update(trainer, site, files.policy, entropy=os_entropy)
                device = files.device(update, journal, app, _log)
                outcome = GatewaySession(files, device, invited.invitation).serve()
            finally:
                journal.close()
        finally:
            trainer.close()
        _log(f"session over after {outcome.rounds} rounds: {outcome.detail}")
        return outcome


class TaskApp(SessionApp):
    """The ClientApp of a `umbel.Task`."""

    def __init__(self, task: Task | type[Task]) -> None:
        """Keep the task; it is named and imported by the child when a session opens."""
        super().__init__()
        defined = task if isinstance(task, type) else type(task)
        if not issubclass(defined, Task):
            raise SettingsError("umbel.client_app", "a umbel.Task", defined.__name__)
        self.task = task

    def trainer(self, gpus: int, bounds: Around) -> ClosingTrainer:
        """Return a child with the task, or a group of processes with the app's torch task."""
        return trainer_for(source_of(self.task), gpus, bounds)

    def plain(self, message: Message, context: Context) -> Message:
        """Train or evaluate what came, and answer arrays and means as Flower's strategies want."""
        task = self.task() if isinstance(self.task, type) else self.task
        trainer = InProcess(task)
        kind, _, action = message.metadata.message_type.partition(".")
        if kind not in {"train", "evaluate"} or action not in {"", "default"}:
            name = message.metadata.message_type
            raise Refused(pb.REASON_TASK_FAILED, f"a task answers no message of type {name!r}")
        records = list(message.content.array_records.values())
        if len(records) != 1:
            raise Refused(pb.REASON_TASK_FAILED, f"{len(records)} ArrayRecords came, expected one")
        received = {name: array.numpy() for name, array in records[0].items()}
        if kind == "evaluate":
            result = trainer.evaluate(received, _site(context))
            return _answer(message, result, "eval", {})
        settings = Settings.of({**context.run_config, **_config(message)})
        result = trainer.train(received, _site(context), settings)
        moved = {
            name: (received[name] + delta).astype(received[name].dtype)
            for name, delta in result.deltas.items()
        }
        arrays = ArrayRecord({name: Array(array) for name, array in (received | moved).items()})
        return _answer(message, result, "train", {"arrays": arrays})


class SecureApp(SessionApp):
    """An existing ClientApp behind a session."""

    def __init__(self, app: ClientApp, metrics: Mapping[str, Sum | Count]) -> None:
        """Wrap `app`; the names of the metrics are checked here."""
        super().__init__()
        of_app(metrics)
        self.wrapped, self.metrics = app, dict(metrics)

    def trainer(self, gpus: int, bounds: Around) -> ClosingTrainer:
        """Return a child that imports the module which has this app under a name."""
        del gpus  # how a Flower app uses them is its own affair
        return Child(source_of(self), around=bounds)

    def umbel_trainer(self) -> FlowerTrainer:
        """Return what calls the wrapped app, in the child."""
        return FlowerTrainer(self.wrapped, self.metrics)

    def plain(self, message: Message, context: Context) -> Message:
        """Hand the message to the wrapped app, whatever it is."""
        return self.wrapped(message, context)


# ---- invitations ---------------------------------------------------------------------------


def _is_invitation(message: Message) -> bool:
    kind = message.metadata.message_type.partition(".")[0]
    return kind == "train" and message.has_content() and INVITE in message.content


def _read(message: Message) -> Invited:
    """Return what the record says, if its fields have the right types.

    Raises:
        SettingsError: A field is missing or of another type or size.
    """
    record = message.content[INVITE]
    values: dict[str, Any] = {}
    for name, kind in (("run", str), ("gateway", str), ("ca-sha256", str), ("ticket", bytes)):
        value = record.get(name)
        if not isinstance(value, kind) or not 1 <= len(value) <= LONGEST:
            wanted = f"{kind.__name__} of 1 to {LONGEST}"
            raise SettingsError(f"{INVITE}: {name}", wanted, type(value).__name__)
        values[name] = value
    lease = record.get("lease")
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not lease > 0:
        raise SettingsError(f"{INVITE}: lease", "seconds, more than 0", lease)
    invitation = Invitation(values["run"], values["ticket"], float(min(lease, LONGEST_S)))
    return Invited(invitation, values["gateway"], values["ca-sha256"])


def _check_invitation(invited: Invited, files: DeviceFiles) -> None:
    """Refuse an invitation that names another CA, or a gateway that this device does not know."""
    if invited.ca != files.ca().hex():
        raise Refused(
            pb.REASON_OTHER_FEDERATION,
            f"invited by another federation: its CA is {invited.ca[:16]}..., this device belongs "
            f"to {files.federation} (CA {files.ca().hex()[:16]}...)",
        )
    name = host(invited.gateway)
    if name not in (files.policy.gateways or ()):
        detail = f"invited to gateway {name!r}, which is not in trust.gateways"
        raise Refused(pb.REASON_GATEWAY_NAME, detail, "trust.gateways")


def _app(files: DeviceFiles) -> bytes:
    """Return the SHA-256 of the bundle that runs, which the launcher computed."""
    digest = os.environ.get(APP, "")
    if re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise Refused(
            pb.REASON_APP_NOT_ALLOWED,
            "app: unknown; Umbel's flwr-clientapp is not first on this SuperNode's PATH",
            "trust.apps",
        )
    try:
        holds = Apps(files.directory).still(files.policy, digest, os.environ.get(RULE, ""))
    except StateError as error:
        raise Refused(pb.REASON_APP_NOT_ALLOWED, str(error), "trust.apps") from error
    if not holds:
        detail = f"bundle {digest} may not run by this device's policy"
        raise Refused(pb.REASON_APP_NOT_ALLOWED, detail, "trust.apps")
    return bytes.fromhex(digest)


# ---- answers -------------------------------------------------------------------------------


def _report(message: Message, outcome: Outcome) -> Message:
    """Return the answer to an invitation: four numbers, all that leaves by this way."""
    record = ConfigRecord(
        {
            "rounds": outcome.rounds,
            "bytes-up": outcome.bytes_up,
            "bytes-down": outcome.bytes_down,
            "code": int(outcome.reason),
        }
    )
    return Message(RecordDict({SESSION: record}), reply_to=message)


def _answer(
    message: Message, result: TrainResult, prefix: str, records: dict[str, ArrayRecord]
) -> Message:
    """Return a plain answer: means of the metrics, and the weight."""
    examples = int(result.metrics.get(f"{prefix}.examples", result.weight))
    means = {}
    for name, value in result.metrics.items():
        first, _, short = name.partition(".")
        if first == prefix and short != "examples":
            means[f"{prefix}_{'accuracy' if short == 'correct' else short}"] = value / examples
    weight = result.weight if prefix == "train" else examples
    metrics = MetricRecord({"num-examples": weight, **means})
    return Message(RecordDict({**records, "metrics": metrics}), reply_to=message)


def _config(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, record in message.content.config_records.items():
        if name != INVITE:
            found |= record
    return found


def _home() -> Path | None:
    """Return where what belongs to this task may be written, if the launcher has made a place."""
    home = os.environ.get("FLWR_HOME") if APP in os.environ else None
    return Path(home) if home else None


def _site(context: Context) -> Site:
    """Return where the task's examples are, as the node's own configuration says."""
    config = dict(context.node_config)
    partition, count = config.get("partition-id"), config.get("num-partitions")
    return Site(
        partition=None if partition is None else int(partition),
        partitions=None if count is None else int(count),
        config=config,
    )


def _log(line: str) -> None:
    """Print a line on this device's own console; one that a full disk does not take is lost.

    A gateway's words may be in it, so it is one line, bounded, and steers no terminal.
    """
    with suppress(OSError):
        print(f"umbel: {one_line(line[:MOST])}", file=sys.stderr, flush=True)
