"""`umbel server up [APP]`: a federation's server, from nothing if need be, until told to stop.

The federation is made where it is not there yet, tokens are printed for the devices that are to
join, every program of the server is started and kept up, and an app that is named runs as soon as
its nodes are online. Started again, it finds its ports, its database, its nodes and its run again.
SIGTERM and SIGINT end it with status 0: the round that runs may end first, and a second signal ends
all at once.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app_plan import plan_app
from .federation_files import find, place
from .federation_init import make
from .flower_programs import PLAIN, SETTINGS, STARTED, Place
from .init_cli import NAME, settings_for
from .issuer_wire import ask
from .run_config import from_environment, parsed
from .server_toml import FILE, ServerSettings
from .token_terms import Terms, span
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.platforms import check_platform
from ..host.programs import direct
from ..host.stopping import draining, no_orphans, stoppable
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from .app_plan import AppPlan
    from .flower_app_run import AppRun
    from .flower_up import ServerUp
    from .run_config import Value

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_POLL_S = 0.2


class Secure(StrEnum):
    """Whether masks are on."""

    ON = "on"
    OFF = "off"


App = Annotated[
    Path | None, typer.Argument(metavar="[APP]", help="Directory of an app that is to run.")
]
Names = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="DNS names and IP addresses that devices dial; the federation is made with them.",
    ),
]
Name = Annotated[
    str, typer.Option(help=f"The federation [the only one of this machine, or {NAME}].")
]
Directory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Its directory, in place of --name.")
]
Tokens = Annotated[
    list[str] | None,
    typer.Option(metavar="NODE", help="Print a token for this node; several times for more."),
]
Expires = Annotated[str, typer.Option(help="How long the tokens may be used: 30m, 24h, 7d.")]
Clients = Annotated[
    int | None, typer.Option(help="Nodes that the app waits for [what it says, or 5].")
]
RunConfig = Annotated[
    list[str] | None,
    typer.Option("-c", "--run-config", metavar="KEY=VALUE", help="Change a setting of the app."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Compare each round with this plan, made by `umbel plan`."
    ),
]
Masks = Annotated[
    Secure, typer.Option(help="off: plain runs, if every device's own policy allows them.")
]
Ranks = Annotated[int, typer.Option(help="Processes of the core service that add up; needs torch.")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Begin a new run, where an earlier one could go on.")
]


@app.command(
    epilog="Example: umbel server up examples/digits --names fl.example.org --token press-1 "
    "--token press-2 --token press-3 --token press-4 --token press-5"
)
def up(  # noqa: PLR0913, PLR0917 - one parameter an option
    directory: App = None,
    names: Names = "",
    name: Name = "",
    federation: Directory = None,
    token: Tokens = None,
    expires: Expires = "24h",
    clients: Clients = None,
    run_config: RunConfig = None,
    plan_file: PlanFile = None,
    secure: Masks = Secure.ON,
    ranks: Ranks = 0,
    fresh: Fresh = False,
    form: Form = Format.TEXT,
) -> None:
    """Run a federation's server: made if absent, kept up, and the app submitted to its nodes."""
    from .core.supervisor import check_ranks  # noqa: PLC0415 - a wrong flag needs no numpy

    check_platform()
    check_ranks(ranks)
    said = [*(run_config or []), *([] if plan_file is None else [f"plan={plan_file}"])]
    if directory is None and plan_file is not None:
        raise SettingsError("--plan", "an app that it is about", "none", "name its directory")
    plan = _planned(directory, said, clients, secure=secure is Secure.ON)
    wanted = [(item, span(expires)) for item in token or ()]
    say = _Speaker(form)
    folder = _made(federation, name, names, say)
    settings = ServerSettings.read(folder)
    os.environ.update(direct())
    where = Place(home=umbel_home(), folder=folder)
    with stoppable(), no_orphans():
        _serve(where, settings, plan, wanted, ranks, say, fresh=fresh)


def _serve(
    where: Place, settings: ServerSettings, plan: AppPlan | None, tokens: list[tuple[str, int]],
    ranks: int, say: _Speaker, *, fresh: bool,
) -> None:  # fmt: skip
    """Start everything, and keep it up until a signal comes."""
    from .flower_app_run import AppRun, started  # noqa: PLC0415 - a wrong flag need not import flwr
    from .flower_control import build_bundle  # noqa: PLC0415
    from .flower_up import ServerUp  # noqa: PLC0415

    bundle = b"" if plan is None else build_bundle(plan.app)
    env = {} if plan is None else _variables(plan, started(plan, where))
    with ServerUp(where, settings, say, ranks, env) as server:
        say(f"starting the server of federation {settings.name}: {where.folder}")
        server.start_issuer()
        _print_tokens(where, tokens, bundle, say)
        server.start()
        say(f"devices dial {settings.front} and {settings.gateway}")
        say(
            f"to run an app, in its directory: FLWR_HOME={where.client_home} flwr run . "
            f"{settings.name} --stream"
        )
        run = None if plan is None else AppRun(server, plan, bundle, say, fresh=fresh)
        _keep(server, run)
        say("ending every program")


def _keep(server: ServerUp, run: AppRun | None) -> None:
    """Watch until somebody asks that it ends, and every ServerApp has."""
    with draining() as asked:
        while True:
            now = time.monotonic()
            server.watch(now)
            if asked.asked and server.ends(now):
                break
            if run is not None and not asked.asked:
                run.look(now)
            elif run is not None:
                run.show()
            time.sleep(_POLL_S)
    if run is not None:
        run.show()
        run.end()


def _planned(
    directory: Path | None, config: list[str], clients: int | None, *, secure: bool
) -> AppPlan | None:
    """Return what is to run, if anything is."""
    if directory is None:
        given = "--clients" if clients is not None else "--run-config" if config else ""
        if given:
            raise SettingsError(given, "an app that it is about", "none", "name its directory")
        return None
    settings: dict[str, Value] = {
        key: value for key, value in from_environment(os.environ).items() if key != "clients"
    }
    for text in config:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError("--run-config", "KEY=VALUE", text)
        settings[key.strip()] = parsed(value.strip())
    return plan_app(directory, settings, clients, secure=secure)


def _made(federation: Path | None, name: str, names: str, say: _Speaker) -> Path:
    """Return the federation's directory, which is made where it is absent."""
    home = umbel_home()
    known = sorted((home / "federations").glob(f"*/{FILE}"))
    folder = federation or (place(home, name or NAME) if name or not known else find(None))
    given = tuple(item.strip() for item in names.split(",")) if names else ()
    if (folder / FILE).is_file():
        has = ServerSettings.read(folder).names
        if given and given != has:
            move = f"edit {folder / FILE}, or leave --names out"
            raise SettingsError("--names", f"those of the federation: {','.join(has)}", names, move)
        return folder
    if not given:
        expected = "DNS names or IP addresses by which devices reach this machine"
        raise SettingsError("--names", expected, "none", "a federation is made with them")
    make(folder, settings_for(name or folder.name, list(given)), datetime.now(UTC))
    say(f"made the federation {name or folder.name}: {folder}")
    return folder


def _print_tokens(
    where: Place, tokens: list[tuple[str, int]], bundle: bytes, say: _Speaker
) -> None:
    """Print a token for each node that has neither joined nor been given one."""
    if not tokens:
        return
    nodes = {row["name"] for row in ask(where.folder, "nodes") if row["removed"] is None}
    waiting = {row["name"] for row in ask(where.folder, "tokens") if row["state"] == "open"}
    apps = (sha256(bundle).digest(),) if bundle else ()
    for name, seconds in tokens:
        if name in nodes:
            say(f"{name} has joined already: no token")
        elif name in waiting:
            say(f"{name} has a token that nobody has used yet; `umbel server token revoke {name}`")
        else:
            terms = Terms(name=name, site=name, seconds=seconds, apps=apps)
            say.token(name, ask(where.folder, "token", terms.dumps())["token"])


def _variables(plan: AppPlan, said: dict[str, object]) -> dict[str, str]:
    """Return what the ServerApps are told."""
    env = {SETTINGS: json.dumps(dict(plan.settings)), STARTED: json.dumps(said)}
    return env | ({} if plan.secure else {PLAIN: "off"})


class _Speaker:
    """Lines about what happens, as text or as JSON."""

    def __init__(self, form: Format) -> None:
        self._form = form

    def __call__(self, line: str) -> None:
        self._write(line, {"line": line})

    def token(self, name: str, text: str) -> None:
        """Print a token: on the device, `umbel client enrol` takes it."""
        self._write(f"token for {name}: {text}", {"node": name, "token": text})

    def _write(self, line: str, fields: dict[str, str]) -> None:
        if self._form is Format.JSON:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"at": at, **fields})
        typer.echo(line)
