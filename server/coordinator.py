"""The coordinator: rounds one after another, each an `Attempt` or several, until the run ends.

    joined nodes -> cohort -> Start -> Attempt -> sum -> server step -> model on disk
                 -> ledger entry -> next round          (an entry is what finishes a round)

Transport, clock and disk come from outside: messages go out through `post`, the time comes
with every call. The same object serves gRPC sessions and the in-process link.

A failed attempt changes nothing; it is recorded with its cause, and tried again while
`attempts` allows. After votes were cast on a model, only an exact repeat of the voted set,
or members that have not voted, may be asked again (docs/protocol.md, section 7).

Out of the history of a run the coordinator goes on where an earlier one was lost, and finishes
a round whose survivors were fixed if it can.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from . import outcome
from .attempt import Attempt
from .books import Books
from .embedded import Embedded
from .firewall import Firewall
from .gate import NEW, Gate
from .history import History
from .invitation import start_of
from .keeping import Keeping
from .model_in_force import ModelInForce
from .planning import Place, Planner
from .reopened import Reopened
from .roll import Roll
from ..protocol import messages_pb2 as pb
from ..protocol import wire
from ..protocol.errors import PeerError, RoundFailed, TooFewMembers, VoidRound
from ..protocol.frames import subject
from ..protocol.manifest import Manifest
from ..protocol.round_table import OVER, RoundEvent, RoundPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .invitation import Plan
    from .open_round import OpenRound
    from .settings import RunSettings
    from .surroundings import Surroundings

A = TypeVar("A", bound=Attempt)
_REMEMBERED = 16  # contexts of past attempts, ctx0 and ctx of eight: late messages are passed over


class Coordinator:
    """One run."""

    def __init__(
        self,
        settings: RunSettings,
        model: Mapping[str, NDArray[Any]],
        metrics: Mapping[str, Mapping[str, int]],
        around: Surroundings,
        history: History | None = None,
    ) -> None:
        """Write round 0, the initial model, of a new run; nobody is invited before `begin`.

        Args:
            settings: The run.
            model: Named arrays of the initial model, or of the one in force.
            metrics: Declared metrics of the phases `train` and `evaluate`, by name with their
                fractional bits.
            around: Trust, disk, transport and clock.
            history: Where the run stands that is resumed; None for a new one.
        """
        past = history or History()
        self.settings = settings
        self.manifest = Manifest.of(model)
        self.failure: RoundFailed | None = None
        self.done = False
        self.round = past.round
        self.bytes_up = self.bytes_down = 0
        self._around = around
        self._planner = Planner(settings, around, self.manifest, metrics, past)
        self._books = Books(around, self._planner.deadlines)
        cap = settings.params.weight_cap
        firewall = Firewall(self.manifest, max_norm=settings.max_norm, weight_cap=cap)
        self._core = around.core or Embedded(around.world, firewall)
        self._roll = Roll(around.verifier)
        self._tries, self._gate = 0, Gate(around, self.note)
        self._keeping = Keeping(around.directory, past.best, around.tests)
        self._past: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._phase = "evaluate" if past.evaluated else "train"
        self._attempt: Attempt | None = None
        self._force = ModelInForce(
            self._core, around.directory, self.manifest, settings.rule, self.manifest.pack(model),
            self.note, new=history is None,
        )  # fmt: skip

    # -- nodes ------------------------------------------------------------------------------

    def join(self, der: bytes, now: float, version: str = "") -> str:
        """Admit the bearer of a member's certificate; the newest session of a node wins.

        `version` is what the device says that it is, for counting.

        Raises:
            BadCertificate: It is no member of this federation.
        """
        node, again = self._roll.enter(der, self._around.wall(), version)
        self._planner.deadlines.heard(node)
        if self._attempt is not None:
            self._attempt.entered(node, now, again=again)
            self._conclude(now)
        return node

    def leave(self, node: str, now: float) -> None:
        """Note that a node's session ended."""
        self._roll.leave(node)
        if self._attempt is not None:
            self._attempt.lost(node, now)
            self._conclude(now)

    def resume_session(self, der: bytes) -> str:
        """Take a node's broken connection up again, the attempt untouched; as `Roll.resumed`."""
        return self._roll.resumed(der, self._around.wall())

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes with a session."""
        return tuple(self._roll)

    @property
    def can_go_on(self) -> bool:
        """Whether those who are here may be asked: enough, and none is missed of who voted."""
        nodes, exact = self._planner.voters.allowed(self.digest, self.nodes)
        return exact or len(nodes) >= self.settings.params.min_members

    # -- what comes in ----------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start the next round, or finish one that was open, with the nodes that have joined."""
        kept = self._around.open_rounds.kept() if self._around.open_rounds is not None else None
        if kept is None or not self._reopen(kept, now):
            self._next_round(now)

    def message(self, node: str, data: bytes, now: float) -> None:
        """Take a node's message; bytes that are none end its part in the attempt, by name."""
        self.bytes_up += len(data)
        self._planner.deadlines.heard(node)
        if (attempt := self._attempt) is None:
            return
        try:
            message = wire.parse_to_server(data, node)
        except PeerError as error:
            attempt.expel(node, str(error))
            attempt.tick(now)
        else:
            if message.ctx not in self._past:  # else late, of an attempt that is over
                attempt.message(node, message, now)
        self._conclude(now)

    def frame(self, node: str, frame: bytes | memoryview, now: float) -> None:
        """Take one frame of a node's vector."""
        self.bytes_up += len(frame)
        if self._attempt is not None and subject(frame) not in self._past:
            self._attempt.frame(node, frame, now)
            self._conclude(now)

    def whole(self, node: str, digest: bytes, now: float) -> None:
        """Note that a core elsewhere holds a node's whole vector, with this SHA-256."""
        if self._attempt is not None:
            self._attempt.whole(node, digest, now)
            self._conclude(now)

    def expel(self, node: str, why: str, now: float) -> None:
        """Drop a node from the attempt in progress, by name."""
        if self._attempt is not None:
            self._attempt.expel(node, why)
            self.tick(now)

    def tick(self, now: float) -> None:
        """Let the clock move the attempt on."""
        if self._attempt is not None:
            self._attempt.tick(now)
            self._conclude(now)
        elif self._gate.holds:
            try:
                before = self._gate.opens(self.round, self._roll, now)
            except RoundFailed as error:
                self._give_up(str(error), RoundFailed)
            else:
                if before:
                    self._invite(now, before)

    def tested(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take what the server's own test found of a round's model, after the round."""
        self._keeping.tested(number, metrics)
        self._books.tested(number, metrics)

    def wants(self, node: str) -> int | None:
        """Return the offset from which the node's vector is wanted; None for not now."""
        return self._attempt.wants(node) if self._attempt is not None else None

    @property
    def attempt(self) -> Attempt | None:
        """The attempt in progress."""
        return self._attempt

    # -- rounds -----------------------------------------------------------------------------

    def _next_round(self, now: float) -> None:
        """Go to the next training round, the evaluation of the last model, or the end."""
        self._tries = 0
        if self._advance():
            self._gate.hold()
            self.tick(now)
        else:
            self._finish()

    def _advance(self) -> bool:
        """Move on to what is next; say whether there is something."""
        if self.round < self.settings.rounds:
            self.round += 1
            self._phase = "train"
        elif self._phase == "train" and self.settings.final_evaluation:
            self._phase = "evaluate"
        else:
            return False
        return True

    @property
    def _place(self) -> Place:
        return Place(self.round, self._phase, self.digest)

    def _invite(self, now: float, before: str = NEW) -> None:
        """Open an attempt: choose a cohort and send it the terms; `before` says what failed."""
        self._tries += 1
        try:
            plan = self._planner.plan(self._place, self._tries - 1, self._roll, self.note)
        except TooFewMembers as error:
            self._give_up(f"{before}; {error}")
            return
        self._attempt = self._opened(Attempt, plan, now)
        start = start_of(plan.terms, self.manifest.total_bytes, self.manifest.to_json())
        for node in plan.cohort:
            self._post(node, pb.ToClient(start=start))
        self._attempt.tick(now)
        self._conclude(now)

    def _opened(self, kind: type[A], plan: Plan, now: float) -> A:
        return kind(
            plan,
            intake=self._core.intake,
            post=self._post,
            note=self.note,
            knows=self._roll.knows,
            keep=self._around.keep,
            now=now,
        )

    # -- a server that was lost -------------------------------------------------------------

    def _reopen(self, kept: OpenRound, now: float) -> bool:
        """Take up the attempt that an earlier process left open; say whether it could."""
        before = self.round, self._phase
        self._advance()
        if (self.round, self._phase) != (kept.round, kept.phase):
            self.round, self._phase = before  # its outcome is in the ledger, or its round is lost
            return False
        try:
            roster = [self._roll.judged(der, self._around.wall()) for der in kept.members]
            cohort = {joined.member.id.hex(): joined for joined in roster}
            plan = self._planner.numbered(self._place, kept.attempt, cohort, len(cohort))
            attempt = self._opened(Reopened, plan, now)
            attempt.take_up(kept, now)
        except (PeerError, RoundFailed) as error:
            self.note("not reopened", "", str(error))
            self._planner.voters.note(self.digest, kept.survivors)
            self.round, self._phase = before
            return False
        self._attempt = attempt
        self.note("reopened", "", "")
        attempt.tick(now)
        self._conclude(now)
        return True

    def abandon(self, cause: str) -> None:
        """Record that the attempt in progress ends with its core, unless it can be reopened."""
        attempt = self._attempt
        if attempt is None or attempt.phase in OVER or (attempt.plan.secure and attempt.survivors):
            return
        attempt.cause = cause
        self._record(attempt, "aborted", {})

    # -- the end of an attempt --------------------------------------------------------------

    def _conclude(self, now: float) -> None:
        """Commit a sum that is open, or record a failure and try again, or end the run."""
        if (attempt := self._attempt) is None:
            return
        if attempt.phase is RoundPhase.SUMMED:
            try:
                self._commit(attempt, now)
            except RoundFailed as error:
                attempt.fail(RoundEvent.UNUSABLE, str(error), now)
            else:
                self._leave_behind(attempt)
                self._next_round(now)
                return
        if attempt.phase in {RoundPhase.ABORTED, RoundPhase.VOID}:
            self._failed(attempt, now)

    def _leave_behind(self, attempt: Attempt) -> None:
        self._past.extend(attempt.contexts)
        if attempt.plan.secure:
            self._planner.voters.note(attempt.plan.terms.model, attempt.survivors)
        self._attempt = None

    def _commit(self, attempt: Attempt, now: float) -> None:
        """Step, publish, write, record: in this order; the record is what finishes the round."""
        if (sums := attempt.sums) is None or (codec := attempt.codec) is None:
            raise TooFewMembers("the attempt has no sum")
        record = outcome.recorded(sums, attempt.plan.layout, len(attempt.survivors))
        if self._phase == "train":
            stepped = self._force.step(attempt)
            if self._around.test is not None:
                tested = self._around.test(self.manifest.views(stepped.packed))
                record |= {f"test.{name}": value for name, value in tested.items()}
            self._force.move_on(self.round, stepped, attempt.beside.extra)
        for line in outcome.warnings(record, codec, exact=attempt.beside.exact):
            self.note("warning", "", line)
        attempt.committed(now)
        self._record(attempt, "finished", record)
        if self._phase == "train":
            self._keeping.finished(self.round, self.digest, record, attempt.beside.held)

    def _failed(self, attempt: Attempt, now: float) -> None:
        void = attempt.phase is RoundPhase.VOID
        self._record(attempt, "void" if void else "aborted", {})
        if attempt.culprit:
            self.note("void", attempt.culprit, attempt.cause)
            self._planner.standing.void(attempt.culprit)
        self._leave_behind(attempt)
        said = f"{attempt.phase}: {attempt.cause}"
        if self._tries < self.settings.attempts:
            self._gate.hold(said)
            self.tick(now)
        else:
            self._give_up(said, VoidRound if void else TooFewMembers)

    def _give_up(self, said: str, failed: type[RoundFailed] = TooFewMembers) -> None:
        """End the run with the cause of its last round."""
        latest = f"the model is that of round {self._around.directory.latest()}"
        self.failure = failed(f"round {self.round} {said}; {latest}")
        self._finish()

    def _record(self, attempt: Attempt, result: str, metrics: Mapping[str, float]) -> None:
        """Write the attempt's entry; for a round that finished, this is what finishes it."""
        count = self._around.traffic
        traffic = count() if count is not None else (self.bytes_up, self.bytes_down)
        record = outcome.entry(attempt, result, metrics, self.digest, traffic)
        self.bytes_up = self.bytes_down = 0
        self._books.record(attempt, record, self._roll)

    def _finish(self) -> None:
        self.done = True
        for node in self._roll:
            self._post(node, pb.ToClient(goodbye=pb.Goodbye()))

    # -- helpers ----------------------------------------------------------------------------

    @property
    def model(self) -> Mapping[str, NDArray[Any]]:
        """The model in force, its arrays by name, read-only."""
        return self._force.arrays

    @property
    def published(self) -> memoryview:
        """Its bytes, in the layout of its manifest."""
        return self._force.packed

    @property
    def digest(self) -> bytes:
        """Its digest."""
        return self._force.digest

    def _post(self, node: str, message: pb.ToClient) -> None:
        data = message.SerializeToString()
        self.bytes_down += len(data)
        self._around.post(node, data)

    def note(self, kind: str, node: str, code: str) -> None:
        """Record an event; `node` may be empty."""
        attempt = self._attempt.plan.terms.attempt if self._attempt is not None else 0
        self._books.note((self.round, attempt), kind, node, code)
