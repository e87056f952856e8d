"""The summary of a run of `umbel up`: that of a simulated one, and what real processes add."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import report
from .federation import Result
from ..protocol.errors import RoundFailed, SettingsError, StateError, UmbelError

if TYPE_CHECKING:
    from pathlib import Path

    from .flower_run import Course, Killed
    from ..server.registry import Node

PLAIN_APP = "off (plain Flower messages, which the server reads)"
REFUSED = "required, and this app is plain: no client answered it"
RAISED = "ServerApp failed with exception: "
"""What Flower puts before the words of an exception that ended a ServerApp."""
STOPPED = "stopped"
NO_ROUND = "required; the run ended before its first round"


def result_of(course: Course, nodes: tuple[Node, ...], home: Path) -> Result | None:
    """Return a run's record as the simulator's result; None for an app that keeps none."""
    if course.run is None:
        return None
    return Result(
        run=course.run.run,
        security=course.run.security,
        records=course.records,
        model={},
        path=home / "runs" / course.run.run,
        names={node.id: index for index, node in enumerate(nodes)},
    )


def failure_of(course: Course, log: Path) -> UmbelError | None:
    """Return why a run did not complete; None if it did.

    A round that failed is the run's own end; anything else stands in the ServerApp's output. Where
    secure aggregation is required, an app of plain messages may complete, and nobody trained.
    """
    if _unanswered(course):
        expected = "umbel.train in the ServerApp and umbel.secure in the ClientApp"
        move = "see docs/flower-apps.md, or say --secure off"
        return SettingsError(f"run {course.flower_run}", expected, "an app of plain Flower", move)
    if course.state.outcome == "completed":
        return None
    if course.rejected:
        return RoundFailed(f"the run was ended: {course.rejected}")
    last = course.records[-1] if course.records else None
    if last is not None and last.outcome != "finished":
        said = f"round {last.round}, {last.phase}: {last.outcome}, {last.cause}"
        own = f"; each client's own log says why: {log.parent}" if "refused" in last.cause else ""
        return RoundFailed(said + own)
    said = course.state.details or course.last_words
    if said.startswith(RAISED):  # what is wrong first: it names the node, or the file
        own = f"; each client's own log says more: {log.parent}" if "ClientApp" in said else ""
        raised = said.removeprefix(RAISED)
        return UmbelError(f"{raised}; run {course.flower_run} ended with that, {log}{own}")
    where = f"run {course.flower_run}"
    return StateError(
        where, "a ServerApp that completes", f"{course.state.outcome}: {said}", str(log)
    )


def _unanswered(course: Course) -> bool:
    """Tell whether the app's messages were plain ones, which every client had to refuse."""
    plain = course.refused or course.state.outcome == "completed"
    return course.run is None and course.secure and plain


def summary(result: Result | None, course: Course, nodes: tuple[Node, ...]) -> str:
    """Return what is said at the end."""
    lines = [] if result is None else [report.summary(result)]
    if result is None:
        lines.append(f"run: {course.flower_run} ({course.state.outcome})")
        lines.append(f"secure aggregation: {_without_record(course)}")
    else:
        names = ", ".join(f"{index} {node.name}" for index, node in enumerate(nodes))
        lines.append(f"clients: {names}")
    lines += [_fate(victim) for victim in course.killed]
    if course.stopped and result is not None:
        lines.append(f"stopped: {course.stopped}; `umbel runs resume {result.run}` goes on with it")
    lines += [f"restarted: {r.name} in round {r.round} ({r.what})" for r in course.restarted]
    return "\n".join(lines)


def _without_record(course: Course) -> str:
    if not course.secure:
        return PLAIN_APP
    return REFUSED if _unanswered(course) else NO_ROUND


def _fate(victim: Killed) -> str:
    """Return what became of a client that was killed."""
    text = f"killed: {victim.name} in round {victim.round} (SIGKILL)"
    if victim.back_s is None:
        return f"{text}, not back before the end"
    text += f", online again after {victim.back_s:.1f} s"
    return f"{text}, summed again in round {victim.again}" if victim.again else text


def as_json(result: Result | None, course: Course, nodes: tuple[Node, ...]) -> dict[str, Any]:
    """Return the same for programs."""
    about: dict[str, Any] = {"security": _without_record(course)}
    if result is not None:
        about = report.as_json(result)
    return about | {
        "flower_run": str(course.flower_run),
        "outcome": STOPPED if course.stopped else course.state.outcome,
        "clients": {node.name: node.id for node in nodes},
        "killed": [
            {"name": v.name, "round": v.round, "back_s": v.back_s, "again": v.again}
            for v in course.killed
        ],
        "restarted": [asdict(r) for r in course.restarted],
    }
