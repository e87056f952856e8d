"""A federation in one process: a throw-away CA, real certificates, policies, sessions, server.

Nothing is weakened for being simulated: the coordinator, the device sessions, scheme A and
the policies are those of a deployment, secrets come from the operating system, and no flag
turns a check off. Only the transport is replaced (link.py), and journals live in memory,
because no simulated process outlives this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from .link import Link
from .remembered import SharedMembership
from .seats import Cohort
from .. import __version__
from ..clients.journal import MemoryJournal
from ..clients.policy import Policy
from ..clients.session import Device, Session
from ..clients.update import Update
from ..host.reported import computed_by
from ..protocol.canonical import lp
from ..protocol.certificates import Authority
from ..protocol.entropy import os_entropy
from ..protocol.errors import Refused
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..protocol.members import LIFE, MemberList
from ..protocol.membership import Membership
from ..protocol.standpoint import Identity
from ..server.consistency import check_rows
from ..server.coordinator import Coordinator
from ..server.core.room import available
from ..server.initial import first_model
from ..server.ledger import RoundRecord
from ..server.run_directory import RunDirectory
from ..server.settings import COMPUTED_BY
from ..server.surroundings import Surroundings
from ..server.watching import Watching
from ..strategies.counted import HISTOGRAM
from ..strategies.task import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from .drops import Drop
    from ..protocol.errors import RoundFailed
    from ..server.settings import RunSettings
    from ..strategies.trainer import Trainer

FEDERATION = "simulation"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a simulated run leaves."""

    run: str
    security: str
    records: tuple[RoundRecord, ...]
    model: dict[str, NDArray[Any]] = field(repr=False)
    path: Path
    """The run's directory."""
    names: Mapping[str, int]
    """Node id, hex, to the client's index."""
    failure: RoundFailed | None = None
    refusals: tuple[str, ...] = ()
    """What the devices' own logs said, each behind its client's name, as in `client 3: …`."""
    warnings: tuple[str, ...] = ()
    """Settings that a round showed to be badly chosen."""
    trained_by: str = ""
    """Which tier, and why; empty where each client trained by itself."""

    @property
    def accuracy(self) -> float | None:
        """The server's own test accuracy after the last finished round, if it tests."""
        found = [r.metrics["test.accuracy"] for r in self.records if "test.accuracy" in r.metrics]
        return found[-1] if found else None


TIMELESS = {"duration": "no time passes in this simulation: leave it out, or give a fleet"}
"""The signal that a run without a clock has not, and what to do."""


def own_policy(settings: RunSettings) -> Policy:
    """Return the policy that the simulator writes for its clients, as strict as the run allows.

    Floors go down to the run's; weight cap and value range never above the built-in values.
    """
    params = settings.params
    return Policy(
        federation=FEDERATION,
        required=settings.scheme != "plain",
        min_members=params.min_members,
        min_survivors=params.min_survivors,
        max_weight=min(params.weight_cap, Policy().max_weight),
        max_value_range=min(params.value_range, Policy().max_value_range),
        histogram=bool(settings.config.get(HISTOGRAM)),
        rounds_per_day=(settings.rounds + 1) * settings.attempts,
    )


class Federation:
    """`clients` simulated devices and a server."""

    def __init__(  # noqa: PLR0913 - each is a part of one run
        self,
        trainer: Trainer | Sequence[Trainer] | Cohort,
        settings: RunSettings,
        *,
        clients: int,
        home: Path,
        init: Path | None = None,
        policy: Policy | None = None,
        drops: Sequence[Drop] = (),
        observe: Callable[[RoundRecord], None] = lambda _record: None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Make the CA, enrol the clients, create the run's directory, connect everything.

        Args:
            trainer: Runs the task: one for all, or one for each client, the first the server's; or
                a cohort, whose tier trains many clients at a time.
            settings: The run.
            clients: How many.
            home: Where `runs/` is.
            init: A safetensors file with the initial model; None for the task's own.
            policy: Of every client; None is the one that `own_policy` makes.
            drops: Losses to play.
            observe: Called with every record.
            say: Called with lines about what is watched.
        """
        self.link, self._say = Link(drops), say
        trainers = self._trainers(trainer, clients)
        trainer = trainers[0]
        # User code first: what fails here leaves no run behind.
        model = first_model(trainer.arrays(settings.seed), init)
        metrics = {phase: trainer.declared(phase) for phase in ("train", "evaluate")}
        _check(settings, clients, MessageLayout(Manifest.of(model), metrics["train"], "train"))
        self.settings = settings
        self.policy = policy or own_policy(settings)
        self.refusals, self.records = list[str](), list[RoundRecord]()
        self.authority = Authority.create(FEDERATION, now := datetime.now(UTC))
        self._list = MemberList(FEDERATION, 1, now, now + LIFE).sign(self.authority)
        self._root = self.authority.certificate.public_bytes(Encoding.DER)
        self.directory = RunDirectory.create(home, settings.run)
        about = {"clients": clients, COMPUTED_BY: computed_by(__version__), **settings.described()}
        self.directory.ledger.create_run(settings.run, _stamp(), about, settings.security)
        self._observe, self._trainer = observe, trainer
        self.test_every = 1
        """Rounds from one test of the server to the next; the last is tested, and with 0 none."""
        self.coordinator = Coordinator(settings, model, metrics, self._surroundings())
        self._shared = self._listed(SharedMembership(self.authority.certificate, FEDERATION))
        self._enrol([self._device(i, clients, trainers[i]) for i in range(clients)])

    def _trainers(
        self, trainer: Trainer | Sequence[Trainer] | Cohort, clients: int
    ) -> Sequence[Trainer]:
        """Return one trainer a client."""
        if isinstance(trainer, Cohort):
            trainer.ahead = lambda: self.link.training
            return trainer.seats(clients)
        return trainer if isinstance(trainer, Sequence) else [trainer] * clients

    def _enrol(self, devices: list[Device]) -> None:
        """Give each device a session, connected to the server."""
        self.sessions = [Session(device) for device in devices]
        self.names = {device.identity.id.hex(): i for i, device in enumerate(devices)}
        self.link.connect(
            self.coordinator,
            [(d.identity.certificate, s) for d, s in zip(devices, self.sessions, strict=True)],
        )

    def run(self) -> Result:
        """Run every round and return what came of it."""
        try:
            self.link.run()
        finally:
            for session in self.sessions:
                session.close()
            events = self.directory.ledger.events()
            self.directory.close()
        return Result(
            run=self.settings.run,
            security=self.settings.security,
            records=tuple(self.records),
            model={name: array.copy() for name, array in self.coordinator.model.items()},
            path=self.directory.path,
            names=self.names,
            failure=self.coordinator.failure,
            refusals=tuple(self.refusals),
            warnings=tuple(event.code for event in events if event.kind == "warning"),
        )

    def _test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Test at the server; what its examples do to the task is no reason to lose a round."""
        number, last = self.coordinator.round, self.settings.rounds
        if not self.test_every or (number % self.test_every and number != last):
            return {}
        try:
            return self._trainer.test(arrays)
        except Refused as error:
            self.refusals.append(f"server: no test of the model: {error}")
            return {}

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            verifier=self._listed(Membership(self.authority.certificate, FEDERATION)).verifier,
            ca=sha256(self._root).digest(),
            directory=self.directory,
            post=self.link.post,
            wall=_utc,
            test=self._test,
            observe=self._note,
            watch=Watching.of(
                self.settings, self.directory, None, missing=TIMELESS, wall=_utc, say=self._say
            ),
        )

    def _note(self, record: RoundRecord) -> None:
        self.records.append(record)
        self._observe(record)

    def _listed(self, membership: Membership) -> Membership:
        """Return it with the list that the root signed."""
        membership.take(self._list, _utc())
        return membership

    def _device(self, index: int, clients: int, trainer: Trainer) -> Device:
        """Enrol one client: its own key, its certificate, its policy and journal."""
        signing = Ed25519PrivateKey.generate()
        node = node_id(self.settings.seed, index)
        leaf = self.authority.issue_signing(signing.public_key(), node, f"site-{index}", _utc())
        site = Site(partition=index, partitions=clients, seed=self.settings.seed)
        seed = self.settings.seed
        return Device(
            identity=Identity(
                id=node, certificate=leaf.public_bytes(Encoding.DER), signing=signing
            ),
            policy=self.policy,
            membership=self._shared,
            ca=sha256(self._root).digest(),
            journal=MemoryJournal(),
            update=Update(trainer, site, self.policy, entropy=os_entropy, seed=seed),
            clock=_utc,
            entropy=os_entropy,
            log=lambda line: self.refusals.append(f"client {index}: {line}"),
        )


def _check(settings: RunSettings, clients: int, layout: MessageLayout) -> None:
    """Refuse a model that the run's plan is not about, or whose updates there is no room for."""
    if settings.plan is not None:
        settings.plan.check_model(layout.manifest)
    check_rows(settings, clients, layout.total_bytes, {"in memory": available()})


def node_id(seed: int, index: int) -> bytes:
    """Return the id of a simulated client: not secret, and the same in every run of a seed."""
    fields = (b"umbel/simulated-node/1", str(seed).encode(), str(index).encode())
    return sha256(lp(*fields)).digest()[:16]


def _utc() -> datetime:
    return datetime.now(UTC)


def _stamp() -> str:
    return _utc().isoformat(timespec="seconds")
