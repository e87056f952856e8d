"""What `umbel up` says at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from umbel.protocol.errors import RoundFailed, SettingsError, StateError
from umbel.server.flower_control import RunState
from umbel.server.ledger import RoundRecord, RunRecord
from umbel.server.registry import Node
from umbel.simulation import up_report
from umbel.simulation.flower_run import Course, Killed, Restarted

HOME = Path("/nowhere")
NODES = tuple(
    Node(name=name, id=name[-1] * 32, site=name, flower_key="", tls_fingerprint="",
         signing_fingerprint="")
    for name in ("edge-0", "edge-1", "edge-2", "edge-3")
)  # fmt: skip
RUN = RunRecord(run="r", created="now", security="on (development CA)", config={"rounds": 2})
DONE = RunState("finished", "completed", "")


def _record(number: int, nodes: tuple[Node, ...], **other: object) -> RoundRecord:
    ids = tuple(node.id for node in nodes)
    about = {"round": number, "attempt": 0, "phase": "train", "outcome": "finished"}
    return RoundRecord(
        **about | {"roster": ids, "survivors": ids, "bytes_up": 4000, "seconds": {"x": 1.0}} | other  # type: ignore[arg-type]
    )


def _course(**other: object) -> Course:
    records = (_record(1, NODES), _record(2, NODES[:3]))
    about = {"flower_run": 7, "state": DONE, "run": RUN, "records": records, "killed": ()}
    return Course(**about | {"last_words": "bye"} | other)  # type: ignore[arg-type]


def _killed(name: str, back_s: float | None, again: int | None) -> Killed:
    return Killed(name, 2, 0.0, back_s, again)


def test_the_summary_names_clients_security_and_the_dead() -> None:
    victims = (
        _killed("edge-3", 3.14, 9),
        _killed("edge-2", 2.0, None),
        _killed("edge-1", None, None),
    )
    course = _course(killed=victims)
    text = up_report.summary(up_report.result_of(course, NODES, HOME), course, NODES)
    assert "secure aggregation: on (development CA)" in text
    assert "clients: 0 edge-0, 1 edge-1, 2 edge-2, 3 edge-3" in text
    assert (
        "killed: edge-3 in round 2 (SIGKILL), online again after 3.1 s, summed again in round 9"
        in text
    )
    assert text.splitlines()[-2].endswith("edge-2 in round 2 (SIGKILL), online again after 2.0 s")
    assert text.splitlines()[-1].endswith("edge-1 in round 2 (SIGKILL), not back before the end")
    # 8,000 bytes of seven members in two rounds
    assert "bytes up: 1.14 kB a client and round" in text


def test_json_has_the_same() -> None:
    course = _course(killed=(_killed("edge-3", 3.14, 9),))
    found = json.loads(
        json.dumps(up_report.as_json(up_report.result_of(course, NODES, HOME), course, NODES))
    )
    assert found["security"] == "on (development CA)"
    assert found["killed"] == [{"name": "edge-3", "round": 2, "back_s": 3.14, "again": 9}]
    assert found["clients"]["edge-1"] == "1" * 32
    assert [r["round"] for r in found["rounds"]] == [1, 2]
    assert (found["flower_run"], found["outcome"]) == ("7", "completed")


def test_a_plain_app_has_no_record() -> None:
    course = _course(run=None, records=())
    assert up_report.result_of(course, NODES, HOME) is None
    text = up_report.summary(None, course, NODES)
    assert text.startswith("run: 7 (completed)\nsecure aggregation: off")
    assert up_report.as_json(None, course, NODES)["security"].startswith("off")


def test_a_completed_run_has_no_failure() -> None:
    assert up_report.failure_of(_course(), HOME) is None


def test_a_failed_round_is_the_runs_own_end() -> None:
    records = (_record(1, NODES), _record(2, NODES, outcome="aborted", cause="too few"))
    failed = RunState("finished", "failed", "exit 200")
    error = up_report.failure_of(_course(state=failed, records=records), HOME)
    assert isinstance(error, RoundFailed)
    assert str(error) == "round 2, train: aborted, too few"


def test_any_other_failure_names_the_log() -> None:
    failed = RunState("finished", "failed", "")
    error = up_report.failure_of(_course(state=failed, last_words="KeyError: 'lr'"), Path("/x.log"))
    assert isinstance(error, StateError)
    assert "failed: KeyError: 'lr'" in str(error)
    assert str(error).endswith("/x.log")


def test_what_a_serverapp_raised_comes_first() -> None:
    details = (
        "ServerApp failed with exception: edge-1 its ClientApp failed, code 2: "
        "2 of the nodes could still join, 3 are needed"
    )
    failed = RunState("finished", "failed", details)
    error = up_report.failure_of(_course(state=failed), Path("/logs/x.log"))
    assert str(error) == (
        "edge-1 its ClientApp failed, code 2: 2 of the nodes could still join, 3 are needed; "
        "run 7 ended with that, /logs/x.log; each client's own log says more: /logs"
    )


def test_what_was_started_again_is_in_the_summary() -> None:
    course = _course(restarted=(Restarted("core", 2, "was killed by signal 9"),))
    result = up_report.result_of(course, NODES, HOME)
    last = up_report.summary(result, course, NODES).splitlines()[-1]
    assert last == "restarted: core in round 2 (was killed by signal 9)"
    assert up_report.as_json(result, course, NODES)["restarted"] == [
        {"name": "core", "round": 2, "what": "was killed by signal 9"}
    ]


@pytest.mark.parametrize(("outcome", "refused"), [("completed", False), ("failed", True)])
def test_a_plain_app_that_no_client_answered_is_no_success(outcome: str, refused: bool) -> None:
    state = RunState("finished", outcome, "")
    course = _course(run=None, records=(), secure=True, refused=refused, state=state)
    assert "required" in up_report.summary(None, course, NODES)
    assert up_report.as_json(None, course, NODES)["security"].startswith("required")
    error = up_report.failure_of(course, HOME)
    assert isinstance(error, SettingsError)
    assert "docs/flower-apps.md" in str(error)


def test_a_wrapped_app_that_fails_before_its_record_is_not_called_plain() -> None:
    failed = RunState("finished", "failed", "")
    course = _course(run=None, records=(), secure=True, state=failed)
    assert "secure aggregation: required; the run ended" in up_report.summary(None, course, NODES)
    assert isinstance(up_report.failure_of(course, HOME), StateError)
