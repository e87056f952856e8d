"""`umbel server status`: what a node is said to be, and what the core service lets one see."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from umbel import __version__, cli
from umbel.protocol import messages_pb2 as pb
from umbel.server import core_status, core_wire, status
from umbel.server.core_view import STANDS, Watch, kind_of
from umbel.server.endings import Ending, Turned
from umbel.server.flower_control import NodeTimes
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.status_nodes import Facts, NodeView, node_view
from umbel.server.status_records import Records
from umbel.server.status_words import ENDINGS, REASONS, meaning
from umbel.tests.care_stage import made_server, run_of
from umbel.tests.federations import Run, addressed, core, made
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2030, 1, 10, 12, tzinfo=UTC).timestamp()
DAY = 86400
NODE = "ab" * 16


def row(**changes: Any) -> dict[str, Any]:
    """Return a node of the issuer's list, in best health."""
    about = {"umbel": "0.6.0", "flwr": "1.42.0", "python": "3.11.9"}
    return {
        "id": NODE, "name": "press-1", "site": "hall", "enrolled": NOW - 5 * DAY,
        "renewed": NOW - DAY, "removed": None, "state": "enrolled", "flower_node": 7,
        "expires": NOW + 5 * DAY, "about": about, "skew_s": 2, **changes,
    }  # fmt: skip


def seen(given: dict[str, Any] | None = None, **facts: Any) -> NodeView:
    online = {7: NodeTimes(7, "online", NOW + 30)}
    versions = {"umbel": "0.6.3", "flwr": "1.42.9"}
    values: dict[str, Any] = {"now": NOW, "flower": online, "versions": versions}
    return node_view(given or row(), Facts(**(values | facts)))


# ---- why a node does not contribute --------------------------------------------------------------

OFFLINE = {7: NodeTimes(7, "offline", NOW - 3600)}
NEVER = {7: NodeTimes(7, "registered", 0.0)}
RUNS = frozenset({"r-1"})


@pytest.mark.parametrize(
    ("given", "facts", "state", "why"),
    [
        (row(), {}, "online", ""),
        (row(), {"sessions": {NODE: ("r-1", True)}, "running": RUNS}, "in session", ""),
        (row(), {"sessions": {NODE: ("r-1", False)}}, "away", "its connection broke"),
        (
            row(removed=NOW - DAY, state="removed"), {}, "removed",
            "the operator removed it on 2030-01-09",
        ),
        (row(removed=NOW - DAY, state="left"), {}, "left", "its owner took it out on 2030-01-09"),
        (row(flower_node=None), {}, "unregistered", "the SuperLink does not know it yet"),
        (row(), {"flower": {}}, "unregistered", "the SuperLink has forgotten it"),
        (row(), {"flower": None}, "unknown", "the SuperLink does not answer"),
        (row(), {"flower": OFFLINE}, "offline", "offline since 2030-01-10 11:00 UTC"),
        (
            row(), {"flower": OFFLINE, "refusals": {NODE: ("REASON_PAUSED", NOW - 3608, "r-1")}},
            "offline", "paused: its owner has paused it; offline since 2030-01-10 11:00 UTC",
        ),
        (
            row(), {"flower": OFFLINE, "refusals": {NODE: ("REASON_PAUSED", NOW - 9000, "r-1")}},
            "offline", "offline since 2030-01-10 11:00 UTC: its power",
        ),
        (row(), {"flower": NEVER}, "new", "it has never come"),
        (row(expires=NOW - DAY), {}, "expired", "its certificates ended on 2030-01-09"),
        (row(), {"running": RUNS}, "online", "online, and no session"),
        (
            row(),
            {"running": RUNS, "refusals": {NODE: ("REASON_PAUSED", NOW - 9, "r-1")}},
            "online", "paused: its owner has paused it",
        ),
        (
            row(),
            {
                "running": RUNS,
                "refusals": {NODE: ("REASON_POLICY secure.min_members", NOW - 9, "r-1")},
            },
            "online", "policy secure.min_members: a key of its policy",
        ),
        (
            row(),
            {"running": RUNS, "refusals": {NODE: ("CLIENTAPP 8", NOW - 9, "r-1")}},
            "online", "clientapp 8: Flower could not run the app there",
        ),
        (
            row(about={"umbel": "0.5.1", "flwr": "1.42.0"}), {}, "online",
            "it has umbel 0.5.1, this server 0.6.3",
        ),
        (row(skew_s=-3600), {}, "online", "its clock is 3600 s behind"),
    ],
)  # fmt: skip
def test_a_node_is_said_to_be_what_it_is(
    given: dict[str, Any], facts: dict[str, Any], state: str, why: str
) -> None:
    found = seen(given, **facts)
    assert found.state == state
    assert why in found.why
    assert bool(found.why) is bool(why)


def test_the_newest_thing_that_went_wrong_counts() -> None:
    calls = {NODE: {"ending": "TICKET", "turned": NOW - 50, "up": 70, "down": 9, "joined": 2}}
    older = {NODE: ("REASON_LIMITS", NOW - 60, "r-1")}
    newer = {NODE: ("REASON_LIMITS", NOW - 40, "r-1")}
    found = seen(calls=calls, refusals=older).refusal
    assert found is not None
    assert (found.code, found.at, found.where) == ("ticket", NOW - 50, "gateway")
    found = seen(calls=calls, refusals=newer).refusal
    assert found is not None
    assert (found.code, found.at, found.where) == ("limits", NOW - 40, "r-1")
    view = seen(calls=calls)
    assert (view.bytes_up, view.bytes_down, view.joined) == (70, 9, 2)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({}, NOW), ({"flower": OFFLINE}, NOW - 3600), ({"flower": None}, NOW - DAY)],
)
def test_when_it_was_seen(facts: dict[str, Any], expected: float) -> None:
    assert seen(**facts).seen == expected
    assert seen(calls={NODE: {"heard": NOW - 5}}, flower=OFFLINE).seen == NOW - 5


def test_every_code_and_every_ending_has_its_words() -> None:
    assert REASONS.keys() == set(pb.Reason.values())
    assert ENDINGS.keys() == set(Ending)
    for code in ("NO_SESSION", "CLIENTAPP 7", "late", "left out", "expelled", "lost"):
        assert meaning(code)[1] != "see `umbel runs show`", code
    assert meaning("REASON_MEMBER_LIST")[0] == "member list"


# ---- records -------------------------------------------------------------------------------------


def test_records_say_rounds_and_what_went_wrong_last(tmp_path: Path) -> None:
    run_of(tmp_path, "r-1", rounds=0)
    run_of(tmp_path, "other", federation="another")
    with RunDirectory.resume(tmp_path, "r-1") as run:
        for number, nodes in ((1, ("aa", "bb")), (2, ("aa",))):
            commit_of(run, number, nodes)
        run.ledger.event("declined", round=1, attempt=0, node="bb", code="REASON_PAUSED")
        run.ledger.event("late", round=2, attempt=0, node="bb", code="x", at="2030-01-10T12:00:00Z")
    records = Records(tmp_path, "wards")
    (found,) = records.read()
    assert (found.name, found.finished, dict(found.rounds)) == ("r-1", 2, {"aa": 2, "bb": 1})
    assert found.wrong == {"bb": ("late", NOW, "r-1")}
    assert records.read()[0] is found  # nothing was written meanwhile
    with RunDirectory.resume(tmp_path, "r-1") as run:
        commit_of(run, 3, ("bb",))
    assert records.read()[0].rounds == {"aa": 2, "bb": 2}


def commit_of(run: RunDirectory, number: int, nodes: tuple[str, ...]) -> None:
    record = RoundRecord(
        round=number, attempt=0, phase="train", outcome="finished", survivors=nodes
    )
    run.ledger.commit_round(record)


# ---- the core service ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", list(pb.ToClient.DESCRIPTOR.oneofs_by_name["body"].fields))
def test_the_kind_of_a_message_is_read_off_its_first_bytes(field: Any) -> None:
    message = pb.ToClient(ctx=bytes(range(32)))
    getattr(message, field.name).SetInParent()
    assert kind_of(message.SerializeToString()) == field.name
    message.ctx = b""
    assert kind_of(message.SerializeToString()) == field.name
    assert kind_of(b"") == ""


def test_no_more_nodes_are_kept_than_a_federation_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.server.core_view.MOST_NODES", 3)
    watch = Watch()
    for number in range(9):
        watch.turned(Turned(Ending.TICKET, f"{number:032x}", "is late"), NOW)
    watch.turned(Turned(Ending.CERTIFICATE, "a peer", "was refused"), NOW)
    assert len(watch.nodes) == 3
    assert watch.nodes[f"{0:032x}"].ending == "TICKET"


def test_a_core_service_shows_its_runs_and_nodes(tmp_path: Path) -> None:
    federation = made(tmp_path / "f", 3)
    assert core_status.ask(federation.folder) is None
    with core(federation) as port:
        addressed(federation, f"127.0.0.1:{port}")
        empty = core_status.ask(federation.folder)
        assert empty is not None
        assert (empty["runs"], empty["nodes"]) == ({}, {})
        assert abs(empty["began"] - time.time()) < 60
        run = Run(federation, tmp_path, trainer=Numbers(), rounds=2)
        devices = run.devices()
        for index, device in enumerate(devices):
            device.start(run.name, run.ticket(index))
        run.joined(3)
        looks: list[dict[str, Any]] = []

        def done() -> bool:
            looks.append(core_status.ask(federation.folder) or {})
            return run.coordinator.done

        run.coordinator.begin(time.monotonic())
        run.pump(done)
        run.core.goodbye()
        for device in devices:
            device.join()
        run.close()
    found = looks[-2]  # the last before everybody was dismissed
    about = found["runs"]["run-1"]
    assert about["serverapp"]
    assert {s["node"] for s in about["sessions"]} == {node.id for node in federation.nodes}
    assert all(s["connected"] for s in about["sessions"])
    assert {node: seen["joined"] for node, seen in found["nodes"].items()} == {
        node.id: 1 for node in federation.nodes
    }
    assert sum(seen["up"] for seen in found["nodes"].values()) == about["up"]
    assert sum(seen["down"] for seen in found["nodes"].values()) <= about["down"]
    stages = [look["runs"]["run-1"] for look in looks]
    assert {1, 2} >= {stage["round"] for stage in stages if "round" in stage} >= {2}
    assert {stage["phase"] for stage in stages if "phase" in stage} <= set(STANDS.values())


def test_whoever_only_looks_may_do_nothing_else(tmp_path: Path) -> None:
    """A second command is not read; nor does `status` come within a run's connection."""
    federation = made(tmp_path / "f", 3)
    with core(federation):
        run = Run(federation, tmp_path)
        with closing(run):
            run.core._socket.sendall(core_wire.head("status"))
            with pytest.raises(Exception, match="on a connection of its own"):
                run.pump(lambda: False, 5.0)


# ---- the command ---------------------------------------------------------------------------------


def test_a_server_of_which_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    made_server(home)
    monkeypatch.setenv("UMBEL_HOME", str(home))
    assert cli.main(["server", "status", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["name"]: one["alive"] for one in found["servers"]} == dict.fromkeys(
        ("issuer", "core", "superlink", "front", "superexec"), False
    )
    assert [(node["name"], node["state"]) for node in found["nodes"]] == [
        ("press-1", "unknown"), ("press-2", "unknown"), ("press-3", "removed"),
    ]  # fmt: skip
    assert [token["name"] for token in found["tokens"]] == ["press-4"]
    assert [one["name"] for one in found["certificates"]] == [
        "ca.pem", "issuing.pem", "gateway.pem", "front.pem", "superlink.pem",
    ]  # fmt: skip
    assert (found["runs"], found["unknown"], found["umbel"]) == ([], [], __version__)
    assert cli.main(["server", "status"]) == 0
    said = capsys.readouterr().out
    assert "programs: issuer DOWN, core DOWN" in said
    assert "why: the SuperLink does not answer" in said
    assert "why: the operator removed it on 2027-03-01" in said
    assert cli.main(["server", "status", "--every", "0"]) == 2


def test_watching_ends_with_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_server(tmp_path / "home")
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    looks = iter(range(2))

    def rest(_: float) -> None:
        if next(looks, None) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("umbel.server.status_cli.time.sleep", rest)
    assert cli.main(["server", "status", "--watch", "--format", "json"]) == 130
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["federation"] for line in lines] == ["wards", "wards"]


def test_a_broken_part_does_not_hide_the_others(tmp_path: Path) -> None:
    made_server(tmp_path / "home")
    folder = tmp_path / "home" / "federations" / "wards"
    (folder / "front.pem").write_text("nonsense")
    (folder / "issuer.sqlite").write_bytes(b"nonsense" * 100)
    found = status.Observer(folder, tmp_path / "home").look()
    assert [line.partition(":")[0] for line in found.unknown] == ["issuer", "front.pem"]
    assert len(found.certificates) == 4
