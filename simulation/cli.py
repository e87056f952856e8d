"""`umbel simulate APP`: a whole federation in one process, secure aggregation on."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import report
from .drops import BOUNDARIES
from .run import Options, plan
from ..clients.device_files import no_core_dumps
from ..clients.policy import Policy
from ..host.answer_form import Form, Format, beside
from ..host.places import umbel_home
from ..protocol.errors import SettingsError
from ..server.ledger_file import is_blank
from ..server.reduced_rows import SORTED
from ..server.run_config import from_environment, parsed
from ..server.run_place import place
from ..strategies.app import is_plain_flower
from ..strategies.robust_rules import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .federation import Result
    from .run import Plan
    from ..server.run_config import Value

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Tier(StrEnum):
    """Who trains."""

    AUTO = "auto"
    T0 = "T0"
    T1 = "T1"
    T2 = "T2"
    T3 = "T3"


class Way(StrEnum):
    """What reaches the coordinator."""

    AUTO = "auto"
    SUM = "sum"
    ROWS = "rows"


class Secure(StrEnum):
    """Whether masks are on."""

    ON = "on"
    OFF = "off"


Clients = Annotated[int | None, typer.Option(help="Clients; else the app's, or 5.")]
RoundsOf = Annotated[
    int | None, typer.Option("--rounds", help="Training rounds; else the app's, or 10.")
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of data, model and training; else the app's, or 0.")
]
SecureMode = Annotated[
    Secure,
    typer.Option(help="off: no masks; the sum of many clients' updates, unless more is needed."),
]
TierName = Annotated[
    Tier | None, typer.Option(help="Who trains; auto is the fastest by a short trial.")
]
Workers = Annotated[
    int | None, typer.Option(help="Threads or processes that train; else one a core.")
]
Fleet = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What devices there are: a fleet.toml.")
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Compare each round with this plan, made by `umbel plan`."
    ),
]
HandOver = Annotated[
    Way | None,
    typer.Option("--hand-over", help="What reaches the coordinator; auto is what the run needs."),
]
Here = Annotated[
    bool,
    typer.Option("--in-process", help="Run the app's code here, not in a child: for debugging."),
]
RunId = Annotated[
    str | None, typer.Option("--run", help="Id of the run; else made from APP and the time.")
]
Init = Annotated[
    Path | None,
    typer.Option(
        "--init",
        metavar="MODEL",
        help="Begin with this model, a safetensors file as `umbel runs export` writes it.",
    ),
]
OwnPolicy = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Device policy (TOML) for every client.")
]
DropAt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BOUNDARY:N[@ROUND]",
        help="Lose the last N clients for good at a message boundary of ROUND, or of round 2: "
        f"{', '.join(BOUNDARIES)}.",
    ),
]
RunConfig = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--run-config",
        metavar="KEY=VALUE",
        help="Change a setting of the app, as in `flwr run`; may be given several times. Every "
        "app has clients, rounds, seed, cohort, attempts, value-range, weight-cap and lr.",
    ),
]


@app.command(epilog="Example: umbel simulate examples/digits --clients 10 --drop-at masked:1")
def run(  # noqa: PLR0913, PLR0917 - one parameter an option
    directory: Annotated[Path, typer.Argument(metavar="APP", help="Directory of the app.")],
    clients: Clients = None,
    rounds: RoundsOf = None,
    seed: Seed = None,
    secure: SecureMode = Secure.ON,
    tier: TierName = None,
    workers: Workers = None,
    fleet: Fleet = None,
    plan_file: PlanFile = None,
    way: HandOver = None,
    drop_at: DropAt = None,
    run_config: RunConfig = None,
    init: Init = None,
    policy: OwnPolicy = None,
    in_process: Here = False,
    run_id: RunId = None,
    form: Form = Format.TEXT,
) -> None:
    """Run an app's federation in one process: real protocol, throw-away CA, no network.

    A Flower app without a umbel Task runs as it is, its ClientApp in worker processes, unmasked.
    """
    no_core_dumps()  # the keys of every client are in this process
    options = Options(
        clients=clients,
        rounds=rounds,
        seed=seed,
        secure=secure is Secure.ON,
        drops=drop_at or (),
        settings=_settings(
            run_config or (), tier=tier, workers=workers, hand_over=way, fleet=fleet, plan=plan_file
        ),
        policy=Policy.load(policy) if policy else None,
        in_process=in_process,
        run=run_id,
        init=init,
    )
    if is_plain_flower(directory):
        from .flower_simulate_cli import run_flower  # noqa: PLC0415 - only such an app needs flwr

        run_flower(directory, options, form)
        return
    show(plan(directory, options), form)


def show(planned: Plan, form: Format) -> None:
    """Run it, watched by a person or a program, and say what came of it.

    Of several processes that torchrun has started only the first says something.

    Raises:
        RoundFailed: The run ended with it.
    """
    if planned.follow(lambda line: typer.echo(line, err=True)):
        return
    try:
        result = _watched(planned, form)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_next(planned)) from None
    typer.echo(
        report.summary(result) if form is Format.TEXT else json.dumps(report.as_json(result))
    )
    if result.failure is not None:
        raise result.failure


def _settings(pairs: Sequence[str], **flags: int | StrEnum | Path | None) -> dict[str, Value]:
    """Return the settings of the environment, of `-c`, and of the flags that were given."""
    said = {key.replace("_", "-"): value for key, value in flags.items() if value is not None}
    return {
        **from_environment(os.environ),
        **dict(pair(text) for text in pairs),
        **{key: value if isinstance(value, int) else str(value) for key, value in said.items()},
    }


def _watched(planned: Plan, form: Format) -> Result:
    """Run with the live line, on stderr beside JSON.

    What user code prints in this process goes beside the JSON too, as a child's does.
    """
    text = form is Format.TEXT
    with (
        report.Live(planned.settings.rounds, sys.stdout if text else sys.stderr) as live,
        beside(form),
    ):
        live.begin(_what(planned))
        return planned.run(live, live.watch, live.begin)


def _next(planned: Plan) -> str:
    """Return what to do about a run that was interrupted; nothing for one that had not begun."""
    run = planned.settings.run
    ledger = place(umbel_home(), run) / "ledger.sqlite"
    if not ledger.exists() or is_blank(ledger):
        return ""
    if planned.hand_over.sessions:
        return f"its rounds stay: `umbel runs show {run}`; simulated devices do not outlive it"
    return f"`umbel runs resume {run}` goes on with it"


def _what(planned: Plan) -> str:
    settings = planned.settings
    by = ""
    if settings.rule.robust is not None:
        by = f"; {kernels(1)[1] if planned.hand_over.sessions else SORTED}"
    return (
        f"{settings.run}: {planned.clients} clients, {settings.rounds} rounds, "
        f"secure aggregation {settings.security}{by}"
    )


def pair(text: str) -> tuple[str, Value]:
    """Read KEY=VALUE; the value is a TOML value, or a bare text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError("--run-config", "KEY=VALUE", text)
    return key.strip(), parsed(value.strip())
