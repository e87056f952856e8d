"""An existing Flower app, simulated as it is: its ServerApp, its strategy, its ClientApp.

`run_simulation` has the arguments of Flower's function of this name. The ServerApp runs in this
process over a Grid of ours (engine/flower_grid.py), the ClientApp in a pool of workers; Ray is not
used. Not for apps with a umbel Task, which run.py plans.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from .engine.flower_callee import FlowerCallee
from .engine.flower_grid import PoolGrid, identified
from .engine.isolation import cause, isolated, seed
from .engine.pool import Forked, Named, Pool
from .flower_history import History, watched
from ..clients.child import boundary
from ..host.places import umbel_home
from ..protocol.errors import Refused, SettingsError, UmbelError
from ..server.run_config import new_run_id
from ..server.run_place import check_new, place
from ..strategies.app import AppRef, load, read_components, read_tables
from ..strategies.task import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .federation import Result
    from ..server.ledger import RoundRecord
    from ..strategies.app import Value

NODES = 5
"""Clients of an app that says no number."""
PURPOSE = "global generators, ServerApp"
_BACKEND = {"client_resources", "init_args", "actor"}


@dataclass(frozen=True, kw_only=True)
class FlowerOptions:
    """How a Flower app is simulated."""

    clients: int | None = None
    """None is what the app's pyproject.toml says for Flower's simulation, or `NODES`."""
    seed: int = 0
    workers: int | None = None
    """Worker processes; None is one a core."""
    config: Mapping[str, Value] = field(default_factory=dict)
    """Overrides of the app's run-config."""
    run: str | None = None
    home: Path | None = None


def run_simulation(
    server_app: ServerApp,
    client_app: ClientApp,
    num_supernodes: int,
    backend_name: str = "ray",
    backend_config: Mapping[str, Any] | None = None,
    enable_tf_gpu_growth: bool = False,
    verbose_logging: bool = False,
    *,
    options: FlowerOptions | None = None,
) -> Result | None:
    """Run a Flower app's simulation without Ray.

    Args:
        server_app: As Flower's.
        client_app: As Flower's; its workers are forked from this process.
        num_supernodes: How many nodes there are, numbered from 0.
        backend_name: Any; there is one engine.
        backend_config: Of `client_resources` the CPUs and GPUs of one client decide how many
            workers there are, `options.workers` says it outright.
        enable_tf_gpu_growth: Sets TensorFlow's variable of that name.
        verbose_logging: Flower's logger decides.
        options: Seed and other things that Flower's function does not have.

    Returns:
        The run, with its directory; None where the ServerApp sent nothing.

    Raises:
        SettingsError: A number or a key of the configuration is wrong.
        Whatever the ServerApp raises.
    """
    asked = options or FlowerOptions()
    if not isinstance(server_app, ServerApp) or not isinstance(client_app, ClientApp):
        got = f"{type(server_app).__name__} and {type(client_app).__name__}"
        raise SettingsError("run_simulation", "a ServerApp and a ClientApp", got)
    if type(num_supernodes) is not int or num_supernodes < 1:
        raise SettingsError("num_supernodes", "an integer of 1 or more", num_supernodes)
    if enable_tf_gpu_growth:
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    workers = asked.workers or _workers(backend_config or {})
    source = Forked(lambda: FlowerCallee(client_app))
    return _simulated(server_app, source, num_supernodes, workers, asked, "flower")


def simulate_app(
    directory: Path,
    options: FlowerOptions,
    observe: Callable[[RoundRecord], None] = lambda _record: None,
    begin: Callable[[int], None] = lambda _rounds: None,
) -> Result | None:
    """Run the Flower app of a directory.

    Args:
        directory: With its pyproject.toml.
        options: How.
        observe: Called with every record.
        begin: Called with the number of rounds, when the strategy starts.

    Raises:
        SettingsError: The app's pyproject.toml or an override is wrong.
        UmbelError: The ServerApp raised; its trace is on stderr.
    """
    components = read_components(directory)
    declared, _ = read_tables(directory)
    for key in options.config.keys() - declared.keys():
        known = ", ".join(sorted(declared)) or "nothing"
        raise SettingsError("run-config", f"a key that the app declares: {known}", key)
    clients = components.nodes or NODES if options.clients is None else options.clients
    if clients < 1:
        raise SettingsError("clients", "1 or more", clients)
    fields = {"kind": "flower", "directory": str(directory.resolve())}
    source = Named({**fields, "component": components.client})
    workers = options.workers or len(os.sched_getaffinity(0))
    with boundary():
        server = load(AppRef(directory, components.server))
    if not isinstance(server, ServerApp):
        expected = "a flwr.serverapp.ServerApp"
        raise SettingsError(f"serverapp {components.server}", expected, type(server).__name__)
    merged = {**declared, **options.config}

    def guarded(grid: PoolGrid, context: Context) -> None:
        try:
            with boundary():
                server(grid, context)
        except Refused as error:
            raise UmbelError(f"the ServerApp raised {cause(error)}; its trace is above") from None

    return _simulated(
        guarded, source, clients, workers, options, directory.resolve().name, merged,
        observe, begin,
    )  # fmt: skip


def _simulated(  # noqa: PLR0913, PLR0917 - two callers, one way
    server: Callable[[PoolGrid, Context], None],
    source: Forked | Named,
    nodes: int,
    workers: int,
    asked: FlowerOptions,
    name: str,
    run_config: Mapping[str, Value] | None = None,
    observe: Callable[[RoundRecord], None] = lambda _record: None,
    begin: Callable[[int], None] = lambda _rounds: None,
) -> Result | None:
    """Run a ServerApp over a pool of its ClientApp, and keep its history."""
    config = dict(run_config or {})
    about = {
        "clients": nodes, "seed": asked.seed, "config": config, "scheme": "plain", "tier": "T3",
        "tier-why": f"the app's own ClientApp, {workers} workers", "hand-over": "rows",
        "hand-over-why": "a Flower strategy gets every reply",
    }  # fmt: skip
    home, run = asked.home or umbel_home(), asked.run or new_run_id(name)
    check_new(place(home, run))
    history = History(run, home, about, observe, begin)
    flower_run = secrets.randbits(62)
    with ExitStack() as stack:
        pool = stack.enter_context(Pool(source, min(workers, nodes)))
        stack.enter_context(identified(flower_run))
        grid = PoolGrid(
            pool, nodes, flower_run, seed=asked.seed, run_config=config, observe=history.step
        )
        stack.callback(grid.close)
        stack.enter_context(isolated(threads=None))
        stack.enter_context(watched(history))
        stack.callback(history.close)
        seed(Site(seed=asked.seed), PURPOSE)
        context = Context(
            run_id=flower_run, node_id=0, node_config={}, state=RecordDict(), run_config=config
        )
        server(grid, context)
        return history.close()
    return None


def _workers(config: Mapping[str, Any]) -> int:
    """Return how many clients this machine runs at once by Flower's backend configuration."""
    known = {str(key).replace("-", "_"): value for key, value in config.items()}
    for key in known.keys() - _BACKEND:
        raise SettingsError("backend_config", f"keys among {sorted(_BACKEND)}", key)
    cores = len(os.sched_getaffinity(0))
    given = known.get("client_resources", {})
    resources = {str(key).replace("-", "_"): value for key, value in given.items()}
    wanted = {}
    for name in ("num_cpus", "num_gpus"):
        value = resources.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise SettingsError(f"client_resources.{name}", "0 or more", value)
        wanted[name] = value
    most = int(cores / wanted["num_cpus"]) if wanted["num_cpus"] else cores
    if wanted["num_gpus"]:
        most = min(most, int(_gpus() / wanted["num_gpus"]))
    return max(1, min(cores, most))


def _gpus() -> int:
    """Return how many GPUs this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
