"""The coordinator: rounds one after another, each an `Attempt` or several, until the run ends.

    joined nodes -> cohort -> Start -> Attempt -> sum -> server step -> model on disk
                 -> ledger entry -> next round          (an entry is what finishes a round)

Transport, clock and disk come from outside: messages go out through `post`, the time comes
with every call. The same object serves gRPC sessions and the in-process link.

A failed attempt changes nothing; it is recorded with its cause, and tried again while
`attempts` allows. After votes were cast on a model, only an exact repeat of the voted set,
or members that have not voted, may be asked again (docs/protocol.md, section 7).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from . import outcome
from .attempt import Attempt
from .cohort import Standing, Voters, select
from .core.world import World
from .deadlines import Deadlines
from .firewall import Firewall
from .ingest import here
from .invitation import Joined, Plan, start_of
from ..protocol import messages_pb2 as pb
from ..protocol import wire
from ..protocol.context import Terms
from ..protocol.digest import model_digest
from ..protocol.errors import PeerError, RoundFailed, TooFewMembers, VoidRound
from ..protocol.frames import subject
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..protocol.plan import VERSION
from ..protocol.round_table import RoundEvent, RoundPhase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .settings import RunSettings
    from .surroundings import Surroundings
    from ..strategies.fedavg import FedAvg


_REMEMBERED = 16  # contexts of past attempts, ctx0 and ctx of eight: late messages are passed over


class Coordinator:
    """One run."""

    def __init__(
        self,
        settings: RunSettings,
        model: Mapping[str, NDArray[Any]],
        metrics: Mapping[str, Mapping[str, int]],
        rule: FedAvg,
        around: Surroundings,
    ) -> None:
        """Write round 0, the initial model; nobody is invited before `begin`.

        Args:
            settings: The run.
            model: Named arrays of the initial model.
            metrics: Declared metrics of the phases `train` and `evaluate`, by name with their
                fractional bits.
            rule: The server step.
            around: Trust, disk, transport and clock.
        """
        self.settings = settings
        self.manifest = Manifest.of(model)
        self.failure: RoundFailed | None = None
        self.done, self.round = False, 0
        self.bytes_up = self.bytes_down = 0
        self._rule, self._around, self._deadlines = rule, around, Deadlines(settings)
        self._layouts = {p: MessageLayout(self.manifest, m, p) for p, m in metrics.items()}
        self._layout_digests = {p: self.manifest.layout_digest(m) for p, m in metrics.items()}
        cap = settings.params.weight_cap
        firewall = Firewall(self.manifest, max_norm=settings.max_norm, weight_cap=cap)
        self._intake = around.intake or here(World(around.slots), firewall)
        self._nodes: dict[str, Joined] = {}
        self._prints, self._sent = dict[bytes, int](), dict[str, int]()
        self._standing, self._voters = Standing(), Voters()
        self._attempts, self._tries, self._held = dict[bytes, int](), 0, False
        self._past: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._phase = "train"
        self._attempt: Attempt | None = None
        self._best: tuple[tuple[float, float], int] | None = None
        self._publish(self.manifest.pack(model))

    # -- nodes ------------------------------------------------------------------------------

    def join(self, der: bytes, now: float) -> str:
        """Admit the bearer of a member's certificate; the newest session of a node wins.

        Raises:
            BadCertificate: It is no member of this federation.
        """
        member = self._around.verifier.member(der, self._around.wall())
        node = member.id.hex()
        again = node in self._nodes
        self._nodes[node] = Joined(member, der)
        self._sent[node] = 0
        if again:  # its earlier session is gone, and what that had of the attempt with it
            self._lose(node, now)
        return node

    def leave(self, node: str, now: float) -> None:
        """Note that a node's session ended."""
        self._nodes.pop(node, None)
        self._lose(node, now)

    def _lose(self, node: str, now: float) -> None:
        if self._attempt is not None:
            self._attempt.lost(node, now)
            self._conclude(now)

    def resume_session(self, der: bytes) -> str:
        """Take a node's broken connection up again, the attempt untouched.

        Raises:
            BadCertificate: It is no member, or not one of this run's sessions.
        """
        member = self._around.verifier.member(der, self._around.wall())
        if member.id.hex() not in self._nodes:
            raise PeerError(member.id.hex(), "has no session to resume; join anew")
        return member.id.hex()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes with a session."""
        return tuple(self._nodes)

    # -- what comes in ----------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start the first round with the nodes that have joined."""
        self._next_round(now)

    def message(self, node: str, data: bytes, now: float) -> None:
        """Take a node's message; bytes that are none end its part in the attempt, by name."""
        self.bytes_up += len(data)
        attempt = self._attempt
        if attempt is None:
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
        elif self._held and self._around.ready(self.round, self.nodes, now):
            self._held = False
            self._invite(now)

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
        if self.round < self.settings.rounds:
            self.round += 1
            self._phase = "train"
        elif self._phase == "train" and self.settings.final_evaluation:
            self._phase = "evaluate"
        else:
            self._finish()
            return
        self._held = True
        self.tick(now)

    def _invite(self, now: float, before: str = "aborted") -> None:
        """Open an attempt: choose a cohort and send it the terms; `before` says what failed."""
        self._tries += 1
        number = self._attempts.get(self.digest, -1) + 1
        try:
            cohort, needed = self._cohort(number)
        except TooFewMembers as error:
            self._give_up(f"{before}; {error}")
            return
        self._attempts[self.digest] = number
        terms = self._terms(number)
        plan = Plan(
            terms=terms,
            layout=self._layouts[self._phase],
            cohort=cohort,
            needed=needed,
            times=self._deadlines.times(self._phase),
            max_norm=self.settings.max_norm,
        )
        self._attempt = Attempt(
            plan,
            intake=self._intake,
            post=self._post,
            note=self.note,
            knows=self._knows,
            now=now,
        )
        start = start_of(terms, self.manifest.total_bytes, self.manifest.to_json())
        for node in cohort:
            self._post(node, pb.ToClient(start=start))
        self._attempt.tick(now)
        self._conclude(now)

    def _cohort(self, number: int) -> tuple[dict[str, Joined], int]:
        """Return whom this attempt asks, and how many of them freeze its roster.

        Raises:
            TooFewMembers: Too few have not voted on this model: `would difference`.
        """
        excluded = self._standing.excluded | self._deadlines.ending(
            self._nodes, self._around.wall(), self.note
        )
        here = [n for n in self._nodes if n not in excluded]
        nodes, exact = self._voters.allowed(self.digest, here)
        if exact:
            return {n: self._nodes[n] for n in nodes}, len(nodes)
        least = self.settings.params.min_members
        if len(nodes) < least and len(nodes) < len(here):
            raise TooFewMembers(
                f"would difference: {len(here) - len(nodes)} of {len(here)} members here voted "
                f"on this model and are not the whole set; {len(nodes)} did not, {least} are needed"
            )
        wanted = self.settings.cohort or len(nodes)
        asked = self._deadlines.asked(wanted)
        chosen = select(nodes, asked, seed=self.settings.seed, round=self.round, attempt=number)
        return {n: self._nodes[n] for n in chosen}, min(wanted, len(chosen))

    def _terms(self, attempt: int) -> Terms:
        config: dict[str, object] = {**self.settings.config, "server-round": self.round}
        return Terms(
            protocol=VERSION,
            scheme=self.settings.scheme,
            ca=self._around.ca,
            app=self._around.app,
            run=self.settings.run,
            round=self.round,
            phase=self._phase,
            attempt=attempt,
            model=self.digest,
            config=config,
            params=self.settings.params.table(),
            layout=self._layout_digests[self._phase],
        )

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
            self._voters.note(attempt.plan.terms.model, attempt.survivors)
        self._attempt = None

    def _commit(self, attempt: Attempt, now: float) -> None:
        """Step, write, record: in this order; the record is what finishes the round."""
        if (sums := attempt.sums) is None or (codec := attempt.codec) is None:
            raise TooFewMembers("the attempt has no sum")
        record = outcome.recorded(sums, attempt.plan.layout, len(attempt.survivors))
        if self._phase == "train":
            mean = attempt.plan.layout.mean(sums, codec, in_place=True)
            packed = bytearray(self.manifest.total_bytes)
            stepped = self._rule.step(self.model, mean, self.manifest.views(packed))
            if self._around.test is not None:
                tested = self._around.test(stepped)
                record |= {f"test.{name}": value for name, value in tested.items()}
            self._publish(packed)
        for line in outcome.warnings(record, codec):
            self.note("warning", "", line)
        attempt.committed(now)
        self._record(attempt, "finished", record)
        if self._phase == "train":
            self._prune(record)

    def _failed(self, attempt: Attempt, now: float) -> None:
        void = attempt.phase is RoundPhase.VOID
        self._record(attempt, "void" if void else "aborted", {})
        if attempt.culprit:
            self.note("void", attempt.culprit, attempt.cause)
            self._standing.void(attempt.culprit)
        self._leave_behind(attempt)
        said = f"{attempt.phase}: {attempt.cause}"
        if self._tries < self.settings.attempts:
            self._invite(now, said)
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
        self._around.directory.ledger.commit_round(record)
        self._deadlines.record(record)
        self._around.observe(record)

    def _prune(self, record: Mapping[str, float]) -> None:
        """Keep the best round beside the newest ones."""
        score = outcome.score(record)
        if self._best is None or score > self._best[0]:
            self._best = (score, self.round)
        self._around.directory.prune(self._best[1])

    def _finish(self) -> None:
        self.done = True
        for node in self._nodes:
            self._post(node, pb.ToClient(goodbye=pb.Goodbye()))

    # -- helpers ----------------------------------------------------------------------------

    def _publish(self, packed: bytearray) -> None:
        """Write the model of this round durably, then make it the one that members fetch.

        The named arrays are views of the published bytes: one copy of the model in all.
        """
        digest, arrays = model_digest(packed), self.manifest.views(packed)
        self._around.directory.write_round(self.round, arrays, self.manifest, digest, {})
        self.model, self.published, self.digest = arrays, packed, digest
        self._around.publish(digest, packed)

    def _post(self, node: str, message: pb.ToClient) -> None:
        data = message.SerializeToString()
        self.bytes_down += len(data)
        self._around.post(node, data)

    def note(self, kind: str, node: str, code: str) -> None:
        """Record an event; `node` may be empty."""
        attempt = self._attempt.plan.terms.attempt if self._attempt is not None else 0
        at = self._around.wall().isoformat(timespec="milliseconds")
        self._deadlines.event(kind, code)
        ledger = self._around.directory.ledger
        ledger.event(kind, round=self.round, attempt=attempt, node=node, code=code, at=at)

    def _knows(self, node: str, fingerprint: bytes) -> bool:
        """Say whether the node has this certificate, and note that it will: one bit a pair."""
        bit = 1 << self._prints.setdefault(fingerprint, len(self._prints))
        sent = self._sent.get(node, 0)
        self._sent[node] = sent | bit
        return bool(sent & bit)
