"""What a plan is made for: a run's settings as a run resolves them, and the sizes of its messages.

The settings come in falling precedence from the caller, from the app, from the defaults of
server/run_config.py; clients that nobody names are those that the fleet counts. An app's model is
made by its task in a child process, as for `umbel simulate`; without an app it is so many float32.

In a secure run each member sends and gets beside model and vector what docs/protocol.md, section
4.1 lists, for n members with k neighbours each:

    up      480 + 177 k bytes       Keys, Shares, Masked, Vote, Release
    down    179 n + 337 k bytes     Roster without new certificates, Inbox, Survivors, Votes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .job import Job
from ..fleet.devices import Load
from ...clients.child import Child
from ...protocol.digest import model_digest
from ...protocol.errors import SettingsError
from ...protocol.graph import MAX_MEMBERS, parameters
from ...protocol.layout import MessageLayout
from ...protocol.manifest import Manifest
from ...server.cohort import invitations
from ...server.consistency import check_clients
from ...server.run_config import run_settings, tables
from ...server.run_rule import chosen
from ...strategies.app import AppRef, is_plain_flower
from ...strategies.metrics import fractional_bits
from ...strategies.staleness import weighting
from ...strategies.trainer import TRAINING, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..fleet.description import Description
    from ...protocol.graph import Parameters
    from ...server.run_config import Value
    from ...server.settings import RunSettings

_MOST_PARAMETERS = 1 << 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the caller says; None leaves the app's setting, the fleet's count or the default."""

    app: Path | None = None
    clients: int | None = None
    rounds: int | None = None
    seed: int | None = None
    secure: bool = True
    parameters: int | None = None
    """Of the model, where there is no app."""
    settings: Mapping[str, Value] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A run, checked, and what its messages weigh."""

    app: AppRef | None
    run: RunSettings
    clients: int
    layout: MessageLayout
    digest: str | None
    """Of the first model, hex."""
    epochs: int
    graph: Parameters | None
    """Of a roster of the whole cohort, where masks are on."""
    buffer: int = 0
    """Updates that make a version of an asynchronous run; 0: rounds are synchronous."""
    staleness: str = "constant"

    @property
    def manifest(self) -> Manifest:
        """The model's layout."""
        return self.layout.manifest

    @property
    def parameters(self) -> int:
        """Numbers of the model."""
        return sum(entry.size for entry in self.manifest.entries)

    @property
    def dtype(self) -> str:
        """Of most of them."""
        sizes: dict[str, int] = {}
        for entry in self.manifest.entries:
            sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.size
        return max(sizes, key=lambda name: (sizes[name], name))

    @property
    def cohort(self) -> int:
        """Updates that a round waits for."""
        return self.run.cohort or self.clients

    @property
    def load(self) -> Load:
        """What a round asks of each client."""
        down, up = self.manifest.total_bytes, self.layout.total_bytes
        if (graph := self.graph) is not None:
            down += 179 * graph.n + 337 * graph.k
            up += 480 + 177 * graph.k
        return Load(down=down, up=up, epochs=self.epochs)

    @property
    def job(self) -> Job:
        """What is asked of the fleet."""
        run, params = self.run, self.run.params
        needed = self.cohort if self.buffer else invitations(self.cohort, run.dropout)
        return Job(
            clients=self.clients,
            cohort=self.cohort,
            invited=needed,
            quorum=min(self.cohort, max(params.min_members, params.min_survivors)),
            rounds=run.rounds,
            deadline=run.deadline,
            attempts=run.attempts,
            load=self.load,
            parameters=self.parameters,
            item_bytes=max(entry.numpy.itemsize for entry in self.manifest.entries),
            secure=run.scheme == "A",
            alpha=params.alpha,
            delta=params.delta,
            a_min=params.a_min,
            buffer=self.buffer,
            staleness=self.staleness,
        )


def subject(asked: Asked, fleet: Description) -> Subject:
    """Return the run that is planned.

    Raises:
        SettingsError: A setting is unknown or outside its range, or nothing tells the model's size.
        Refused: The app's task cannot be loaded.
    """
    if asked.app is not None and is_plain_flower(asked.app):
        move = "--parameters N, how many numbers its model has"
        raise SettingsError("--app", "an app with a umbel task", f"{asked.app}, a Flower app", move)
    app = None if asked.app is None else AppRef.read(asked.app)
    own: dict[str, Value] = {} if app is None else dict(app.settings)
    table, config = tables(own, _given(asked, fleet, own))
    weighting(str(table["staleness"]))
    if int(table["buffer"]) and asked.secure:
        why = "masks are on, and need all members of a round at once"
        raise SettingsError("buffer", "a run without masks", why, "--secure off")
    rule = chosen(table, {*own, *(asked.settings or {})})
    clients = int(table["clients"])
    run = run_settings(table, config, run="plan", secure=asked.secure, rule=rule)
    if asked.secure and (members := run.cohort or clients) > MAX_MEMBERS:
        expected = f"3 to {MAX_MEMBERS} members of a secure round"
        move = f"--secure off, or -c cohort={MAX_MEMBERS} or less"
        raise SettingsError("cohort", expected, members, move)
    check_clients(run, clients)
    least, buffer = max(run.params.min_members, run.params.min_survivors), int(table["buffer"])
    if 0 < buffer < least:
        move = "raise buffer, or lower min-members and min-survivors"
        raise SettingsError("buffer", f"at least {least}, the run's floor", buffer, move)
    layout, digest, epochs = _model(asked, app, run)
    return Subject(
        app=app,
        run=run,
        clients=clients,
        layout=layout,
        digest=digest,
        epochs=epochs,
        graph=_graph(run, clients) if asked.secure else None,
        buffer=buffer,
        staleness=str(table["staleness"]),
    )


def _given(asked: Asked, fleet: Description, own: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the caller says; the fleet's count of clients stands above the app's."""
    given = dict(asked.settings or {})
    for name in ("clients", "rounds", "seed"):
        if (value := getattr(asked, name)) is not None:
            given[name] = value
    if "clients" not in given and fleet.clients is not None:
        given["clients"] = fleet.clients
    if "clients" not in {*given, *own}:
        expected = "how many clients there are, for this fleet says shares"
        raise SettingsError("clients", expected, "nothing", "--clients N")
    return given


def _graph(run: RunSettings, clients: int) -> Parameters:
    params = run.params
    members = run.cohort or clients
    return parameters(members, alpha=params.alpha, delta=params.delta, a_min=params.a_min)


def _model(
    asked: Asked, app: AppRef | None, run: RunSettings
) -> tuple[MessageLayout, str | None, int]:
    """Return the message's layout, the first model's digest and the local epochs."""
    given = Settings.of(run.config).epochs
    if app is None:
        count = asked.parameters
        if count is None or not 1 <= count <= _MOST_PARAMETERS:
            expected = f"1 to {_MOST_PARAMETERS}, the numbers of the model"
            got = "nothing" if count is None else count
            raise SettingsError("parameters", expected, got, "--app APP, or --parameters N")
        manifest = Manifest.lay_out([("parameters", (count,), "float32")])
        layout = MessageLayout(manifest, fractional_bits(TRAINING), "train")
        return layout, None, given or 1
    if asked.parameters is not None:
        raise SettingsError("parameters", "nothing beside an app, which has them", asked.parameters)
    with Child(app) as trainer:
        arrays = trainer.arrays(run.seed)
        layout = MessageLayout(Manifest.of(arrays), trainer.declared("train"), "train")
        epochs = trainer.epochs() if given is None else given
    packed = layout.manifest.pack(arrays)
    return layout, model_digest(packed).hex(), epochs
