"""The session's journal comes first, and a child that dies is a code; detail stays at home."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients.child import Child, InProcess
from umbel.clients.journal import FileJournal
from umbel.protocol import journal as records
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.canonical import settings_to_pb
from umbel.protocol.errors import Malformed, StateError
from umbel.strategies.app import AppRef
from umbel.tests.handmade import (
    NOW,
    Gateway,
    Place,
    Recording,
    Stub,
    devices,
    identity,
    model_of,
    refusal,
    sent,
)

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.clients.session import Action
    from umbel.strategies.trainer import TrainResult

MODEL = model_of(Stub())


def begin(place: Place, **terms: Any) -> list[Action]:
    return Gateway([place], **terms).begin(place)


# ---- the journal -----------------------------------------------------------------------------


class Forgetful(Recording):
    """A journal whose disk fails at the first record of one kind."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def write(self, record: records.Record) -> None:
        """Fail, or write."""
        if isinstance(record, self._kind):
            raise StateError("journal", "a disk", "none left")
        super().write(record)


@pytest.mark.parametrize(
    ("kind", "before", "body"),
    [
        (records.Keyed, "", ""),
        (records.Masked, "gather_shares", "inbox"),
        (records.Voted, "gather_vectors", "survivors"),
        (records.Released, "gather_votes", "votes"),
    ],
)
def test_without_its_record_nothing_of_a_step_leaves(kind: type, before: str, body: str) -> None:
    gate = Gateway(devices(3, journal=Forgetful(kind), policy_required=False))
    if before:
        getattr(gate, before)()
        make = gate.counted if body == "votes" else lambda: getattr(gate, body)(0)
        answer = gate.give(0, {body: make()})
    else:
        answer = gate.begin(gate.places[0])
    assert refusal(answer) == ("REASON_JOURNAL", "")
    # Nor does this process join again, in a plain round as little as in a secure one.
    for terms in ({"attempt": 1}, {"attempt": 2, "scheme": "plain"}):
        assert refusal(begin(gate.places[0], **terms)) == ("REASON_JOURNAL", "")
    assert "a disk" in gate.places[0].log[-1]


def test_a_record_is_durable_before_its_bytes_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node" / "journal"
    seen: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        if os.path.samestat(os.fstat(fd), path.stat()):
            seen.append(path.read_bytes().split(b"\n")[-2].split(b" ")[0].decode())

    places = devices(3, journal=FileJournal(path))
    session = places[0].session
    emit = session._emit

    def watched(step: Any) -> Any:
        class Message:
            def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
                seen.append(f"bytes of {step.message.WhichOneof('body')}")
                return bytes(step.message.SerializeToString())

        return emit(step._replace(message=Message()))

    monkeypatch.setattr(session, "_emit", watched)
    monkeypatch.setattr(os, "fsync", fsync)
    Gateway(places).finish()
    assert seen == [
        *("keyed", "bytes of keys", "bytes of shares", "masked", "bytes of masked"),
        *("voted", "bytes of vote", "released", "bytes of release"),
    ]


def test_a_disk_that_fails_to_sync_lets_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gateway(devices(3, journal=FileJournal(tmp_path / "node" / "journal")))
    gate.gather_vectors()

    def fsync(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    answer = gate.give(0, {"survivors": gate.survivors(0)})
    assert refusal(answer) == ("REASON_JOURNAL", "")
    assert "Input/output error" in " ".join(gate.places[0].log)
    assert b"Input" not in sent(answer).SerializeToString()


def test_a_new_process_is_out_of_what_it_finds(tmp_path: Path) -> None:
    path = tmp_path / "node" / "journal"
    first = FileJournal(path)
    begin(Place(0, journal=first))
    first.close()
    place = Place(0, journal=FileJournal(path))
    assert refusal(begin(place)) == ("REASON_NEW_PROCESS", "")
    assert sent(begin(place, attempt=1)).WhichOneof("body") == "keys"


# ---- user code in a child --------------------------------------------------------------------

TASK = """
import os, pathlib, signal
import numpy as np
import umbel

HERE = pathlib.Path(__file__).parent

class Task(umbel.Task):
    def model(self):
        return umbel.MLP(3, 4, 2)

    def train_data(self, site):
        if (HERE / "kill").exists():
            (HERE / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (HERE / "raise").exists():
            raise ValueError("patient 4711 has a fever")
        return np.ones((5, 3), np.float32), np.zeros(5, int)
"""


@pytest.fixture
def app(tmp_path: Path) -> AppRef:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "fever.py").write_text(TASK)
    return AppRef(folder, "fever:Task")


def test_a_killed_child_is_named_and_the_next_round_works(app: AppRef) -> None:
    with Child(app) as child:
        place = Place(0, trainer=child)
        model = model_of(child)
        pid = child.pid
        (app.directory / "kill").touch()
        assert refusal(begin(place, model=model)) == ("REASON_TASK_FAILED", "")
        assert f"training child {pid} was killed by SIGKILL" in place.log[0]
        assert sent(begin(place, model=model, attempt=1)).WhichOneof("body") == "keys"
        assert child.pid != pid


def test_the_log_has_the_detail_and_the_wire_has_a_code(
    app: AppRef, capfd: pytest.CaptureFixture[str]
) -> None:
    (app.directory / "raise").touch()
    task = InProcess(app)
    place = Place(0, trainer=task)
    answer = begin(place, model=model_of(task))
    assert refusal(answer) == ("REASON_TASK_FAILED", "")
    assert "patient 4711 has a fever" in capfd.readouterr().err  # the device's own console
    assert b"4711" not in sent(answer).SerializeToString()
    assert place.log == ["refused: task failed: the task raised; its trace is above"]


def test_a_refusals_numbers_stay_here() -> None:
    place = devices(1, policy_max_weight=17)[0]
    answer = begin(place)
    assert place.log == ["refused: policy: the run has 40, update.max_weight is 17"]
    assert refusal(answer) == ("REASON_POLICY", "update.max_weight")
    message = sent(answer)
    assert message.ctx == bytes(32)
    # Beside them at most which attempt it is about: no other field has room for a value.
    fields = {field.name for field in message.refusal.DESCRIPTOR.fields}
    assert fields - {"round", "attempt"} == {"reason", "key"}


def test_what_nobody_foresaw_ends_the_attempt_too() -> None:
    """A step that is half done must not be gone on with: least of all a secure one as plain."""
    stub = Stub()

    def bug() -> TrainResult:
        raise ZeroDivisionError

    stub.result = bug
    place = Place(0, trainer=stub)
    with pytest.raises(ZeroDivisionError):
        begin(place)
    assert place.session._terms is None
    message = pb.ToClient(ctx=bytes(32), roster=pb.Roster(members=3))
    code, _ = refusal(place.session.receive(message.SerializeToString()))
    assert code == "REASON_ATTEMPT_CLOSED"


def test_an_attempt_of_scheme_a_never_takes_the_plain_path() -> None:
    gate = Gateway(devices(3))
    gate.gather_keys()
    session = gate.places[0].session
    session._member = None
    answer = gate.give(0, {"roster": pb.Roster(members=3)})
    assert refusal(answer)[0] == "REASON_ATTEMPT_CLOSED"


def test_config_that_no_task_can_use_is_the_runs_fault() -> None:
    answer = begin(Place(0), config=settings_to_pb({"lr": "fast"}))
    assert refusal(answer) == ("REASON_POLICY", "config.lr")


def test_what_cannot_be_told_apart_is_not_a_setting() -> None:
    twice = [pb.Setting(key="a", integer=1), pb.Setting(key="a", integer=2)]
    with pytest.raises(Malformed, match="one value for a key"):
        begin(Place(0), config=twice)


def test_a_revoked_neighbour_is_refused() -> None:
    gate = Gateway(devices(3))
    gate.gather_keys()
    verifier = gate.places[0].session._device.membership.verifier
    verifier.member(identity(1).certificate, NOW)
    verifier.revoke([identity(1).id])
    assert refusal(gate.give(0, {"roster": gate.roster(0)})) == ("REASON_CERTIFICATE", "")
