"""An attempt whose survivors were fixed before its server lost its memory, taken up again.

It begins with the folded sum and the transcript of open_round.py, in the phase `voting`: every
survivor is asked for its vote once more, and one that comes later is asked when it comes. Members
that still hold the attempt's secrets answer with the bytes that they sent before, if they did; of
the others the round has no use, as of members that are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .attempt import Attempt
from ..protocol import messages_pb2 as pb
from ..protocol.codec import Codec
from ..protocol.round_table import OVER, RoundEvent, RoundPhase

if TYPE_CHECKING:
    from .open_round import OpenRound

_FORGOTTEN = {pb.REASON_CTX_DIFFERS, pb.REASON_ATTEMPT_CLOSED, pb.REASON_NEW_PROCESS}
"""What a device says that holds nothing of this attempt any more."""


class Reopened(Attempt):
    """The coordinator's state of an attempt that an earlier process began."""

    def take_up(self, kept: OpenRound, now: float) -> None:
        """Open the sum as it was and ask for the votes.

        The plan's cohort is the transcript's roster, in its order.

        Raises:
            PeerError, RoundFailed: The transcript is not of these terms.
            StateError: The sum is not what was kept.
        """
        by_der = {joined.der: joined.member for joined in self.plan.cohort.values()}
        self._server.reopen(kept.transcript, by_der.__getitem__)
        self.roster = tuple(entry.id.hex() for entry in self._server.entries)
        self.survivors = tuple(i.hex() for i in self._server.ids(self._server.u))
        params = self.plan.params
        self.codec = Codec(len(self.roster), params.value_range, params.weight_cap)
        self._open()
        self.opened().load(kept.path, kept.digest, self.survivors)
        self._gone = set(self.roster) - set(self.survivors)
        self._move(RoundEvent.REOPENED, now)
        for node in self.survivors:
            self._ask(node)

    def entered(self, node: str, now: float, *, again: bool) -> None:
        """Ask a survivor that has come back, whatever session it had before."""
        if node in self._waiting and self.phase not in OVER:
            self._ask(node)
        elif again:
            self.lost(node, now)

    def _ask(self, node: str) -> None:
        """Send a survivor everything from the survivors on, up to this phase."""
        call = self._server.call(self._server.place(bytes.fromhex(node)))
        self._post(node, pb.ToClient(ctx=self.ctx, survivors=call))
        if self.phase is RoundPhase.UNMASKING:
            self._post(node, pb.ToClient(ctx=self.ctx, votes=self._server.counted()))

    def _refused(self, node: str, refusal: pb.Refusal) -> None:
        """Let a member go also when it does not know which attempt it refuses."""
        if refusal.reason in _FORGOTTEN:
            self._note("refused", node, pb.Reason.Name(refusal.reason))
            self._leave(node)
        else:
            super()._refused(node, refusal)
