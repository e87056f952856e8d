"""Settings that contradict each other, refused with the arithmetic before anything starts.

A run that cannot end well is better not begun: its devices would train for nothing, and learn why
one by one. What is checked here needs several settings at once; a single one has its range in
settings.py. Scheme A's own numbers are protocol/graph.py's, a robust rule's own
strategies/robust_rules.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cohort import CONFIDENCE, invitations
from .deadlines import LEASE_S, times
from ..protocol.certificates import NODE_DAYS
from ..protocol.errors import SettingsError
from ..protocol.graph import COMPLETE_UP_TO, parameters
from ..strategies.robust_rules import refuse_secure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import RunSettings
    from ..strategies.robust_rules import Robust

_DAY_S = 86400
_MIB = 20  # bits


def check(run: RunSettings) -> None:
    """Refuse times that leave none for the training, or outlast what they depend on, and floors.

    Raises:
        SettingsError: With the numbers and the next move.
    """
    times(run.deadline, run.trip, run.scheme)
    if run.deadline > LEASE_S:
        expected = f"at most {LEASE_S} s, the life of a session and of its ticket"
        raise SettingsError("deadline", expected, run.deadline, "train less in a round")
    life = NODE_DAYS * _DAY_S
    if run.attempts * run.deadline > life:
        fit = int(life // run.deadline)
        expected = (
            f"at most {fit}: {fit} attempts of {run.deadline:g} s last as long as a device's "
            f"certificate, {NODE_DAYS} days = {life} s"
        )
        raise SettingsError("attempts", expected, run.attempts, "lower attempts or deadline")
    _check_rule(run)
    if run.scheme == "A":
        _serves(run, "min-members", run.params.min_members)
    if run.cohort is not None:
        _check_members(run, "cohort", run.cohort)


def check_clients(run: RunSettings, clients: int) -> None:
    """Refuse a run that this many clients cannot serve.

    Raises:
        SettingsError: With the numbers and the next move.
    """
    least = max(run.cohort or 0, run.params.min_members)
    if clients < least:
        why = "a cohort of that size" if least == run.cohort else f"min-members = {least}"
        move = "more clients; fewer members only if every device's own policy allows it"
        raise SettingsError("clients", f"at least {least}, for {why}", clients, move)
    wanted = run.cohort or clients
    if run.rule.robust is not None and run.cohort is None:
        _bears(run.rule.robust, "clients", clients)
    _check_members(run, "clients" if run.cohort is None else "cohort", wanted)
    asked = invitations(wanted, run.dropout)
    if asked > clients:
        expected = (
            f"{asked} clients to ask, so that {wanted} get ready with {CONFIDENCE:.0%} where "
            f"{run.dropout:g} of them do not"
        )
        move = f"lower dropout or cohort, or enrol {asked - clients} more"
        raise SettingsError("dropout", expected, clients, move)


def _check_rule(run: RunSettings) -> None:
    """Refuse a server step that this run cannot take.

    A round may end with as few updates as `min-survivors`: so many must be enough for a robust
    rule, and no cohort may be smaller.
    """
    if (robust := run.rule.robust) is None:
        return
    if run.scheme == "A":
        refuse_secure(robust)
    if robust.rule == "fltrust":
        expected = "a rule that needs nothing but the clients' updates"
        why = "it compares them with an update of the server's own, and a run makes none"
        raise SettingsError("robust", expected, "fltrust", why)
    if run.cohort is not None:
        _bears(robust, "cohort", run.cohort)
    _bears(robust, "min-survivors", run.params.min_survivors, ": a round may end with so few")


def _bears(robust: Robust, key: str, clients: int, why: str = "") -> None:
    """Refuse a number of clients that is too small for what a robust rule promises."""
    least, arithmetic = robust.least
    if clients < least:
        expected = f"at least {least} for {robust.rule} ({arithmetic}){why}"
        raise SettingsError(key, expected, clients, "raise it, or lower robust-byzantine")


def check_rows(run: RunSettings, clients: int, message: int, room: Mapping[str, int]) -> None:
    """Refuse a robust rule whose updates do not fit where they would be kept.

    Args:
        run: The run.
        clients: How many there are.
        message: Bytes of one update.
        room: Bytes that are free, by place; one of them must do.

    Raises:
        SettingsError: With the arithmetic and the next move.
    """
    if run.rule.robust is None:
        return
    asked = min(clients, invitations(run.cohort or clients, run.dropout))
    rows, what = run.rule.robust.kept(asked)
    if rows * message > max(room.values()):
        free = ", ".join(f"{size >> _MIB} MiB free {place}" for place, size in room.items())
        expected = (
            f"room for {rows} updates of {message / (1 << _MIB):.1f} MiB = "
            f"{rows * message >> _MIB} MiB, {what}"
        )
        raise SettingsError("robust", expected, free, "lower cohort, or take another rule")


def _check_members(run: RunSettings, key: str, members: int) -> None:
    """Refuse a number of members that cannot give what the floors and scheme A ask for."""
    if run.params.min_survivors > members:
        expected = f"at most {members}, for that is {key}, and each gives one update"
        floor = run.params.min_survivors
        raise SettingsError("min-survivors", expected, floor, f"lower it, or raise {key}")
    if run.scheme == "A":
        _serves(run, key, members)


def _serves(run: RunSettings, key: str, members: int) -> None:
    """Refuse a size for which scheme A has no numbers; so is every smaller one that may come.

    Beyond the complete graph only the size itself is looked at.
    """
    sizes = range(run.params.min_members, min(members, COMPLETE_UP_TO + 1))
    p = run.params
    for n in {*sizes, members}:
        try:
            parameters(n, alpha=p.alpha, delta=p.delta, a_min=p.a_min)
        except SettingsError as error:
            expected = f"members that alpha {p.alpha:g} and delta {p.delta:g} allow"
            raise SettingsError(key, expected, members, str(error)) from error
