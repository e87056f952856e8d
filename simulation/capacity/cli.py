"""`umbel plan FLEET.toml`: what to expect of a run before it is started."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .parts import Question
from .plan import plan
from .plan_file import write, written
from .subject import Asked, subject
from .text import as_text
from ..cli import Secure, pair
from ..fitting.fit import update
from ..fitting.observed import observe
from ..fleet.toml import read
from ..pages.plan_page import page
from ...host.answer_form import Form, Format
from ...host.places import umbel_home
from ...protocol.errors import SettingsError
from ...server.run_config import from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_MOST_SEED = 1 << 63
_QUIET_S = 2.0
_STEP = 0.1


FleetFile = Annotated[Path, typer.Argument(metavar="FLEET.toml", help="What devices there are.")]
App = Annotated[
    Path | None,
    typer.Option("--app", metavar="APP", help="The app: its model and its settings."),
]
Parameters = Annotated[
    int | None, typer.Option(help="Numbers of the model, float32, where there is no app.")
]
Clients = Annotated[
    int | None, typer.Option(help="Clients; else those that the fleet counts, or the app's.")
]
Rounds = Annotated[
    int | None, typer.Option("--rounds", help="Training rounds; else the app's, or 10.")
]
Certainty = Annotated[float, typer.Option(help="How sure to be that a round has its updates.")]
Seed = Annotated[
    int | None,
    typer.Option(help="Of the devices and of all that is drawn; else the app's, or 0."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--run-config",
        metavar="KEY=VALUE",
        help="A setting of the run: cohort, deadline, dropout, min-survivors, strategy and so on; "
        "may be given several times.",
    ),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(
        "--runs",
        metavar="RUN",
        help="A run whose ledger is to move the fleet's numbers; may be given several times.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Keep the plan, as JSON."),
]
Picture = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plan: one HTML file.")]


@app.command(
    epilog="Example: umbel plan examples/fleets/hospitals.toml --parameters 25000000 "
    "-c deadline=3600"
)
def run(  # noqa: PLR0913, PLR0917 - one parameter an option
    fleet: FleetFile,
    directory: App = None,
    parameters: Parameters = None,
    clients: Clients = None,
    rounds: Rounds = None,
    secure: Annotated[Secure, typer.Option(help="Whether masks are on.")] = Secure.ON,
    certainty: Certainty = 0.99,
    seed: Seed = None,
    run_config: Settings = None,
    runs: Runs = None,
    output: Output = None,
    picture: Picture = None,
    form: Form = Format.TEXT,
) -> None:
    """Say what to expect of a run: times, quorum, memory, cost, and what to change first."""
    if not 0.0 < certainty < 1.0:
        raise SettingsError("--certainty", "a probability between 0 and 1", certainty)
    described, measured = read(fleet), None
    if runs:
        observed = observe(umbel_home(writes=False), runs)
        learned = update(described, observed)
        described, measured = learned.description, learned.measured(observed)
    asked = Asked(
        app=directory,
        clients=clients,
        rounds=rounds,
        seed=seed,
        secure=secure is Secure.ON,
        parameters=parameters,
        settings={**from_environment(os.environ), **dict(map(pair, run_config or ()))},
    )
    planned = subject(asked, described)
    if planned.run.seed >= _MOST_SEED:
        raise SettingsError("seed", f"below {_MOST_SEED}", planned.run.seed)
    question = Question(
        description=described,
        subject=planned,
        certainty=certainty,
        seed=planned.run.seed,
        measured=measured,
    )
    found = plan(question, _progress())
    if output is not None:
        write(output, found)
    if picture is not None:
        written(picture, page(found))
    typer.echo(json.dumps(found) if form is Format.JSON else as_text(found))


def _progress() -> Callable[[float], None]:
    """Return what says on stderr how far a plan is that takes longer than one waits for."""
    began, told = time.monotonic(), 0.0

    def say(done: float) -> None:
        nonlocal told
        if time.monotonic() - began > _QUIET_S and done >= told + _STEP:
            told = done
            typer.echo(f"plan: {done:.0%}", err=True)

    return say
