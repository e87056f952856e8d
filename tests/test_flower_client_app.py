"""What a Flower message is answered with: a session, Flower's own way, or a code."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

import umbel
from umbel.clients import flower_client_app
from umbel.clients.device_files import DeviceFiles
from umbel.clients.history_file import read_history
from umbel.clients.journal import FileJournal
from umbel.clients.pause import LEFT, Pause, write_pause
from umbel.clients.policy import Policy
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import SettingsError, reason_text
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

APP = bytes(range(32))
MODEL = {"0.weight": np.zeros((2, 2), np.float32), "0.bias": np.zeros(2, np.float32)}


class Small(umbel.Task):
    """Two clusters on a line."""

    optimizer = umbel.SGD(lr=0.5)

    def model(self) -> Any:
        """Return the model."""
        return umbel.LogisticRegression(2, 2)

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return eight points."""
        inputs = np.array([[-1, 0], [1, 0]] * 4, np.float32)
        return inputs, np.array([0, 1] * 4)


def answering() -> ClientApp:
    """Return a Flower app that answers everything, also what it should not."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
        records = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    app.train("warmup")(answer)
    return app


class Connected(AssertionError):
    """A session was opened."""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's device; nothing listens at its gateway."""
    folder = made(tmp_path / "federation", 1).device("edge-0")
    monkeypatch.setenv("UMBEL_DEVICE", str(folder))
    monkeypatch.setenv("UMBEL_APP_SHA256", APP.hex())
    monkeypatch.setattr(flower_client_app, "GatewaySession", _no_session)
    return folder


def _no_session(*_: object) -> None:
    raise Connected


def relaxed(device: Path) -> None:
    """Let the device's own policy allow plain runs."""
    file = device / "policy.toml"
    file.write_text(file.read_text("utf-8").replace("required = true", "required = false"), "utf-8")


def message(kind: str = "train", records: Mapping[str, Any] | None = None) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 2, 3
    arrays = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    content: dict[str, Any] = {"arrays": arrays, "config": ConfigRecord({"lr": 0.5})}
    return Message(RecordDict(content | dict(records or {})), dst_node_id=3, message_type=kind)


def context(**node: Any) -> Context:
    return Context(2, 3, {"partition-id": 0, "num-partitions": 1, **node}, RecordDict(), {})


def invite(device: Path, **changes: Any) -> ConfigRecord:
    files = DeviceFiles.read(device)
    fields = {
        "run": "r", "gateway": "127.0.0.1:9", "ca-sha256": files.ca().hex(), "ticket": b"t",
        "lease": 60, **changes,
    }  # fmt: skip
    return ConfigRecord({name: value for name, value in fields.items() if value is not None})


def code(reply: Message) -> int:
    """Return the code of an answer that says nothing else."""
    assert list(reply.content) == ["umbel.session"]
    record = dict(reply.content.config_records["umbel.session"])
    assert set(record) == {"rounds", "bytes-up", "bytes-down", "code"}
    assert all(type(value) is int for value in record.values())
    return int(record["code"])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "train.warmup"])
@pytest.mark.parametrize("which", ["task", "wrapped"])
def test_where_secure_is_required_no_message_is_answered(
    device: Path, kind: str, which: str
) -> None:
    app = umbel.client_app(Small) if which == "task" else umbel.secure(answering())
    reply = app(message(kind), context())
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (6, "plain refused")


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_an_invitation_is_a_train_message_only(device: Path, kind: str) -> None:
    reply = umbel.secure(answering())(message(kind, {"umbel.invite": invite(device)}), context())
    assert (reply.error.code, reply.error.reason) == (6, "plain refused")


def test_nothing_a_message_says_relaxes_the_policy(device: Path) -> None:
    said = ConfigRecord({"secure": "off", "required": False, "secure.required": False})
    for name in ("config", "umbel.policy"):
        reply = umbel.secure(answering())(message(records={name: said}), context(required=False))
        assert reply.has_error()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ca-sha256": sha256(b"rogue").hexdigest()}, pb.REASON_OTHER_FEDERATION),
        ({"gateway": "evil.example:443"}, pb.REASON_GATEWAY_NAME),
        ({"ticket": None}, pb.REASON_POLICY),
        ({"ticket": "text"}, pb.REASON_POLICY),
        ({"run": ""}, pb.REASON_POLICY),
        ({"run": "r" * 5000}, pb.REASON_POLICY),
        ({"lease": -1}, pb.REASON_POLICY),
        ({"lease": float("nan")}, pb.REASON_POLICY),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_a_wrong_invitation_gets_a_code_and_no_session(
    device: Path, changes: dict[str, Any], reason: pb.Reason, required: bool
) -> None:
    if not required:
        relaxed(device)
    record = invite(device, **changes)
    reply = umbel.secure(answering())(message(records={"umbel.invite": record}), context())
    assert code(reply) == reason
    (entry,) = read_history(device)
    assert (entry.kind, entry.outcome, entry.times) == ("refusal", "refused", 1)
    assert entry.code == reason_text(reason)
    assert entry.run == ("r" if changes.keys() & {"ca-sha256", "gateway"} else "")


@pytest.mark.parametrize("left", [True, False])
def test_a_device_that_its_owner_paused_joins_nothing(device: Path, left: bool) -> None:
    if left:
        (device / LEFT).touch()
    else:
        write_pause(device, Pause(since=1.0))
    asked = message(records={"umbel.invite": invite(device)})
    for _ in range(3):
        assert code(umbel.secure(answering())(asked, context())) == pb.REASON_PAUSED
    (entry,) = read_history(device)
    assert (entry.code, entry.run, entry.times) == ("paused", "r", 3)


def test_another_federation_is_named_on_the_console(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = invite(device, **{"ca-sha256": "ab" * 32})
    umbel.secure(answering())(message(records={"umbel.invite": record}), context())
    assert "umbel: other federation: invited by another federation" in capsys.readouterr().err


def test_without_a_launcher_no_session_is_joined(
    device: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, said = umbel.secure(answering()), {"umbel.invite": invite(device)}
    monkeypatch.delenv("UMBEL_APP_SHA256")
    assert code(app(message(records=said), context())) == pb.REASON_APP_NOT_ALLOWED
    assert "app: unknown" in capsys.readouterr().err
    monkeypatch.setenv("UMBEL_APP_SHA256", sha256(b"other").hexdigest())
    assert code(app(message(records=said), context())) == pb.REASON_APP_NOT_ALLOWED


def test_without_a_device_no_session_is_joined(
    device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = {"umbel.invite": invite(device)}
    monkeypatch.delenv("UMBEL_DEVICE")
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    assert code(umbel.secure(answering())(message(records=said), context())) == pb.REASON_POLICY
    reply = umbel.secure(answering())(message(), context())
    assert reply.error.reason == "plain refused"  # the built-in policy is the strict one


def test_a_damaged_journal_is_a_code(device: Path) -> None:
    (device / "journal").write_text("no record\nno record\n", "utf-8")
    (device / "journal").chmod(0o600)
    said = {"umbel.invite": invite(device)}
    assert code(umbel.client_app(Small)(message(records=said), context())) == pb.REASON_JOURNAL


def test_a_good_invitation_opens_a_session_and_closes_what_it_used(
    device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[FileJournal] = []
    real = FileJournal.close

    def close(journal: FileJournal) -> None:
        closed.append(journal)
        real(journal)

    monkeypatch.setattr(FileJournal, "close", close)
    with pytest.raises(Connected):
        umbel.client_app(Small)(message(records={"umbel.invite": invite(device)}), context())
    assert len(closed) == 1
    assert (device / "flower.node").read_text("ascii") == "3\n"


def test_where_plain_is_allowed_a_wrapped_app_answers_as_it_is(device: Path) -> None:
    relaxed(device)
    app = answering()
    for kind in ("train", "evaluate", "query", "train.warmup"):
        wrapped, bare = (which(message(kind), context()) for which in (umbel.secure(app), app))
        assert list(wrapped.content) == list(bare.content) == ["arrays", "metrics"]
        assert wrapped.content["metrics"] == bare.content["metrics"]


def test_what_a_wrapped_app_raises_stays_here(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    relaxed(device)
    app = ClientApp()

    @app.train()
    def _train(_: Message, __: Context) -> Message:
        raise ValueError("patient 4711")

    reply = umbel.secure(app)(message(), context())
    assert (reply.error.code, reply.error.reason) == (2, "task failed")
    assert "patient 4711" in capsys.readouterr().err


def test_a_task_answers_plain_messages_as_flowers_strategies_want(device: Path) -> None:
    relaxed(device)
    app = umbel.client_app(Small)
    reply = app(message(), context())
    arrays = {n: a.numpy() for n, a in reply.content.array_records["arrays"].items()}
    metrics = dict(reply.content.metric_records["metrics"])
    assert list(arrays) == list(MODEL)
    assert metrics["num-examples"] == 8
    # The first batch is all eight points with p = 1/2 each: the gradient of the mean loss by
    # weight [0, 0] is -1/2 times the mean of |x|, and lr is 1/2; the bias does not move.
    np.testing.assert_allclose(arrays["0.weight"], [[-0.25, 0], [0.25, 0]], atol=1e-6)
    assert metrics["train_loss"] == pytest.approx(np.log(2), abs=1e-6)
    evaluated = dict(app(message("evaluate"), context()).content.metric_records["metrics"])
    assert evaluated == {
        "num-examples": 8, "eval_loss": pytest.approx(np.log(2)), "eval_accuracy": 0.5
    }  # fmt: skip
    assert app(message("query"), context()).error.reason == "task failed"


def test_what_is_no_app_or_task_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match=r"umbel.Task, got 'int'"):
        umbel.client_app(3)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"ClientApp, got 'str'"):
        umbel.secure("app")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"train\.NAME or eval\.NAME"):
        umbel.secure(ClientApp(), metrics={"loss": umbel.Sum(1.0)})


def test_the_default_policy_is_the_strict_one() -> None:
    assert Policy().required
    assert "UMBEL_DEVICE" not in os.environ


def test_what_a_gateway_says_steers_no_terminal(
    device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flower_client_app._log("gateway: unavailable: \x1b[2J\r\numbel: all is well" + "!" * 5000)
    said = capsys.readouterr().err
    assert said.startswith(r"umbel: gateway: unavailable: \x1b[2J  umbel: all is well")
    assert len(said) < 1100
    assert said.count("\n") == 1
