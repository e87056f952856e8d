"""What `umbel client doctor` finds of a device's state: its owner's word, limits, apps, agent.

None of it is a fault of the device's files or its line; all of it can be why it takes no part. The
policy's hooks are asked, as a session would ask them; nothing is written, and no account changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from . import clock, member_file, pause
from .apps import WAITING, Apps
from .limits import limits_of
from .status_file import alive, read_agent
from ..host.doctor import NOTE, OK, PROBLEM, WARNING, Kind, Table
from ..protocol.errors import Refused, SettingsError, StateError
from ..protocol.members import MemberList

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from cryptography import x509

    from .doctor_files import Known
    from ..host.doctor import Finding

_ENROL = "umbel client enrol TOKEN, with a new token of the federation's operator"

STATE = Table({
    "left": Kind(PROBLEM, "this device has left its federation"),
    "paused": Kind(NOTE, "this device is paused by its owner"),
    "list.none": Kind(NOTE, "no member list was seen yet; the first session brings one"),
    "list.bad": Kind(PROBLEM, "the member list cannot be read, or is by no CA of the pinned root"),
    "list.ended": Kind(NOTE, "the member list that was kept has ended; the next session brings "
                       "another, and no secure round is joined without"),
    "list.removed": Kind(PROBLEM, "this device was removed from its federation"),
    "list.ok": Kind(OK, "the member list, and until when it is in force"),
    "limits.now": Kind(NOTE, "a limit of the policy refuses to take part now"),
    "limits.bad": Kind(PROBLEM, "the account of what was used is damaged, or a hook cannot be run"),
    "limits.ok": Kind(OK, "no limit of the policy refuses to take part now"),
    "apps.bad": Kind(PROBLEM, "what is known of app bundles cannot be read"),
    "apps.waiting": Kind(NOTE, "app bundles wait for their owner's approval"),
    "agent.none": Kind(NOTE, "no agent runs: this device waits for nothing"),
    "agent.error": Kind(WARNING, "the agent runs, and says what went wrong last"),
    "agent.bad": Kind(WARNING, "what the agent says of itself cannot be read"),
    "agent.ok": Kind(OK, "the agent runs"),
})  # fmt: skip


def owner(folder: Path) -> Iterator[Finding]:
    """Look at the owner's word."""
    if pause.has_left(folder):
        yield STATE("left", "this device has left: its keys are gone, it joins nothing", _ENROL)
        return
    found = pause.paused(folder)
    if found is not None:
        yield STATE("paused", f"{found}; it joins no round", "umbel client resume")


def members(known: Known, now: datetime) -> Iterator[Finding]:
    """Look at the newest member list that was seen."""
    file = known.directory / member_file.FILE
    root = [known.root] if known.root else []
    vouched = [ca for ca in known.issuing for one in root if clock.issued(_der(ca), one)]
    keys = [
        key
        for ca in (*vouched, *root)
        if isinstance(key := ca.public_key(), ec.EllipticCurvePublicKey)
    ]
    try:
        raw = member_file.read(known.directory)
        if raw is None:
            yield STATE("list.none", f"{file}: none yet")
            return
        found = MemberList.open(raw, keys, known.federation)
    except (SettingsError, StateError, Refused) as error:
        yield STATE("list.bad", f"{file}: {error}", _ENROL)
        return
    until = f"epoch {found.epoch}, until {found.expires:%Y-%m-%d %H:%M} UTC"
    if known.id in found.revoked:
        yield STATE("list.removed", f"this device was removed ({until})", _ENROL)
    elif now >= found.expires:
        yield STATE("list.ended", f"the member list has ended: {until}")
    else:
        yield STATE("list.ok", f"member list: {until}")


def _der(ca: x509.Certificate) -> bytes:
    return ca.public_bytes(Encoding.DER)


def limits(known: Known) -> Iterator[Finding]:
    """Look whether a limit of the policy refuses now."""
    if known.files is None:
        return  # what is wrong with device.toml or policy.toml is said of them
    try:
        limits_of(known.files).check()
        yield STATE("limits.ok", "no limit of the policy stands in the way now")
    except Refused as error:
        yield STATE("limits.now", str(error), f"wait, or policy.toml: {error.key}")
    except (StateError, SettingsError) as error:
        yield STATE("limits.bad", str(error), "mend or remove what the line names")


def apps(folder: Path) -> Iterator[Finding]:
    """Look for bundles that wait."""
    try:
        waiting = [sha for sha, one in Apps(folder).known().items() if one.state == WAITING]
    except StateError as error:
        yield STATE("apps.bad", str(error), f"move {folder / 'apps'} away")
        return
    if waiting:
        first = waiting[0][:16]
        line = f"{len(waiting)} app bundles wait for approval: {first}"
        yield STATE("apps.waiting", line, f"umbel client apps show {first}, then approve or reject")


def agent(folder: Path) -> Iterator[Finding]:
    """Look whether the agent runs, and what it says."""
    try:
        found = read_agent(folder)
    except StateError as error:
        yield STATE("agent.bad", str(error), "umbel client up writes it anew")
        return
    if found is None or not alive(found):
        yield STATE("agent.none", "no agent runs", "umbel client up, or umbel client install")
    elif found.error:
        line = f"agent, pid {found.pid}: {found.state}; {found.error}"
        yield STATE("agent.error", line, found.move or "umbel client status")
    else:
        yield STATE("agent.ok", f"agent, pid {found.pid}: {found.state} {found.detail}".rstrip())
