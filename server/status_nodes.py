"""One node as an operator sees it, and why it does not contribute.

| said of a node | it is so because |
|---|---|
| `left`, `removed` | its owner or the operator took it out |
| `unregistered` | it has certificates, and the SuperLink does not know it yet |
| `expired` | its certificates ended, and it has renewed none |
| `in session` | it has a session of a run: it contributes |
| `away` | its session waits for a connection that broke |
| `new`, `offline` | the SuperLink has never seen it, or it left |
| `online` | it is there; without a session in a run that goes on, its last code says why |
| `unknown` | the SuperLink does not answer |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .status_words import meaning
from ..host.figures import day, moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .flower_control import NodeTimes

SKEW_S = 60
"""A clock that is off by more is said."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The last thing that went wrong with a node."""

    code: str
    means: str
    at: float
    """Seconds since 1970."""
    where: str
    """The run whose record has it, or `gateway`."""


_GOES = {"paused", "limits"}
_NEAR = 120.0  # a word that is older was about something else


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """One node."""

    id: str
    name: str
    site: str
    state: str
    why: str
    """Why it does not contribute; empty where nothing stands against it."""
    session: str
    """The run that it has a session of."""
    flower: str
    """What the SuperLink says of it."""
    about: Mapping[str, Any]
    """What it said of itself at its last renewal."""
    skew_s: int | None
    """By how much its clock was ahead of ours then."""
    seen: float
    """When it was last there, seconds since 1970; 0 for never."""
    joined: int
    """Sessions since the core service began."""
    rounds: int
    """Finished training rounds that its update is in, of the runs that were looked at."""
    bytes_up: int
    bytes_down: int
    """Since the core service began."""
    enrolled: float
    expires: float
    """When its certificates end."""
    refusal: Refusal | None


@dataclass
class Facts:
    """What is known of all nodes, by source."""

    now: float
    flower: Mapping[int, NodeTimes] | None = None
    """By Flower's id; None where the SuperLink does not answer."""
    sessions: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """By node the run of its session, and whether it is connected."""
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the core service saw (core_view.py), by node."""
    rounds: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, tuple[str, float, str]] = field(default_factory=dict)
    """Code, time and run of the last event of a node in the runs' records."""
    running: frozenset[str] = frozenset()
    """Runs that have a ServerApp."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """This server's."""


def node_view(row: Mapping[str, Any], facts: Facts) -> NodeView:
    """Return what is known of a node of the issuer's list (issuer_books.py)."""
    node = str(row["id"])
    calls = facts.calls.get(node, {})
    times = None if facts.flower is None else facts.flower.get(row["flower_node"])
    session, connected = facts.sessions.get(node, ("", False))
    refusal = _refusal(node, calls, facts)
    state, why = _state(row, facts, times, session, connected=connected)
    if not why and state == "online" and facts.running:
        why = _without_session(refusal)
    if state == "offline" and times is not None and (word := _last_word(refusal, times)):
        why = f"{word}; offline since {moment(times.until)}"
    notes = [why, *_notes(row, facts)] if state not in {"left", "removed"} else [why]
    return NodeView(
        id=node,
        name=str(row["name"]),
        site=str(row["site"]),
        state=state,
        why="; ".join(filter(None, notes)),
        session=session,
        flower="" if times is None else times.status,
        about=row["about"],
        skew_s=row["skew_s"],
        seen=_seen(row, times, calls, facts.now),
        joined=int(calls.get("joined", 0)),
        rounds=facts.rounds.get(node, 0),
        bytes_up=int(calls.get("up", 0)),
        bytes_down=int(calls.get("down", 0)),
        enrolled=float(row["enrolled"]),
        expires=float(row["expires"]),
        refusal=refusal,
    )


def _state(
    row: Mapping[str, Any], facts: Facts, times: NodeTimes | None, session: str, *, connected: bool
) -> tuple[str, str]:
    """Return a node's state, and what the state says of why it does not contribute."""
    if row["removed"] is not None:
        who = "its owner took it out" if row["state"] == "left" else "the operator removed it"
        return str(row["state"]), f"{who} on {day(row['removed'])}"
    if row["expires"] <= facts.now:
        why = f"its certificates ended on {day(row['expires'])}: it renews them by the front"
        return "expired", f"{why} as soon as it reaches it"
    if row["flower_node"] is None:
        return "unregistered", "the SuperLink does not know it yet: issuer and SuperLink must run"
    if session:
        waits = "its connection broke; it is waited for"
        return ("in session", "") if connected else ("away", waits)
    return _presence(facts, times)


def _presence(facts: Facts, times: NodeTimes | None) -> tuple[str, str]:
    """Return the state of a member without a session, by what the SuperLink says."""
    if facts.flower is None:
        return "unknown", "the SuperLink does not answer"
    if times is None:
        return "unregistered", "the SuperLink has forgotten it; the issuer registers it again"
    if times.status == "online":
        return "online", ""
    if not times.until:
        why = "it has never come: `umbel client up` there, and that it reaches the front"
        return "new", f"{why} (`umbel client doctor`)"
    return "offline", f"offline since {moment(times.until)}: its power, network, or process"


def _last_word(refusal: Refusal | None, times: NodeTimes) -> str:
    """Return why a node went offline, where it said so before: its agent ends Flower's then."""
    if refusal is None or refusal.code.partition(" ")[0] not in _GOES:
        return ""
    near = abs(times.until - refusal.at) < _NEAR
    return f"{refusal.code}: {refusal.means}" if near else ""


def _without_session(refusal: Refusal | None) -> str:
    """Return why a node that is online has no session while a run goes on."""
    if refusal is None:
        return "online, and no session: it is being invited, or busy with what it was asked before"
    return f"{refusal.code}: {refusal.means}"


def _notes(row: Mapping[str, Any], facts: Facts) -> list[str]:
    """Return what will stand against a node, or may."""
    notes = []
    for name, ours in facts.versions.items():
        theirs = str(row["about"].get(name, ""))
        if theirs and _minor(theirs) != _minor(ours):
            notes.append(f"it has {name} {theirs}, this server {ours}")
    skew = row["skew_s"]
    if skew is not None and abs(skew) > SKEW_S:
        notes.append(f"its clock is {abs(skew)} s {'ahead' if skew > 0 else 'behind'}")
    return notes


def _refusal(node: str, calls: Mapping[str, Any], facts: Facts) -> Refusal | None:
    """Return the newer one of what records and gateway say."""
    found = []
    if node in facts.refusals:
        code, at, run = facts.refusals[node]
        found.append((at, code, run))
    if calls.get("ending"):
        found.append((float(calls.get("turned", 0)), str(calls["ending"]), "gateway"))
    if not found:
        return None
    at, code, where = max(found)
    word, means = meaning(code)
    return Refusal(code=word, means=means, at=at, where=where)


def _seen(
    row: Mapping[str, Any], times: NodeTimes | None, calls: Mapping[str, Any], now: float
) -> float:
    online = times is not None and times.status == "online"
    here = now if online else 0.0 if times is None else times.until
    return max(here, float(calls.get("heard", 0)), float(row["renewed"]))


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
