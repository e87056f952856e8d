"""What a device is doing now, gathered from its directory; nothing here changes or asks anything.

`gathered` reads what agent and session say of themselves, the record, certificates, member list,
policy and disk, each for itself: what cannot be read is a line of `todo` and hides nothing else.
`lines` says it to an owner who never heard of rosters.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography import x509

from .apps import WAITING, Apps
from .device_files import DeviceFiles
from .doctor_files import Known
from .history_cli import counted, stamp
from .history_file import (
    CONTRIBUTED,
    INTERRUPTED,
    OPEN,
    REFUSED,
    Asked,
    Totals,
    read_history,
    read_totals,
)
from .hours import within
from .leave import Left, read_left
from .pause import LEFT, Pause, local, paused
from .policy_file import read_owned
from .status_file import alive, read_agent, read_session
from ..host.disk_room import free_bytes
from ..host.figures import size
from ..protocol.errors import UmbelError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .history_file import Entry
    from .status_file import AgentStatus, SessionStatus

SOON = 2 * 86400.0
"""A certificate that ends so soon was not renewed when it should have been."""
LITTLE = 200 << 20
"""Bytes free on the disk below which an owner hears of it."""
RECENT = 86400.0
_LEAVES = ("tls.pem", "signing.pem")
_DOING = {
    "joining": "joining run {run}",
    "idle": "waiting for the next round of run {run}",
    "loading": "receiving the model for round {round} of run {run}",
    "computing": "{verb} for round {round} of run {run}",
    "exchanging": "handing in its part of round {round} of run {run}",
    "away": "in run {run}, whose server does not answer",
}


@dataclass(kw_only=True, slots=True)
class Status:
    """A device, as its files show it. Times in seconds since 1970, 0 where not known."""

    directory: str
    at: float
    federation: str = ""
    node: str = ""
    gateway: str = ""
    front: str = ""
    doing: str = ""
    """One line."""
    since: float = 0.0
    left: Left | None = None
    pause: Pause | None = None
    agent: AgentStatus | None = None
    """As it said last; `agent_alive` tells whether it still runs."""
    agent_alive: bool = False
    session: SessionStatus | None = None
    session_alive: bool = False
    certificates_end: float = 0.0
    members_epoch: int = 0
    members_end: float = 0.0
    remarks: tuple[str, ...] = ()
    apps_waiting: int = 0
    free_bytes: int = 0
    last: Entry | None = None
    """The newest row of the record that is about an attempt."""
    refusal: Entry | None = None
    """The newest refusal of the last 24 hours, if nothing was contributed since."""
    today: Totals = field(default_factory=Totals)
    """Of the last 24 hours."""
    todo: list[str] = field(default_factory=list)
    """What is wrong, each with the next move."""

    def described(self) -> dict[str, Any]:
        """Return it for programs; the signed request of a device that left is nobody's business."""
        found = asdict(self)
        if found["left"]:
            del found["left"]["request"]
        return found


def gathered(directory: Path, now: float | None = None) -> Status:
    """Look at a device's directory."""
    at = time.time() if now is None else now
    known = Known.read(directory)
    found = Status(
        directory=str(directory), at=at, federation=known.federation, node=known.id.hex(),
        gateway=known.gateway, front=known.superlink, free_bytes=free_bytes(directory),
    )  # fmt: skip
    looks = (_standing, _programs) if (directory / LEFT).exists() else _LOOKS
    for look in looks:
        try:
            look(found, directory, known)
        except (UmbelError, OSError) as error:
            found.todo.append(str(error))
    found.doing, found.since = _doing(found)
    if found.free_bytes < LITTLE:
        found.todo.append(f"{size(found.free_bytes)} are free on its disk; free some")
    return found


def lines(status: Status) -> list[str]:
    """Say it in plain words."""
    title = status.federation or "a device of no federation"
    since = f", since {local(status.since)}" if status.since else ""
    rows = [("now", f"{status.doing}{since}"), *_rows(status)]
    wide = max(len(name) for name, _ in rows)
    said = [f"{title}, node {status.node[:8] or 'unknown'}", ""]
    said += [f"{name:<{wide}}  {text}" for name, text in rows if text]
    if status.todo:
        return [*said, "", "to do", *(f"  {text}" for text in status.todo)]
    return [*said, "", "nothing to do"]


def _rows(status: Status) -> list[tuple[str, str]]:
    session = status.session if status.session_alive else None
    agent = status.agent if status.agent_alive else None
    connection = handed = running = ""
    if session is not None:
        word = "answers" if session.up else "does not answer"
        connection = f"the server at {session.gateway} {word}, since {local(session.since)}"
        moved = f"{size(session.bytes_up)} up, {size(session.bytes_down)} down"
        handed = f"{counted(session.rounds, 'round')}, {moved}"
    if agent is not None:
        restarts = f", {counted(agent.restarts, 'restart')}" if agent.restarts else ""
        running = f"process {agent.pid}, since {local(agent.began)}{restarts}"
    today = status.today
    day = (
        f"{counted(today.contributed, 'contribution')}, {counted(today.refused, 'refusal')}, "
        f"{size(today.bytes_up)} up, {size(today.bytes_down)} down"
    )
    return [
        ("server", connection),
        ("this session", handed),
        ("agent", running or ("" if status.left else "none runs")),
        ("last round", _last(status.last)),
        ("last refusal", _refused(status.refusal)),
        ("last 24 hours", day),
        ("certificates", _until(status.certificates_end, status.at, "they renew by themselves")),
        ("member list", _members(status)),
        ("policy", "; ".join(status.remarks)),
        ("disk", f"{size(status.free_bytes)} free"),
    ]


def _refused(entry: Entry | None) -> str:
    if entry is None:
        return ""
    times = f" ({entry.times} times)" if entry.times > 1 else ""
    return f"{stamp(entry.until)}: {entry.reason}{times}"


def _last(entry: Entry | None) -> str:
    if entry is None:
        return ""
    outcome = "in progress" if entry.outcome == OPEN else entry.outcome
    members = f", {entry.members} members" if entry.members else ""
    return f"round {entry.round} of run {entry.run}, {stamp(entry.at)}: {outcome}{members}"


def _members(status: Status) -> str:
    if not status.members_epoch:
        return ""
    until = _until(status.members_end, status.at, "")
    return f"number {status.members_epoch}, until {until}" if until else "none in force"


def _until(end: float, now: float, more: str) -> str:
    if not end:
        return ""
    days = (end - now) / 86400
    left = f"in {days:.1f} days" if days > 0 else "that is past"
    return f"{local(end)} ({'; '.join(filter(None, (left, more if days > 0 else '')))})"


# ---- what each look finds ------------------------------------------------------------------


def _standing(found: Status, directory: Path, _known: Known) -> None:
    found.left, found.pause = read_left(directory), paused(directory, found.at)
    if found.left is None:
        return
    if not found.left.wiped:
        found.todo.append("leaving was broken off: call `umbel client leave` again")
    elif not found.left.told:
        found.todo.append(
            "the server does not know yet that this device left: call `umbel client leave` again, "
            f"or tell its operator: umbel server remove {found.left.node or 'NODE'}"
        )


def _programs(found: Status, directory: Path, _known: Known) -> None:
    found.session = read_session(directory)
    found.session_alive = found.session is not None and alive(found.session)
    found.agent = agent = read_agent(directory)
    found.agent_alive = agent is not None and alive(agent)
    if found.left is not None:
        return
    if not found.agent_alive and not found.session_alive:
        found.todo.append("no agent runs: `umbel client up`, or `umbel client install` for good")
    if agent is None or not agent.error or found.at - agent.error_at > RECENT:
        return
    if agent.state != "up" or agent.error_at > agent.renewed:
        found.todo.append(f"{agent.error} (at {stamp(agent.error_at)})")


def _record(found: Status, directory: Path, _known: Known) -> None:
    asked = Asked(since=found.at - RECENT)
    entries = read_history(directory, asked)
    found.today = Totals.of(read_totals(directory, asked).values())
    attempts = [entry for entry in entries if entry.kind == "attempt"]
    found.last = attempts[-1] if attempts else None
    if found.last is not None and found.last.outcome == OPEN and not found.session_alive:
        found.last = replace(found.last, outcome=INTERRUPTED)
    ends = [e for e in entries if e.outcome in {REFUSED, CONTRIBUTED} and e.code != "paused"]
    if ends and ends[-1].outcome == REFUSED:
        found.refusal = ends[-1]
        if found.refusal.code != "limits":  # those are meant to refuse
            found.todo.append(f"refused at {_refused(found.refusal)}")


def _certificates(found: Status, directory: Path, _known: Known) -> None:
    ends = []
    for name in _LEAVES:
        try:
            leaf = x509.load_pem_x509_certificate(read_owned(directory / name).encode())
        except UNREADABLE:
            found.todo.append(f"{directory / name} is no certificate; `umbel client renew`")
            return
        ends.append(leaf.not_valid_after_utc.timestamp())
    found.certificates_end = min(ends)
    if found.certificates_end - found.at < SOON:
        past = found.certificates_end <= found.at
        word = "have ended" if past else "end soon and were not renewed"
        found.todo.append(f"its certificates {word}: `umbel client renew` says why")


def _list(found: Status, _directory: Path, known: Known) -> None:
    if known.files is None:
        return
    membership = known.files.membership(datetime.fromtimestamp(found.at, UTC))
    found.members_epoch = membership.epoch
    if membership.list is not None:
        found.members_end = membership.list.expires.timestamp()


def _files(_found: Status, directory: Path, _known: Known) -> None:
    DeviceFiles.read(directory)  # says what is wrong with device.toml or policy.toml


def _policy(found: Status, directory: Path, known: Known) -> None:
    found.remarks = known.policy.remarks()
    waiting = [app for app in Apps(directory).known().values() if app.state == WAITING]
    found.apps_waiting = len(waiting)
    if waiting:
        names = ", ".join(f"{app.app} {app.release}" for app in waiting)
        found.todo.append(f"waits for your approval: {names}; see `umbel client apps`")
    hours = known.policy.hours
    clock = datetime.fromtimestamp(found.at).astimezone().strftime("%H:%M")
    if hours is not None and not any(within(clock, window) for window in hours):
        found.remarks += (f"outside of its hours ({', '.join(hours) or 'never'})",)


_LOOKS: tuple[Callable[[Status, Path, Known], None], ...] = (
    _standing, _programs, _files, _record, _certificates, _list, _policy,
)  # fmt: skip


def _doing(found: Status) -> tuple[str, float]:
    """Return the one line, and since when it is so."""
    session, agent = found.session, found.agent
    if found.left is not None:
        return f"it has left {found.federation or 'its federation'}", found.left.since
    if found.pause is not None:
        busy = "; the round in progress ends first" if found.session_alive else ""
        return f"{found.pause}{busy}", found.pause.since
    if session is not None and found.session_alive:
        verb = "testing" if session.phase == "evaluate" else "training"
        words = _DOING[session.state].format(run=session.run, round=session.round, verb=verb)
        return words, session.doing
    return _agent_does(agent if found.agent_alive else None)


def _agent_does(agent: AgentStatus | None) -> tuple[str, float]:
    if agent is None:
        return "nothing: no agent runs", 0.0
    if agent.state == "up":
        return "waiting to be asked by the server", agent.began
    if agent.state == "waiting":
        return f"its SuperNode does not stay up; the next try is at {local(agent.until)}", 0.0
    return f"{agent.state}{': ' if agent.detail else ''}{agent.detail}", agent.began
