"""One attempt at one phase of one round: who answered, who is gone, and what comes next.

The phases and their steps are those of protocol/round_table.py. In each the attempt waits
for every member that can still answer, never for one that is gone, and goes on at the
phase's deadline with those it has. A member that breaks a rule is expelled by name; the
attempt lives while scheme A's tolerance, or the plain quorum, allows.

Vectors land in the aggregation core's slots and are folded when they are whole and hash to
what their sender signed: an expelled member's bytes are never in the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .client_times import Answers
from .deadlines import PhaseClock
from .outcome import NOTHING, refused
from ..protocol import messages_pb2 as pb
from ..protocol import plain
from ..protocol.codec import Codec
from ..protocol.entropy import wipe
from ..protocol.errors import PeerError, RoundFailed, TooFewMembers, VoidRound, reason_text
from ..protocol.reopening import Reopenable
from ..protocol.round_table import OVER, RoundEvent, RoundPhase, moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from .ingest import Intake, OpenIntake
    from .invitation import Plan
    from .stepping import StepOrder, Stepped
    from ..protocol.layout import Sums

P, E = RoundPhase, RoundEvent
_PHASE_OF = {"shares": P.SHARING, "vote": P.VOTING, "release": P.UNMASKING}


class Attempt:
    """The coordinator's state of one attempt."""

    def __init__(
        self,
        plan: Plan,
        *,
        intake: OpenIntake,
        post: Callable[[str, pb.ToClient], None],
        note: Callable[[str, str, str], None],
        knows: Callable[[str, bytes], bool],
        keep: Callable[[Plan, Reopenable, Intake], None],
        now: float,
    ) -> None:
        """Invite nobody yet: the coordinator has sent `Start` to the cohort.

        `intake` opens the sum, `post` sends to a node, `note` records `(kind, node, code)`, `knows`
        notes a node's certificate and says whether it was sent before; `keep` is called before the
        votes; `now` is in monotonic seconds.
        """
        self.plan = plan
        self.phase = P.INVITING
        self.cause = self.culprit = ""
        self._now, self.clock = now, PhaseClock(plan.times, now)
        self.roster, self.survivors = tuple[str, ...](), tuple[str, ...]()
        self.sums: Sums | None = None
        self.codec: Codec | None = None
        self.beside, self.answers = NOTHING, Answers(now)
        self._open_intake, self._post, self._note, self._knows = intake, post, note, knows
        self._server, self._keep = Reopenable(plan.terms), keep
        self._intake: Intake | None = None
        self._gone, self._ready = set[str](), list[str]()
        self._waiting = set(plan.cohort)  # whose answer this phase waits for
        self._headers: dict[str, pb.MaskedHeader] = {}
        self._refusals = list[str]()

    # -- what comes in ----------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When the clock next matters: to the phase, or to a slot that others wait for."""
        if self.phase is not P.SUMMING or self._intake is None:
            return self.clock.due
        return min(self.clock.due, self._intake.patient_until)

    def message(self, node: str, message: pb.ToServer, now: float) -> None:
        """Take a member's message; one that breaks a rule expels it."""
        self._now = now
        if self.phase in OVER or node in self._gone or node not in self.plan.cohort:
            return
        try:
            self._take(node, message)
        except PeerError as error:
            self.expel(node, str(error))
        self.tick(now)

    def frame(self, node: str, frame: bytes | memoryview, now: float) -> None:
        """Take one frame of a member's vector."""
        self._arrived(node, lambda i: i.digest(node) if i.accept(node, frame, now) else b"", now)

    def whole(self, node: str, digest: bytes, now: float) -> None:
        """Note that a core elsewhere holds a member's whole vector, with this SHA-256."""
        self._arrived(node, lambda _: digest, now)

    def _arrived(self, node: str, taken: Callable[[Intake], bytes], now: float) -> None:
        self._now = now
        if self.phase is not P.SUMMING or node in self._gone:
            return  # late: the survivors are frozen, and it is not among them
        try:
            if node not in self._headers:
                raise PeerError(node, "sent frames before their header")  # noqa: TRY301
            digest = taken(self.opened())
            if digest:
                self._fold(node, digest)
        except PeerError as error:
            self.expel(node, error.record)
        self.tick(now)

    def entered(self, node: str, now: float, *, again: bool) -> None:
        """Note that a node began a session; what an earlier one had of the attempt is gone."""
        if again:
            self.lost(node, now)

    def lost(self, node: str, now: float) -> None:
        """Note that a node's session ended; it is not waited for."""
        if node in self.plan.cohort and node not in self._gone and self.phase not in OVER:
            self._leave(node)
            self._note("lost", node, self.phase.value)
            self.tick(now)

    def tick(self, now: float) -> None:
        """Go on as far as the answers and the clock allow."""
        self._now = now
        if self._intake is not None:
            for node in self._intake.stalled(now):
                self.expel(node, "its upload stalled while others waited for the slot")
            self.clock.alive(self._intake.alive_until)
        for node in self.clock.quiet(self._waiting, now):
            self._note("waiting", node, self.phase.value)
        while self.phase not in OVER and self.phase is not P.SUMMED and self._may_go_on(now):
            try:
                self._go_on(now)
            except VoidRound as error:
                self.fail(E.UNUSABLE, str(error), now, culprit=error.member.hex())
            except RoundFailed as error:
                self.fail(E.TOO_FEW, str(error), now)

    def wants(self, node: str) -> int | None:
        """Return the offset from which a member's vector is wanted; None while no slot is free."""
        wanted = self.phase is P.SUMMING and node in self._headers.keys() - self._gone
        return self._intake.wants(node, self._now) if wanted and self._intake else None

    def expel(self, node: str, why: str) -> None:
        """Drop a member by name; its bytes are in no sum."""
        if node in self._gone or node not in self.plan.cohort:
            return
        self._note("expelled", node, why)
        self._leave(node)
        self._post(node, self._closing(node))

    def step(self, order: StepOrder) -> Stepped:
        """Make the next model out of the opened sum; VoidRound if it cannot be."""
        return self.opened().step(order)

    def committed(self, now: float) -> None:
        """Note that the coordinator committed the round; the sum is given back."""
        self._move(E.COMMITTED, now)
        self._end()

    def fail(self, event: RoundEvent, cause: str, now: float, culprit: str = "") -> None:
        """End the attempt without a result; the model is unchanged."""
        self.cause = cause + (refused(self._refusals) if event is E.TOO_FEW else "")
        self.culprit = culprit
        self._move(event, now)
        self._end()

    # -- one message ------------------------------------------------------------------------

    def _take(self, node: str, message: pb.ToServer) -> None:
        body = message.WhichOneof("body")
        if body == "refusal":
            self._refused(node, message.refusal)
            return
        if message.ctx != (self.ctx if body not in {"keys", "ready"} else self._server.ctx0):
            raise PeerError(node, f"sent `{body}` for another context than this round's")
        if body in {"keys", "ready"}:
            self._joined(node, message)
        elif body == "masked":
            self._header(node, message.masked)
        elif self.plan.secure and _PHASE_OF[body] is self.phase:
            self._answer(node, body, message)
        elif not self.plan.secure:
            raise PeerError(node, f"sent `{body}` in a plain round")
        # A trip that is over has been closed without this member: nothing to do.

    def _refused(self, node: str, refusal: pb.Refusal) -> None:
        """Let a member go that refuses this attempt; a late refusal of another is nothing."""
        terms = self.plan.terms
        if (refusal.round, refusal.attempt) != (terms.round, terms.attempt):
            return
        self._refusals.append(reason_text(refusal.reason))
        code = pb.Reason.Name(refusal.reason)
        self._note("refused", node, f"{code} {refusal.key}".strip())
        self._leave(node)

    def _joined(self, node: str, message: pb.ToServer) -> None:
        if message.HasField("keys") is not self.plan.secure:
            raise PeerError(node, "answers in another scheme than the round's")
        if self.phase is not P.INVITING or node in self._ready:
            return
        if self.plan.secure:
            self._server.keys(self.plan.cohort[node].member, message.keys)
        self._ready.append(node)
        self.answers.ready(node, self._now)
        self._waiting.discard(node)

    def _answer(self, node: str, body: str, message: pb.ToServer) -> None:
        member = bytes.fromhex(node)
        if body == "shares":
            self._server.shares(member, message.shares)
        elif body == "vote":
            self._server.vote(member, message.vote)
        else:
            self._server.release(member, message.release)
        self._waiting.discard(node)

    def _header(self, node: str, masked: pb.Masked) -> None:
        if self.phase is not P.SUMMING:
            return
        self.plan.check_size(node, masked.bytes)
        if node not in self.roster:
            raise PeerError(node, "is not in this attempt's roster")
        if self.plan.secure:
            self._server.header(bytes.fromhex(node), masked.header)
        else:
            plain.check(self.plan.cohort[node].member, self.ctx, masked.header)
        if self._headers.setdefault(node, masked.header) != masked.header:
            raise PeerError(node, "sent a second vector for one round")
        self.opened().expect(node, masked.header.y_hash)

    def _fold(self, node: str, digest: bytes) -> None:
        """Check a whole vector and add it to the sum, once."""
        intake = self.opened()
        if node in intake.folded:
            return
        if self.plan.secure:
            self._server.delivered(bytes.fromhex(node), digest)
        elif digest != self._headers[node].y_hash:
            raise PeerError(node, "the update does not hash to what was signed")
        else:
            intake.check(node)
        intake.fold(node)
        self.answers.whole(node, self._now)
        self._waiting.discard(node)

    # -- going on ---------------------------------------------------------------------------

    @property
    def ctx(self) -> bytes:
        """ctx0 until the roster is frozen, ctx after; ctx0 throughout a plain round."""
        return self._server.ctx or self._server.ctx0

    @property
    def contexts(self) -> tuple[bytes, bytes]:
        """What this attempt's messages are bound to: ctx0, and ctx once there is one."""
        return self._server.ctx0, self.ctx

    def _may_go_on(self, now: float) -> bool:
        if self.clock.over(now) or not self._waiting:
            return True
        if self.phase is P.INVITING:
            return len(self._ready) >= self.plan.needed
        if self.phase is P.VOTING:
            return self._server.has_quorum
        if self.phase is P.UNMASKING:
            return self._server.solvable
        numbers = self._server.numbers  # so many may be gone that waiting cannot help
        return numbers is not None and len(self._gone & set(self.roster)) > numbers.d

    def _go_on(self, now: float) -> None:
        if self.phase is P.INVITING:
            self._freeze(now)
        elif self.phase is P.SHARING:
            self._send("inbox", self._server.end_shares())
            self._open()
            self._move(E.SHARED, now)
        elif self.phase is P.SUMMING and self.plan.secure:
            survivors = self._server.end_uploads()
            self.survivors = tuple(i.hex() for i in self._server.ids(self._server.u))
            self._keep(self.plan, self._server, self.opened())
            self._send("survivors", survivors)
            self._move(E.UPLOADED, now)
        elif self.phase is P.SUMMING:
            self._end_plain(now)
        elif self.phase is P.VOTING:
            self._send("votes", self._server.quorum())
            self._move(E.QUORUM, now)
        else:
            self._unmask(now)

    def _freeze(self, now: float) -> None:
        """Freeze the roster with those who are ready; the others are let go."""
        n, params = len(self._ready), self.plan.params
        if n < (least := params.min_members):
            raise TooFewMembers(f"{n} members are ready, at least {least} are needed")
        rosters = self._server.freeze() if self.plan.secure else {}
        self.roster = tuple(self._ready)
        self.codec = Codec(n, params.value_range, params.weight_cap)
        for node in self.roster:
            # Popped: a first roster carries every certificate, and there are n of them.
            body = rosters.pop(bytes.fromhex(node), pb.Roster(members=n))
            if self.plan.secure:
                body.certificates.extend(self.plan.missing(node, self.roster, self._knows))
            self._post(node, pb.ToClient(ctx=self._server.ctx0, roster=body))
        slow = set(self.plan.cohort) - set(self.roster) - self._gone
        self.answers.frozen(slow, now)
        for node in slow:
            self._post(node, self._closing(node))
        if self.plan.secure:
            self._move(E.FROZEN, now)
        else:
            self._open()
            self._move(E.FROZEN_PLAIN, now)

    def _end_plain(self, now: float) -> None:
        least, folded = self.plan.params.min_survivors, self.opened().folded
        if len(folded) < least:
            raise TooFewMembers(f"{len(folded)} updates came, at least {least} are needed")
        self.survivors = tuple(node for node in self.roster if node in folded)
        self._read_sum()
        self._move(E.SUMMED_PLAIN, now)

    def _unmask(self, now: float) -> None:
        streams: list[tuple[bytearray, int]] = []
        try:
            streams = self._server.finish()
            self.opened().unmask(streams)
        finally:
            wipe(*(key for key, _ in streams))
            for member, what in self._server.faults:
                self._note("bad share", member.hex(), what)
        self._read_sum()
        self._move(E.OPENED, now)

    def _read_sum(self) -> None:
        """Apply the void rules to the opened sum and keep what it says."""
        intake, layout = self.opened(), self.plan.layout
        if self.codec is None or sorted(intake.folded) != sorted(self.survivors):
            raise VoidRound("the core folded others than the survivors")
        self.sums = intake.read(layout, len(self.survivors), self.codec)

    def _open(self) -> None:
        if self.codec is None:
            raise TooFewMembers("no roster is frozen")
        plan = replace(self.plan, budget=self.clock.latest - self._now)
        self._intake = self._open_intake(self.ctx, plan, self.codec)

    def opened(self) -> Intake:
        """Return where this attempt's vectors are."""
        if self._intake is None:
            raise VoidRound("no sum was opened")
        return self._intake

    # -- helpers ----------------------------------------------------------------------------

    def _send(self, name: str, bodies: dict[bytes, Any]) -> None:
        """Send every member its body and let go of it: together they are n * k items."""
        for member in list(bodies):
            message = pb.ToClient(ctx=self.ctx, **{name: bodies.pop(member)})
            if member.hex() not in self._gone:
                self._post(member.hex(), message)

    def _leave(self, node: str) -> None:
        self._gone.add(node)
        self._waiting.discard(node)
        if self.phase is P.INVITING and node in self._ready:  # one less that counts as ready
            self._ready.remove(node)
            self._server.drop(bytes.fromhex(node))
        if self._intake is not None:
            self._intake.discard(node)

    def _move(self, event: RoundEvent, now: float) -> None:
        name = self.phase.value
        for node in sorted(self._waiting) if self.clock.over(now) else ():  # else not needed
            self._note("late", node, name)
        self.phase = moved(self.phase, event)
        self.clock.enter(self.phase.value, now)
        u2 = [member.hex() for member in self._server.ids(self._server.u2)]
        self._waiting = set(self.survivors or u2 or self.roster) - self._gone

    def _end(self) -> None:
        """Close the attempt for everybody who is still in it, and give the sum back."""
        for node in (node for node in self.plan.cohort if node not in self._gone):
            self._post(node, self._closing(node))
        if self._intake is not None:
            self._intake.close()
        self._intake, self.sums = None, None

    def _closing(self, node: str) -> pb.ToClient:
        ctx = self.ctx if node in self.roster else self._server.ctx0
        return pb.ToClient(ctx=ctx, close=pb.Close(reason=pb.REASON_ATTEMPT_CLOSED))
