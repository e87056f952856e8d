"""A device's side of a session: one attempt after another, from `Start` to `Close`.

    Start -> policy -> model (fetched by digest, hashed again) -> ctx0 -> local training
          -> Keys -> Roster -> Shares -> Inbox -> Masked and the vector -> Survivors -> Vote
          -> Votes -> Release                                  (scheme A, protocol/member.py)
          -> Ready -> Roster -> Masked and the vector          (scheme `plain`, masks off)

Bytes come in, actions come out: what is sent, uploaded or fetched is the caller's work, over
gRPC or in one process. The one way out for trips 1, 3, 4 and 5 is `_emit`: the journal's
record is written and fsynced there before the bytes exist for anybody else.

A refusal travels as a code, for `policy` with the key's name; its words, with numbers and
cause, go to the device's own log. docs/protocol.md, sections 4 and 5.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from .history_file import CLOSED, INTERRUPTED, LEFT_OUT
from .journal import voted_for
from .limits import own_limits
from .others import Others
from .recorder import Record
from ..protocol import messages_pb2 as pb
from ..protocol import plain, wire
from ..protocol.canonical import settings_from_pb
from ..protocol.context import ENTRY_BYTES, Terms
from ..protocol.digest import model_digest
from ..protocol.errors import PeerError, Refused, SettingsError, StateError
from ..protocol.frames import Assembly, Kind
from ..protocol.member import MemberSide
from ..protocol.plan import VERSION
from ..protocol.scheme_a import State
from ..protocol.standpoint import Standpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from .journal import Journal
    from .limits import Limits
    from .policy import Policy
    from .update import Update
    from ..protocol.entropy import Entropy
    from ..protocol.membership import Membership
    from ..protocol.standpoint import Identity, Step

NO_CTX = bytes(32)
"""The ctx of a refusal that came before ctx0 could be computed."""


class Send(NamedTuple):
    """Send these bytes to the gateway."""

    data: bytes


class Upload(NamedTuple):
    """Upload the whole buffer in frames of this subject; the buffer stays as it is."""

    subject: bytes
    buffer: bytearray


class Fetch(NamedTuple):
    """Fetch the model with this digest and hand its frames to `Session.frame`."""

    digest: bytes
    total: int


Action = Send | Upload | Fetch


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a session stands on: the device's own things, none of them from the server."""

    identity: Identity
    policy: Policy
    membership: Membership
    ca: bytes
    """SHA-256 of the pinned root's DER."""
    app: bytes = field(default=bytes(32))
    """SHA-256 of the app bundle; zeros outside Flower."""
    journal: Journal
    update: Update
    clock: Callable[[], datetime]
    """Wall time, for certificates; durations are not measured with it."""
    passed: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    entropy: Entropy = field(repr=False)
    log: Callable[[str], None]
    """The device's own console or log file."""
    limits: Limits | None = None
    """The policy's operating limits, with the device's account; None begins an account here."""


class Session:
    """One node's session in one process; the secrets of its attempt live here."""

    def __init__(self, device: Device, record: Record | None = None) -> None:
        """Start with no attempt; what happens is told to `record`."""
        self._device, self._record = device, record or Record()
        self._limits = device.limits or own_limits(device)
        self._unfit = ""
        self.halted = ""  # why the owner breaks off what is open; set from another thread
        self._others = Others(device.membership, device.clock)
        self._attempts: dict[tuple[str, bytes], int] = {}
        self._model: bytearray = bytearray()
        self._incoming: Assembly | None = None
        self._start: pb.Start | None = None
        self._terms: Terms | None = None
        self._member: MemberSide | None = None
        self._ctx = NO_CTX
        self._vector: bytearray = bytearray()

    @property
    def start(self) -> pb.Start | None:
        """The terms of the open attempt, one object for as long as it is open."""
        return self._start

    # -- what comes in ----------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Action]:
        """Take one message of the gateway and return what to do.

        Raises:
            Malformed: The bytes are no message; the connection is of no use.
        """
        message = wire.parse_to_client(data)
        return self._guarded(lambda: self._dispatch(message))

    def frame(self, frame: bytes) -> list[Action]:
        """Take one frame of the model that was asked for by `Fetch`."""
        if self._incoming is None:
            raise PeerError("gateway", "sent a model that was not asked for")
        if not self._incoming.accept(frame):
            return []
        self._incoming = None
        return self._guarded(self._loaded)

    def trust(self, trust: pb.Trust) -> None:
        """Take over the issuing CAs and the member list; a list that is none changes nothing."""
        try:
            self._others.trust(trust)
        except (SettingsError, StateError) as error:  # as with the journal: who cannot remember
            self._unfit = str(error)
            self._device.log(self._unfit)
        except Refused as error:
            self._device.log(f"not taken over: {error}")

    def delivered(self) -> None:
        """Note that every frame of the upload has left this device."""
        if self._member is not None and self._member.state is State.MASKED:
            self._member.delivered()
        elif self._terms is not None and self._terms.scheme == plain.NAME:
            self._record.contributed()

    def close(self) -> None:
        """End the session: the attempt is closed and its secrets are wiped."""
        self._end_attempt(INTERRUPTED)

    def leave(self) -> list[Action]:
        """Refuse what is open, as `halted` says: this device is lost at once, not waited for."""
        return self._guarded(self._halt) if self._start is not None else []

    # -- the steps --------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], list[Action]]) -> list[Action]:
        """Run one step; a refusal ends the attempt and becomes a code.

        Whatever else is raised ends the attempt too: no step can follow one that is half done.
        """
        try:
            return work()
        except Refused as error:
            refused = error
        except StateError as error:
            self._unfit = str(error)
            refused = Refused(pb.REASON_JOURNAL, str(error))
        except SettingsError as error:
            refused = Refused(pb.REASON_POLICY, str(error), error.where)
        except BaseException:
            self._end_attempt(INTERRUPTED)
            raise
        refused = Refused(pb.REASON_PAUSED, self.halted) if self.halted else refused
        self._device.log(f"refused: {refused}")
        self._record.refused(refused)
        ctx, start = self._ctx, self._start or pb.Start()
        self._end_attempt()
        key = refused.key if refused.reason in {pb.REASON_POLICY, pb.REASON_LIMITS} else ""
        body = pb.Refusal(
            reason=refused.reason, key=key[:64], round=start.round, attempt=start.attempt
        )
        return [Send(pb.ToServer(ctx=ctx, refusal=body).SerializeToString())]

    def _dispatch(self, message: pb.ToClient) -> list[Action]:
        body = message.WhichOneof("body")
        if body == "start":
            return self._begin(message.start)
        if body in {"goodbye", "close"}:
            # While the model is on its way ctx0 is not known yet: messages come in order, so a
            # `Close` is of this attempt. One of another context is of an attempt that ended here.
            if body == "goodbye" or message.ctx == self._ctx or self._incoming is not None:
                self._end_attempt()
            if body == "goodbye":
                self._others.forget()
            return []
        if message.ctx != self._ctx:
            raise Refused(
                pb.REASON_CTX_DIFFERS, f"`{body}` is of another context than this device's"
            )
        if body == "roster":
            return self._roster(message.roster)
        return self._secure(message)

    def _secure(self, message: pb.ToClient) -> list[Action]:
        """Take one of the trips that only scheme A has."""
        if self._member is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "a message of scheme A outside such an attempt")
        if message.HasField("inbox"):
            return self._inbox(self._member, message.inbox)
        if message.HasField("survivors"):
            return self._survivors(self._member, message.survivors)
        released: list[Action] = [self._emit(self._member.votes(message.votes))]
        self._record.contributed()
        return released

    def _begin(self, start: pb.Start) -> list[Action]:
        """Check the terms of a new attempt by the policy, before anything is stored."""
        self._end_attempt()
        self._start = start
        self._record.begin(start)
        if self._unfit:  # in a plain round neither: what cannot remember does not take part
            raise Refused(pb.REASON_JOURNAL, f"{self._unfit}; restart this node when it is mended")
        device, rounds = self._device, self._limits.rounds()
        params = settings_from_pb(start.params)
        device.policy.check_start(
            start.scheme, start.protocol, params, start.model_bytes, rounds, device.app
        )
        device.policy.check_config(settings_from_pb(start.config))
        self._limits.check(start.model_bytes)
        if start.scheme != plain.NAME:
            self._others.listed()
        if start.protocol != VERSION:
            raise Refused(pb.REASON_PROTOCOL_TOO_OLD, f"this device speaks version {VERSION}")
        key = (start.run, start.model_digest)
        if start.attempt <= self._attempts.get(key, -1):
            raise Refused(pb.REASON_ATTEMPT_CLOSED, f"attempt {start.attempt} was joined before")
        device.update.agree(start.manifest)
        own = device.update.manifest.total_bytes
        if start.model_bytes != own:
            text = f"a model of {start.model_bytes} bytes, this app's has {own}"
            raise Refused(pb.REASON_CTX_DIFFERS, text)
        self._limits.begin(start.model_bytes)
        self._attempts[key] = start.attempt
        if (
            len(self._model) == start.model_bytes
            and model_digest(self._model) == start.model_digest
        ):
            return self._loaded()
        try:
            self._model = bytearray(start.model_bytes)
        except MemoryError as error:
            text = f"no memory for a model of {start.model_bytes} bytes"
            raise Refused(pb.REASON_LIMITS, text, "limits.model_bytes") from error
        self._incoming = Assembly(
            Kind.MODEL, start.model_digest, start.model_bytes, "gateway", self._model
        )
        if not start.model_bytes:
            return self._loaded()
        return [Fetch(start.model_digest, start.model_bytes)]

    def _loaded(self) -> list[Action]:
        """Compute ctx0 from the model's own bytes, train, and say so (trip 1 up)."""
        start = self._start
        if start is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "no attempt is open")
        self._terms = self._agree(start)
        self._ctx = self._terms.ctx0()
        if self._terms.model != start.model_digest:
            raise Refused(pb.REASON_CTX_DIFFERS, "the model does not hash to what was announced")
        voted = voted_for(self._device.journal, start.run, self._terms.model)
        self._record.doing("computing")
        self._device.update.compute(self._model, self._terms)
        self._record.doing("exchanging")
        if start.scheme == plain.NAME:
            return [Send(pb.ToServer(ctx=self._ctx, ready=pb.Ready()).SerializeToString())]
        standpoint = Standpoint(
            floors=self._device.policy,
            resolve=self._others.resolve,
            entropy=self._device.entropy,
            voted=voted,
            previous=self._device.journal.history.last_vote,
        )
        self._member = MemberSide(self._device.identity, self._terms, standpoint)
        return [self._emit(self._member.begin())]

    def _agree(self, start: pb.Start) -> Terms:
        phase = "train" if start.phase == pb.PHASE_TRAIN else "evaluate"
        config = settings_from_pb(start.config)
        return Terms(
            protocol=start.protocol,
            scheme=start.scheme,
            ca=self._device.ca,
            app=self._device.app,
            run=start.run,
            round=start.round,
            phase=phase,
            attempt=start.attempt,
            model=model_digest(self._model),
            config=config,
            params=settings_from_pb(start.params),
            layout=self._device.update.layout(phase, config).digest,
        )

    def _roster(self, roster: pb.Roster) -> list[Action]:
        terms = self._open_terms()
        if terms.scheme == plain.NAME:
            return self._plain(roster.members, terms)
        if self._member is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "no attempt of scheme A is open")
        self._others.listed()
        self._others.learn(roster.certificates)
        step = self._member.roster(roster)
        self._ctx = self._member.ctx
        self._record.cohort(len(roster.entries) // ENTRY_BYTES)
        return [self._emit(step)]

    def _plain(self, members: int, terms: Terms) -> list[Action]:
        """Encode through the same codec, with the masks off, and sign the hash."""
        self._record.cohort(members)
        self._vector = self._device.update.encode(members, terms)
        y_hash = sha256(self._vector).digest()
        header = plain.header(self._device.identity, self._ctx, y_hash)
        body = pb.Masked(header=header, bytes=len(self._vector))
        message = pb.ToServer(ctx=self._ctx, masked=body)
        return [Send(message.SerializeToString()), Upload(self._ctx, self._vector)]

    def _inbox(self, member: MemberSide, inbox: pb.Inbox) -> list[Action]:
        terms = self._open_terms()
        if member.numbers is None:
            raise Refused(pb.REASON_SHARES, "shares of others came before a roster")
        vector = self._device.update.encode(member.numbers.n, terms)
        try:
            step = member.inbox(inbox, vector, self._device.update.layout(terms.phase).split)
        finally:
            for fault in member.faults:
                self._device.log(fault)
        self._vector = vector
        return [self._emit(step), Upload(self._ctx, vector)]

    def _survivors(self, member: MemberSide, survivors: pb.Survivors) -> list[Action]:
        step = member.survivors(survivors)
        self._record.survivors(int.from_bytes(survivors.u, "little").bit_count())
        if step is None:
            self._device.log("not among the survivors of this attempt")
            self._end_attempt(LEFT_OUT)
            return []
        return [self._emit(step)]

    # -- helpers ----------------------------------------------------------------------------

    def _halt(self) -> list[Action]:
        raise Refused(pb.REASON_PAUSED, self.halted)

    def _emit(self, step: Step) -> Send:
        """Write and fsync the record, then let the message out: in this order, and only here."""
        if step.record is not None:
            self._device.journal.write(step.record)
        return Send(step.message.SerializeToString())

    def _open_terms(self) -> Terms:
        if self._terms is None:
            raise Refused(pb.REASON_ATTEMPT_CLOSED, "no attempt is open")
        return self._terms

    def _end_attempt(self, outcome: str = CLOSED) -> None:
        """Close the open attempt, in the journal too, and wipe what it held."""
        self._record.end(outcome)
        member, self._member = self._member, None
        self._terms = self._start = self._incoming = None
        self._ctx = NO_CTX
        self._vector = bytearray()
        self._device.update.forget()
        if member is None:
            return
        begun = member.state is not State.TRAINED
        closed = member.close()
        if begun:
            try:
                self._device.journal.write(closed)
            except StateError as error:
                self._device.log(f"journal: {error}")
