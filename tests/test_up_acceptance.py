"""Processes killed at every moment, strangers, and what may not leave: one real federation.

Five clients, a model of 8 MB, secure aggregation on. Every test takes the rounds that it needs of
one long run; `make acceptance` runs this file.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from umbel.clients.apps import APPROVED, Apps
from umbel.protocol import messages_pb2 as pb
from umbel.server.flower_control import build_bundle
from umbel.server.run_directory import RunDirectory, sweep
from umbel.tests.looked_for import FORBIDDEN, check_bytes, check_masked, check_message, rows
from umbel.tests.staged_app import TEXT
from umbel.tests.up_stage import NAMES, Listener, UpStage, expected_step, patience

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # flwr's own, when it bundles an app.
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
CHILD_S, RESTARTED_S = 5.0, 10.0
"""How soon a killed training child works again, and a restarted SuperNode has a session."""
KINDS = ("SuperNode", "ClientApp", "child")
MOMENTS = ("before keys", "after shares", "during upload", "after upload")
CASES = list(itertools.product(KINDS, MOMENTS))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpStage]:
    """The running federation, its run's first round in training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_LOG_LEVEL", "DEBUG")
        stage = UpStage(tmp_path_factory.mktemp("s"))
        try:
            stage.start()
            yield stage
        finally:
            stage.close()


@pytest.fixture(scope="module")
def stage(federation: UpStage) -> UpStage:
    """The federation with its run begun; what its first round sends is kept."""
    (federation.stage / "keep").touch()
    federation.submit()
    federation.begun()
    return federation


# ---- what may not leave a device -----------------------------------------------------------------


def test_nothing_of_one_client_travels(stage: UpStage) -> None:
    (stage.stage / "boom-2").touch()
    number = stage.full_round()
    stage.go(number)
    record = stage.finished(number)
    (stage.stage / "keep").unlink()
    assert {stage.ids[node] for node in record.survivors} == {*NAMES} - {"edge-2"}
    assert ("edge-2", "REASON_TASK_FAILED") in {
        (stage.ids[e.node], e.code) for e in stage.events(number) if e.kind == "refused"
    }
    assert TEXT in stage.logs()["edge-2"]  # where it belongs: on its own console
    for name in NAMES:
        said = stage.sent(name, "session")
        assert len(said) > (0 if name == "edge-2" else 3)
        for up in said:
            check_message(up)
    check_masked(stage.sent_bytes("edge-0", "upload"))


# ---- killed processes ----------------------------------------------------------------------------


def _reach(stage: UpStage, moment: str, victim: str, number: int) -> None:
    """Let the round go on until the victim is at the moment, and stand still there."""
    others = tuple(name for name in NAMES if name != victim)
    if moment == "after shares":
        stage.hold(op="message", body="shares", node=victim)
    elif moment == "during upload":
        (stage.stage / f"stall-{victim}").touch()
    elif moment == "after upload":
        stage.hold(op="whole", node=victim)
    stage.go(number, others)
    if moment == "before keys":
        time.sleep(0.5)
        return
    stage.go(number, (victim,))
    wanted = {"op": "half" if moment == "during upload" else "held", "node": victim}
    before = len(stage.trace(**wanted))
    stage.until(lambda: len(stage.trace(**wanted)) > before, 60, f"{victim} {moment}")


@pytest.mark.parametrize(("kind", "moment"), CASES)
def test_a_round_ends_without_whom_was_killed(stage: UpStage, kind: str, moment: str) -> None:
    victim = NAMES[CASES.index((kind, moment)) % len(NAMES)]
    number = stage.full_round()
    _reach(stage, moment, victim, number)
    at = stage.kill(victim, kind)
    stage.release()
    record = stage.finished(number)
    took = time.time() - at
    survivors = {stage.ids[node] for node in record.survivors}
    events = [event for event in stage.events(number) if event.kind != "clients"]  # names nobody
    notes = {(e.kind, stage.ids.get(e.node, e.node), e.code) for e in events}
    print(f"\n{kind} {moment}: {victim}, round over after {took:.1f} s, {sorted(notes)}")
    # A child is needed for training only; a vector that arrived whole is summed, whoever dies then.
    lost = kind != "child" or moment == "before keys"
    counted = set(NAMES) if not lost or moment == "after upload" else {*NAMES} - {victim}
    assert record.outcome == "finished"
    assert survivors == counted
    assert stage.moved(number) == pytest.approx(expected_step(survivors), rel=1e-3)
    assert {name for _, name, _ in notes} <= ({victim} if lost else set())
    if kind == "child":
        assert not lost or ("refused", victim, "REASON_TASK_FAILED") in notes
        back = _trains_again(stage, victim, number, at)
        assert back < CHILD_S * patience()
    else:
        back = _has_a_session_again(stage, victim, at)
        assert back < RESTARTED_S * patience()
    print(f"back after {back:.1f} s")


def _trains_again(stage: UpStage, victim: str, number: int, at: float) -> float:
    found = stage.until(lambda: stage.trace(op="training", node=victim, round=number + 1), 30)
    return float(found[0]["at"]) - at


def _has_a_session_again(stage: UpStage, victim: str, at: float) -> float:
    def again() -> list[float]:
        joined = stage.trace(op="joined", node=victim)
        return [line["at"] for line in joined if line["at"] > at]

    now = float(stage.until(again, 60, f"{victim} to join again")[0])
    restarts = [s.at for s in stage.seen if (s.name, s.what) == (victim, "restarted")]
    assert at < restarts[-1] < now
    print(f"{victim}: started again {restarts[-1] - at:.1f} s after the kill, in {now - at:.1f} s")
    return now - restarts[-1]


def test_a_supernode_that_dies_with_the_front_is_back(stage: UpStage) -> None:
    number, victim = stage.full_round(), NAMES[-1]
    front = stage.up.supervisor.pid("front")
    os.kill(front, signal.SIGKILL)  # its key cannot be freed until that one is back
    at = stage.kill(victim, "SuperNode")
    stage.go(number)
    survivors = {stage.ids[node] for node in stage.finished(number).survivors}
    assert survivors == {*NAMES} - {victim}
    _has_a_session_again(stage, victim, at)
    assert stage.up.supervisor.pid("front") != front
    assert [s.name for s in stage.seen if s.name in {"core", "superlink"}] == []


def test_a_killed_serverapp_leaves_nothing_half_written(stage: UpStage) -> None:
    number = stage.full_round()
    pid = stage.trace(op="serverapp")[-1]["pid"]
    rounds = stage.home / "runs" / stage.run / "rounds"
    stage.go(number)
    end = time.monotonic() + 60
    while not (writing := list(rounds.glob(".*.[0-9]*"))):
        assert time.monotonic() < end
    os.kill(pid, signal.SIGKILL)  # in the middle of a round's files
    at = time.time()
    print(f"\nkilled while it wrote {[folder.name for folder in writing]}")
    with RunDirectory.open(stage.home, stage.run) as directory:
        directory.ledger.verify()
        latest = directory.latest()
        assert latest in {number - 1, number}
        for kept in directory.kept():
            directory.read_round(kept)  # every byte is hashed again
    state = stage.over(stage.flower_run)
    print(f"Flower calls the run {state.outcome} after {time.time() - at:.0f} s")
    assert state.outcome == "failed"
    assert sweep(stage.home) in {(), (stage.run,)}
    assert not list(rounds.glob(".*"))
    with RunDirectory.open(stage.home, stage.run) as directory:
        assert directory.latest() == latest


# ---- strangers -----------------------------------------------------------------------------------


def test_a_rogue_invitation_gets_no_session(federation: UpStage) -> None:
    ours, theirs = federation.ca(), "00" * 32
    with Listener() as rogue:
        address = f"127.0.0.1:{rogue.port}"
        refused = federation.answers(federation.up.bundle, address, theirs)
        assert len(refused) == len(NAMES)
        assert {answer["said"]["code"] for answer in refused} == {pb.REASON_OTHER_FEDERATION}
        # With the right CA named, a device still dials the gateway of its own enrolment, which
        # knows neither the run nor the ticket.
        dialled = federation.answers(federation.up.bundle, address, ours)
        assert len(dialled) == len(NAMES)
        assert {answer["said"]["rounds"] for answer in dialled} == {0}
        assert pb.REASON_GOODBYE not in {answer["said"]["code"] for answer in dialled}
        elsewhere = federation.answers(federation.up.bundle, f"fl.example.org:{rogue.port}", ours)
        assert {answer["said"]["code"] for answer in elsewhere} == {pb.REASON_GATEWAY_NAME}
        assert rogue.calls == 0
    logs = federation.logs()
    for name in NAMES:
        assert "invited by another federation" in logs[name]
        assert "which is not in trust.gateways" in logs[name]


def test_an_unapproved_bundle_is_not_imported(federation: UpStage) -> None:
    marker = federation.stage / "imported"
    client = federation.up.wanted.app / "staged" / "client_app.py"
    line = f"open({str(marker)!r}, 'w').close()\n"
    client.write_text(line + client.read_text())
    assert codes(federation) == [pb.REASON_APP_NOT_ALLOWED] * len(NAMES)
    assert not marker.exists()
    for name in NAMES:
        assert "nothing of it was installed" in federation.logs()[name]


def test_a_new_bundle_waits_on_every_device_and_one_changed_byte_waits_again(
    federation: UpStage,
) -> None:
    """The bundle of the test before, which writes a file when it is imported."""
    marker = federation.stage / "imported"
    client = federation.up.wanted.app / "staged" / "client_app.py"
    devices = [federation.up.wanted.folder / "nodes" / name for name in NAMES]
    before = [(device / "policy.toml").read_text() for device in devices]
    for device, text in zip(devices, before, strict=True):
        (device / "policy.toml").write_text(text.replace("approve = false", "approve = true"))
    first = sha256(build_bundle(federation.up.wanted.app)).hexdigest()
    assert codes(federation) == [pb.REASON_APP_NOT_ALLOWED] * len(NAMES)
    client.write_text(client.read_text().replace("'w'", "'a'", 1))
    changed = sha256(build_bundle(federation.up.wanted.app)).hexdigest()
    assert codes(federation) == [pb.REASON_APP_NOT_ALLOWED] * len(NAMES)
    assert not marker.exists()
    for device in devices:
        assert {s: k.state for s, k in Apps(device).known().items()} == {
            first: "waiting", changed: "waiting"
        }  # fmt: skip
    Apps(devices[0]).decide(changed, APPROVED)
    refused = [pb.REASON_APP_NOT_ALLOWED] * (len(NAMES) - 1)
    assert codes(federation) == sorted([pb.REASON_OTHER_FEDERATION, *refused])
    assert marker.exists()  # so the marker shows what it should
    for device, text in zip(devices, before, strict=True):
        (device / "policy.toml").write_text(text)


def codes(federation: UpStage) -> list[int]:
    """Return what the devices answer to an invitation with the app as it is now."""
    bundle = build_bundle(federation.up.wanted.app)
    answers = federation.answers(bundle, "127.0.0.1:1", "00" * 32)
    return sorted(answer["said"]["code"] for answer in answers)


# ---- at the end ----------------------------------------------------------------------------------


def test_nothing_of_one_client_is_kept(federation: UpStage) -> None:
    outputs = [federation.up.control.output(run) for run in federation.runs]
    texts = {f"output {i}": "".join(pieces) for i, pieces in enumerate(outputs)}
    federation.close()
    assert federation.left() == []
    for name in NAMES:  # the answers of its sessions among it
        http = b"".join(federation.sent_bytes(name, "http"))
        assert b"umbel.session" in http
        check_bytes(http)
    devices = {f"{name}.log" for name in NAMES}  # consoles of the devices themselves
    looked = []
    for file in federation.home.rglob("*"):
        inside = (
            file.relative_to(federation.up.wanted.folder).parts
            if (file.is_relative_to(federation.up.wanted.folder))
            else ()
        )
        if not file.is_file() or inside[:1] == ("nodes",) or file.name in devices:
            continue
        looked.append(file.name)
        if file.suffix == ".sqlite":
            texts |= {f"{file.name} {i}": text for i, text in enumerate(rows(file))}
        elif file.suffix != ".safetensors":
            texts[str(file)] = file.read_text("utf-8", "replace")
    assert {"superlink.sqlite", "ledger.sqlite", "core.log", "superlink.log"} <= set(looked)
    everything = "".join(texts.values())
    assert "DEBUG" in everything
    assert '"train.score":' in everything  # the sum over all of them
    for where, text in texts.items():
        assert not (found := FORBIDDEN.search(text)), (where, found)
