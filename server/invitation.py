"""What the coordinator plans for one attempt: terms, layout, cohort and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .deadlines import UPLOADS
from .ingest import STALLS_A_TRIP
from ..protocol import messages_pb2 as pb
from ..protocol.canonical import settings_to_pb
from ..protocol.errors import PeerError, SettingsError
from ..protocol.plan import Params, read
from ..protocol.wire import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .deadlines import Times
    from ..protocol.context import Terms
    from ..protocol.layout import MessageLayout
    from ..protocol.verification import Member
    from ..strategies.robust_rules import Robust
    from ..strategies.server_rules import Rule


_FRAMING = 16
"""Bytes that a start costs inside its message, at most."""


class Joined(NamedTuple):
    """A node of a session: who its certificate says it is, and the certificate."""

    member: Member
    der: bytes
    version: str = ""
    """Of the device, by its own account; empty where it says none."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one attempt is about."""

    terms: Terms
    layout: MessageLayout
    cohort: Mapping[str, Joined]
    """Invited nodes, by id in hex."""
    needed: int
    """How many trained members freeze the roster before the deadline does."""
    times: Times
    """The parts of the round's deadline."""
    max_norm: float | None = None
    """Largest L2 norm of one delta, in a plain round; None for no bound."""
    rule: Rule | None = None
    """The server step of a training round."""
    budget: float = 0.0
    """Seconds that the uploads have at the most, when their sum is opened."""

    @property
    def stall(self) -> float:
        """Seconds for which an upload may send nothing while others wait for its slot."""
        return self.times.of(UPLOADS) / STALLS_A_TRIP

    @property
    def robust(self) -> Robust | None:
        """How the updates of a plain round become one; None for their weighted mean."""
        return None if self.rule is None or self.secure else self.rule.robust

    @property
    def secure(self) -> bool:
        """Whether masks are on."""
        return self.terms.scheme == "A"

    def missing(
        self, node: str, roster: Iterable[str], knows: Callable[[str, bytes], bool]
    ) -> list[bytes]:
        """Return the certificates of the roster that `node` has not been sent yet."""
        members = (self.cohort[other] for other in roster)
        return [m.der for m in members if not knows(node, m.member.fingerprint)]

    def check_size(self, node: str, announced: int) -> None:
        """Compare what a member says of its vector with what this round's is; bytes.

        Raises:
            PeerError: It is of another round's length.
        """
        if announced != (total := self.layout.total_bytes):
            raise PeerError(node, "announces a vector", f"{total} bytes", announced)

    @property
    def params(self) -> Params:
        """The numbers of ctx0."""
        return read(self.terms.params)


def start_of(terms: Terms, model_bytes: int, manifest: str = "") -> pb.Start:
    """Return the message that opens an attempt: what of ctx0 a member cannot know itself.

    Raises:
        SettingsError: It is larger than a message may be.
    """
    start = pb.Start(
        protocol=terms.protocol,
        scheme=terms.scheme,
        run=terms.run,
        round=terms.round,
        phase=pb.PHASE_TRAIN if terms.phase == "train" else pb.PHASE_EVALUATE,
        attempt=terms.attempt,
        config=settings_to_pb(terms.config),
        params=settings_to_pb(terms.params),
        model_digest=terms.model,
        model_bytes=model_bytes,
        manifest=manifest,
    )
    size = start.ByteSize() + _FRAMING
    if size > MAX_MESSAGE:
        expected = f"names and shapes that fit a message of {MAX_MESSAGE} bytes"
        raise SettingsError("model", expected, f"{size} bytes", "use fewer arrays, shorter names")
    return start
