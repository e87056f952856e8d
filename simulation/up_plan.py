"""From an app's directory and the flags of `umbel up` to a checked plan; nothing is started here.

A setting that the app declares in its run-config goes to Flower with the run, as `flwr run -c`
would send it. Any other must be one of server/run_config.py and reaches the ServerApp by its
environment. An app that says nothing in `[tool.umbel]` is Flower's own kind. In a plain run its
settings are its own and its rounds are counted by nobody here; in a secure one it must be wrapped
(`umbel.secure`, `umbel.train`), and `umbel.train` is told how many clients there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol import graph
from ..protocol.errors import SettingsError, StateError
from ..server.app_plan import ROUNDS, checked, split, with_plan
from ..server.consistency import check_clients
from ..server.core.supervisor import check_ranks
from ..server.settings import FLOWER_RUN
from ..strategies.app import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..server.ledger import RunRecord
    from ..server.run_config import Value
    from ..server.settings import RunSettings

DEFAULT_EDGE, DEFAULT_CLIENTS = 4, 5
REJOIN_S = 30.0
"""How long the last training round waits for a client that died: here every one is restarted."""
TORCH = "task-torch"
_DROP_ROUNDS = 3
_TYPES = {
    "app": str, "name": str, "edge": int, "gpu": int, "secure": bool, "rounds": int,
    "settings": dict, "init": str, "config": dict, "bundle": str, "ranks": int,
}  # fmt: skip
"""What the ledger of a run of `umbel up` says about its start, with the types of that; one that
says nothing of ranks had none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The flags; None where the caller left the choice to us."""

    edge: int | None = None
    gpu: int | None = None
    drop: int = 0
    secure: bool = True
    rounds: int | None = None
    settings: tuple[tuple[str, Value], ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    """Settings that variables say, below the flags; of an app of Flower's own kind its keys."""
    init: Path | None = None
    ranks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class UpPlan:
    """What `umbel up` will do."""

    app: Path
    edge: int
    gpu: int
    drop: int
    secure: bool
    umbel: bool
    """Whether the app says anything in `[tool.umbel]`: its ServerApp waits for its clients."""
    config: Mapping[str, Value]
    """Overrides of the app's own run-config."""
    settings: Mapping[str, Value]
    """The run's other settings."""
    rounds: int
    """Rounds that a device joins in this run; 0 where nobody knows."""
    init: Path | None = None
    """A safetensors file with the initial model."""
    ranks: int = 0
    """Processes of the core service that add up; 0 is the service alone."""


def plan_up(app: Path, asked: Asked) -> UpPlan:
    """Check what is asked of an app.

    Raises:
        SettingsError: The app or a setting is wrong, or there are too few clients.
    """
    declared, own = read_tables(app)
    ours = bool(own)
    edge, gpu = _clients(asked, TORCH in own)
    given = _from_environment(asked, declared, ours=ours or asked.secure)
    given.update(asked.settings)
    given = with_plan(app, given, declared, own)
    if "clients" in given:
        raise SettingsError("run-config", "--edge and --gpu for the number of clients", "clients")
    if asked.rounds is not None:
        given[_rounds_key(declared, ours=ours)] = asked.rounds
    config, rest = split(given, declared)
    rounds = 0
    if ours or asked.secure:
        rest = {"rejoin": REJOIN_S, **rest, "clients": edge + gpu}
        _, run = checked(declared, own, config, rest, secure=asked.secure)
        rounds = (run.rounds + 1) * run.attempts
        _check_size(edge + gpu, run, asked)
    elif asked.init is not None:
        raise SettingsError("--init", "an app whose rounds are Umbel's: [tool.umbel]", app.name)
    elif asked.drop:
        raise SettingsError("--drop", "an app whose rounds are recorded: [tool.umbel]", app.name)
    elif rest:
        known = ", ".join(sorted(declared)) or "nothing"
        raise SettingsError("run-config", f"a key that the app declares: {known}", min(rest))
    if asked.ranks and not (ours or asked.secure):
        raise SettingsError("--ranks", "an app that has a core service: [tool.umbel]", app.name)
    check_ranks(asked.ranks)
    if asked.init is not None and not asked.init.is_file():
        raise SettingsError("--init", "a safetensors file", f"none at {asked.init}")
    return UpPlan(
        app=app, edge=edge, gpu=gpu, drop=asked.drop, secure=asked.secure, umbel=ours,
        config=config, settings=rest, rounds=rounds, init=asked.init, ranks=asked.ranks,
    )  # fmt: skip


def _from_environment(
    asked: Asked, declared: Mapping[str, Value], *, ours: bool
) -> dict[str, Value]:
    """Return the variables that matter here: how many clients there are is said by flags."""
    known = set(asked.environment if ours else declared) - {"clients"}
    return {key: value for key, value in asked.environment.items() if key in known}


def _clients(asked: Asked, has_torch_task: bool) -> tuple[int, int]:
    """Return how many edge and GPU clients there will be."""
    torch = find_spec("torch") is not None
    if asked.gpu and not torch:
        move = "pip install 'umbel[torch]'"
        raise SettingsError("--gpu", "torch in this environment", "none", move)
    if asked.edge is None and asked.gpu is None:
        return (DEFAULT_EDGE, 1) if torch and has_torch_task else (DEFAULT_CLIENTS, 0)
    edge = DEFAULT_EDGE if asked.edge is None else asked.edge
    gpu = asked.gpu or 0
    if edge < 0 or gpu < 0 or edge + gpu < 1:
        raise SettingsError("--edge", "1 or more clients in all", edge + gpu)
    return edge, gpu


def _check_size(clients: int, run: RunSettings, asked: Asked) -> None:
    """Refuse a federation too small for its rounds, or for the losses that it is to bear."""
    least = run.params.min_members
    if clients < least:
        raise SettingsError("--edge", f"{least} or more clients in all", clients)
    check_clients(run, clients)
    bears = clients - least
    if asked.secure:
        bears = graph.parameters(clients, alpha=run.params.alpha, delta=run.params.delta).d
    if asked.drop and run.rounds < _DROP_ROUNDS:
        what = f"{_DROP_ROUNDS} or more rounds, to return in"
        raise SettingsError("--drop", what, run.rounds)
    if not 0 <= asked.drop <= bears:
        move = "more clients bear more losses"
        raise SettingsError("--drop", f"0 to {bears} of {clients} clients", asked.drop, move)


def _rounds_key(declared: Mapping[str, Value], *, ours: bool) -> str:
    found = next((key for key in ROUNDS if key in declared), None)
    if found is None and not ours:
        raise SettingsError("--rounds", f"an app that declares {' or '.join(ROUNDS)}", "neither")
    return found or ROUNDS[0]


def recorded(record: RunRecord) -> tuple[UpPlan, str, str]:
    """Return what `umbel up` did for a run, the federation's name, and the bundle's SHA-256.

    Raises:
        StateError: It was no run of `umbel up`, or the record of how it was started is damaged.
    """
    if FLOWER_RUN not in record.config:
        raise StateError(
            f"run {record.run}", "a run of `umbel up`, or a simulated one without sessions",
            "one whose simulated devices ended with it", "begin it anew: `umbel simulate APP`",
        )  # fmt: skip
    said: Any = record.config.get("started")
    if not isinstance(said, dict) or not said.get("app"):
        raise StateError(
            f"run {record.run}", "a run of `umbel up`", "one that something else started",
            "start it again as it was, with UMBEL_RUN and UMBEL_RESUME=1 in its environment",
        )  # fmt: skip
    wrong = sorted(
        key for key, kind in _TYPES.items() if type({"ranks": 0, **said}.get(key)) is not kind
    )
    if wrong:
        raise StateError(
            f"run {record.run}: started", f"{', '.join(wrong)}", "others", "start a new run"
        )
    plan = UpPlan(
        app=Path(said["app"]), edge=said["edge"], gpu=said["gpu"], drop=0, secure=said["secure"],
        umbel=True, config=said["config"], settings=said["settings"], rounds=said["rounds"],
        init=Path(said["init"]) if said["init"] else None, ranks=said.get("ranks", 0),
    )  # fmt: skip
    return plan, said["name"], said["bundle"]
