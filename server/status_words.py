"""What codes mean to an operator: what is so, and what mends it, in one line."""

from __future__ import annotations

from typing import cast

from .endings import Ending
from ..protocol import messages_pb2 as pb
from ..protocol.errors import reason_text

REASONS = {
    pb.REASON_UNSPECIFIED: "it could not join; its own log says why",
    pb.REASON_OTHER_FEDERATION: "it is enrolled in a federation of another CA: enrol it anew",
    pb.REASON_GATEWAY_NAME: "its policy does not name this gateway: `trust.gateways` there",
    pb.REASON_APP_NOT_ALLOWED: "its owner has not allowed this app: `umbel client apps` there",
    pb.REASON_PROTOCOL_TOO_OLD: "its policy, or its release, wants another protocol version",
    pb.REASON_PLAIN_REFUSED: "its policy wants secure aggregation, and the run is plain",
    pb.REASON_SCHEME: "its policy does not allow the run's scheme: `secure.schemes` there",
    pb.REASON_POLICY: "a key of its policy, or a file or setting of the device, decides against it",
    pb.REASON_LIMITS: "a limit of its policy is reached: hours, bytes, rounds of a day, size",
    pb.REASON_CERTIFICATE: "a certificate does not hold: its clock, or its renewal",
    pb.REASON_MEMBER_LIST: "it has no member list in force: see that the issuer runs",
    pb.REASON_CTX_DIFFERS: "it was sent another model or round than the others; report it",
    pb.REASON_ROSTER: "it found the roster of a round unsound; report it",
    pb.REASON_SHARES: "it found shares of a round unsound; report it",
    pb.REASON_SURVIVORS: "it found the survivors of a round unsound; report it",
    pb.REASON_VOTES: "it found too few votes, or other ones; the next round may do",
    pb.REASON_WOULD_DIFFERENCE: "the round would have shown its update by a difference",
    pb.REASON_ATTEMPT_CLOSED: "it had left that attempt already; the next round takes it",
    pb.REASON_NEW_PROCESS: "it was started anew during the round; the next round takes it",
    pb.REASON_JOURNAL: "it cannot write its journal: its disk is full, or not its own",
    pb.REASON_NOT_FINITE: "its training gave NaN or infinity: look at its data",
    pb.REASON_UNDECLARED_METRIC: "its app reports a metric that the task does not declare",
    pb.REASON_TASK_FAILED: "the app failed there; its own log has the traceback",
    pb.REASON_GOODBYE: "its session ended in good order",
    pb.REASON_PAUSED: "its owner has paused it",
}
"""By the code that a device sends (docs/protocol.md, section 4.4)."""
OTHERS = {
    "NO_SESSION": "it runs a ClientApp without Umbel: `umbel client up` starts ours",
    "CLIENTAPP": "Flower could not run the app there; its own log says why",
    "expelled": "it sent what the protocol forbids",
    "lost": "its connection broke in a round",
    "late": "it had not answered when its time was over",
    "left out": "its certificate ends before a round would",
    "bad share": "a share of it did not fit",
}
"""By the kind of an event in a run's record, or by the code that its ServerApp wrote."""
ENDINGS = {
    Ending.GOODBYE: "its session ended in good order",
    Ending.CERTIFICATE: "its certificate is not one of this federation's, or does not hold now",
    Ending.EXPIRED: "its certificate ended: it renews it when it reaches the front",
    Ending.TICKET: "its ticket is old, or another's; it is invited anew",
    Ending.NO_RUN: "it came for a run that is over",
    Ending.NO_SESSION: "it called without a session; it joins anew",
    Ending.NOT_RESUMED: "it came back too late; it joins anew",
    Ending.NOT_WANTED: "its vector came too late",
    Ending.NO_MODEL: "it asked for a model that is not in force any more",
    Ending.TAKEN_OVER: "another connection of the same node took over",
    Ending.UNREAD: "it does not read what it is sent",
    Ending.FULL: "the gateway takes no more sessions: `--connections`",
    Ending.MALFORMED: "it sent what is no message of this protocol: another release?",
    Ending.SILENT: "nothing was heard of it for too long: its network, or its process",
    Ending.SHUTDOWN: "the core service was ended",
    Ending.REMOVED: "it was removed from the federation",
}
"""By how the gateway turned its call away."""


def meaning(code: str) -> tuple[str, str]:
    """Return an event's code as a short word, and what it means.

    Args:
        code: `REASON_POLICY secure.min_members`, `CLIENTAPP 8`, an ending's name, or the kind of
            an event.
    """
    first, _, rest = code.partition(" ")
    if first in pb.Reason.keys():  # noqa: SIM118 - it is no mapping
        reason = cast("pb.Reason", pb.Reason.Value(first))
        word, means = reason_text(reason), REASONS[reason]
        return (f"{word} {rest}", f"{means} ({rest})") if rest else (word, means)
    if first in Ending.__members__:
        return first.lower().replace("_", " "), ENDINGS[Ending[first]]
    means = OTHERS.get(first, "") or OTHERS.get(code, "")
    return code.lower().replace("_", " "), means or "see `umbel runs show`"
