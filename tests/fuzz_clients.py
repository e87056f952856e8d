"""What reaches a device beside the gateway, and what devices answer over Flower.

The pipe of the child that runs user code, the invitation in a Flower message, the bundle; and on
the server the answer to an invitation.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from umbel.clients import apps, pipe, usage
from umbel.clients.bundle import Bundle
from umbel.clients.child import _numbers, _refusal, _result
from umbel.clients.device_files import DeviceFiles
from umbel.clients.flower_client_app import _read
from umbel.clients.flower_launcher import APP, Guard
from umbel.clients.policy import Policy
from umbel.clients.update import Update
from umbel.protocol.bundles import SIGNATURES, sign, signers
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import Malformed, PeerError, Refused, SettingsError, StateError
from umbel.server.evaluator_process import heard
from umbel.server.flower_invitations import _said
from umbel.strategies.numpy_models import MLP
from umbel.strategies.task import Site, Task
from umbel.strategies.trainer import TaskTrainer
from umbel.tests.actors import agreed
from umbel.tests.fabs import PROJECT, fab, packed
from umbel.tests.fuzz_protocol import ARRAYS
from umbel.tests.fuzzing import LINE, Parser
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from umbel.strategies.trainer import Settings, TrainResult

LIMIT = 1 << 20


class _Points(Task):
    """A task with the metrics of any."""

    def model(self) -> MLP:
        """Return a small network."""
        return MLP(2, 2, 2)


TASK = _Points()
RESERVED = pipe.MAX_HEADER + 2 * LIMIT
"""What a child may announce is reserved before it comes."""


# ---- the pipe ------------------------------------------------------------------------------


def _received(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    left = memoryview(data)

    def fill(view: memoryview) -> None:
        nonlocal left
        if len(left) < len(view):
            raise Malformed("training child", "is gone")
        view[:] = left[: len(view)]
        left = left[len(view) :]

    return pipe.receive(fill, LIMIT, "training child")


def _sent(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    out = bytearray()

    class Sink:
        def write(self, data: memoryview) -> int:
            out.extend(data)
            return len(data)

    pipe.send(Sink(), fields, arrays)
    return bytes(out)


def _piped(data: bytes) -> str:
    fields, arrays = _received(data)
    return json.dumps([fields, {name: array.tobytes().hex() for name, array in arrays.items()}])


ANSWERS = (
    {"examples": 359},
    {"examples": None},
    {"sums": [{"examples": 512, "loss": 1.5, "correct": 500}, {"examples": 9, "loss": 0.5}]},
    {"sums": [{"examples": 7, "loss": 0.25, "correct": 3}]},
    {"raised": "ValueError: no digit 7"},
)


def _tested(data: bytes) -> dict[str, float] | None:
    """What an evaluator says of a task's test, and the means that the server makes of it."""
    sums = heard(data).sums
    return TaskTrainer(TASK).tested(sums) if sums else None


RESULT = {"weight": 7, "metrics": {"eval.loss": 0.5}}
DELTA = {"w": np.full(40, 0.01, np.float32)}


class Said(Numbers):
    """User code whose process answers with these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return what the bytes say."""
        return _result(*_received(self.data))


def _trained(data: bytes) -> bytes:
    """Make a message out of what the child says; another one if its numbers are others."""
    policy = Policy(min_members=3, min_survivors=3)
    update = Update(Said(data), Site(partition=0, partitions=3), policy, entropy=os_entropy, seed=1)
    terms = agreed()
    update.compute(update.manifest.pack(Numbers().arrays()), terms)
    return bytes(update.encode(3, terms))


def _answers(data: bytes) -> None:
    fields, _ = _received(data)
    if "refused" in fields:
        raise _refusal(fields)
    _numbers(fields, int)


def _some_answers() -> list[bytes]:
    said: tuple[dict[str, Any], ...] = (
        {"metrics": {"eval.loss": 24}},
        {"refused": "REASON_TASK_FAILED", "detail": "x"},
        RESULT,
    )
    return [_sent(fields, {}) for fields in said]


# ---- Flower's messages ---------------------------------------------------------------------

INVITE = {
    "run": "digits-1", "gateway": "gw:1", "ca-sha256": "00" * 32, "ticket": "0102", "lease": 600.0,
    "more": [1, 2],
}  # fmt: skip
REPLY = {"rounds": 3, "bytes-up": 9, "bytes-down": 9, "code": 23}


def _recorded(data: bytes, name: str) -> Message:
    """Return a message with one record, as far as Flower takes the values."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        tree = {}  # a monster
    record = ConfigRecord()
    for key, value in tree.items() if isinstance(tree, dict) else ():
        try:
            record[key] = bytes.fromhex(value) if key == "ticket" else value
        except (TypeError, ValueError):
            continue
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 0  # as flower_trainer.py
    return Message(RecordDict({name: record}), dst_node_id=1, message_type="train")


def _invited(data: bytes) -> tuple[Any, ...]:
    found = _read(_recorded(data, "umbel.invite"))
    return found.invitation.run, found.invitation.lease, found.gateway, found.ca


def _replied(data: bytes) -> str:
    said = _said(_recorded(data, "umbel.session"))
    assert said.isprintable()
    assert len(said) < 200
    return said


# ---- the bundle ----------------------------------------------------------------------------

NOWHERE = Path("/nonexistent")
BUNDLE = fab(code__py=b"app = 1\n")


def _admitted(data: bytes) -> str:
    before = os.environ.pop(APP, None)
    try:
        policy = Policy(apps=(sha256(BUNDLE).digest(),), disk=1 << 20)
        files = DeviceFiles(directory=NOWHERE, federation="f", id=b"", gateway="g:1", policy=policy)
        Guard(files).admit(data)
        return os.environ[APP]
    finally:
        os.environ.pop(APP, None)
        if before is not None:
            os.environ[APP] = before


DIGESTS = {"a.py": bytes(32), "b/c.py": bytes(range(32))}
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
TOML = 400


def _bundled(data: bytes) -> tuple[Any, ...]:
    found = Bundle.read(data, 4 << 20)
    return found.app, found.version, found.digests, sorted(found.signers())


def _bundles() -> list[bytes]:
    plain = Bundle.read(fab(code__py=b"app = 1\n" * 50))
    whole = {**plain.files, SIGNATURES: sign(plain.digests, KEY, None)}
    return [fab(), fab(a__py=b"1", b__py=bytes(9000)), packed(whole)]


def _index(data: bytes) -> Any:
    try:
        return apps.parse(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise StateError("index.json", "an index of bundles", error) from error


def _account(data: bytes) -> Any:
    try:
        return usage.parse(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise StateError("usage.json", "an account", error) from error


def _indices() -> list[bytes]:
    row = {"state": "approved", "app": "me/tiny", "release": "1.0.0", "at": 1_800_000_000}
    rows = {"0f" * 32: row, "00" * 32: row | {"state": "waiting"}}
    return [json.dumps({"version": 1, "apps": rows}).encode()]


CLIENTS = (
    Parser(
        name="pipe.receive", errors=(Malformed,), parse=_piped, spare=RESERVED,
        make=lambda: [_sent(RESULT, ARRAYS), _sent({}, {}), _sent(RESULT, DELTA)],
    ),
    Parser(
        name="pipe.receive, header", form="json", errors=(Malformed,), parse=_piped,
        spare=RESERVED,
        make=lambda: [_sent(RESULT, {})[16:], _sent({"a": [1]}, {})[16:]],
        seal=lambda text: b"UMBP" + len(text).to_bytes(4, "little") + bytes(8) + text,
    ),
    Parser(
        name="child's result", errors=(PeerError, Refused), parse=_trained, spare=RESERVED,
        make=lambda: [_sent(RESULT, DELTA)],
    ),
    Parser(
        name="child's result, header", form="json", errors=(PeerError, Refused), parse=_trained,
        spare=RESERVED,
        make=lambda: [_sent(RESULT, DELTA)[16:-192]],
        seal=lambda text: (
            b"UMBP" + len(text).to_bytes(4, "little") + (192).to_bytes(8, "little") + text
            + DELTA["w"].tobytes() + bytes(32)
        ),
    ),
    Parser(
        name="child's answers", form="json", errors=(Malformed, Refused), parse=_answers,
        spare=RESERVED,
        make=lambda: [answer[16:] for answer in _some_answers()],
        echo=LINE,  # a task's own words about its failure, which stay on the device
        seal=lambda text: b"UMBP" + len(text).to_bytes(4, "little") + bytes(8) + text,
    ),
    Parser(
        name="evaluator_process.heard", form="json", errors=(Refused,), parse=_tested,
        echo=LINE,  # a task's own words about its failure, in the server's own log
        make=lambda: [json.dumps(answer).encode() for answer in ANSWERS],
    ),
    Parser(
        name="flower_client_app._read", form="cells", errors=(SettingsError,), parse=_invited,
        make=lambda: [json.dumps(INVITE).encode()],
    ),
    Parser(
        name="flower_invitations._said", form="cells", errors=(), parse=_replied,
        make=lambda: [json.dumps(REPLY).encode()],
    ),
    Parser(
        name="bundle.read", errors=(Malformed,), parse=_bundled, make=_bundles,
        spare=24 << 20,  # a compressed entry may hold as much as `_bundled` allows
    ),
    Parser(
        name="bundle.read, pyproject", form="toml", growth=TOML, errors=(Malformed,),
        parse=_bundled, make=lambda: [PROJECT.format(version="1.0").encode()],
        seal=lambda text: packed({"pyproject.toml": text}), spare=24 << 20,
    ),
    Parser(
        name="bundles.signers", form="json", errors=(Malformed,),
        parse=lambda data: sorted(signers(DIGESTS, data)),
        make=lambda: [sign(DIGESTS, KEY, None)],
    ),
    Parser(
        name="apps.parse", form="json", errors=(StateError,), parse=_index, make=_indices,
    ),
    Parser(
        name="usage.parse", form="json", errors=(StateError,), parse=_account,
        make=lambda: [b'{"version":1,"hours":{"490000":[1048576,0,10],"490001":[9,9,0]}}'],
    ),
    Parser(
        name="flower_launcher.Guard.admit", errors=(Refused,), make=lambda: [BUNDLE],
        parse=_admitted,
    ),
)  # fmt: skip
