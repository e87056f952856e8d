"""`umbel up APP`: a whole Flower federation on this machine, secure aggregation on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from . import report, up_report
from .cli import Init, PlanFile, RunConfig, Secure, pair
from .up_plan import Asked, plan_up
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.programs import direct, without_colours
from ..host.stopping import no_orphans, stoppable
from ..server.disk_space import SERVER_TEST
from ..server.run_config import from_environment
from ..server.watching import introduced

if TYPE_CHECKING:
    from typing import TextIO

    from .flower_run import Course, Shown
    from .flower_up import FlowerUp
    from .up_plan import UpPlan
    from ..server.ledger import RoundRecord, RunRecord

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: umbel up examples/digits --edge 4 --gpu 1 --drop 1")
def up(  # noqa: PLR0913, PLR0917 - one parameter an option
    directory: Annotated[Path, typer.Argument(metavar="APP", help="Directory of the app.")],
    edge: Annotated[
        int | None,
        typer.Option(help="Clients without torch. [default: 4 beside a GPU one, or 5]"),
    ] = None,
    gpu: Annotated[
        int | None,
        typer.Option(
            help="Clients that train with torch, two processes each. "
            "[default: 1 where torch is installed and the app has a task-torch]"
        ),
    ] = None,
    drop: Annotated[
        int, typer.Option(help="Kill so many clients with SIGKILL in the second round.")
    ] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the federation running after the run.")
    ] = False,
    secure: Annotated[
        Secure, typer.Option(help="off: plain runs, whose single updates the server can read.")
    ] = Secure.ON,
    rounds: Annotated[int | None, typer.Option(help="Number of training rounds.")] = None,
    ranks: Annotated[
        int, typer.Option(help="Processes of the core service that add up; needs torch.")
    ] = 0,
    run_config: RunConfig = None,
    plan_file: PlanFile = None,
    init: Init = None,
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "dev",
    form: Form = Format.TEXT,
) -> None:
    """Run an app on a real federation: SuperLink, core service, client processes, TLS."""
    planned = () if plan_file is None else (("plan", str(plan_file)),)
    settings = (*(pair(text) for text in run_config or ()), *planned)
    asked = Asked(
        edge=edge, gpu=gpu, drop=drop, secure=secure is Secure.ON, rounds=rounds,
        settings=settings, environment=from_environment(os.environ), init=init, ranks=ranks,
    )  # fmt: skip
    plan = plan_up(directory, asked)
    os.environ.update(direct())
    with stoppable(), no_orphans():
        run_up(plan, name, keep=keep, form=form)


def run_up(plan: UpPlan, name: str, *, keep: bool, form: Format, resume: str = "") -> None:
    """Bring a federation up, run the app or go on with the run `resume`, and say what came of it.

    Raises:
        UmbelError: It could not be brought up, or the run failed.
        KeyboardInterrupt: It was told to end.
    """
    from .flower_run import run  # noqa: PLC0415 - a wrong flag need not import flwr
    from .flower_up import FlowerUp, Wanted  # noqa: PLC0415
    from ..server.flower_output import SERVERAPP  # noqa: PLC0415

    home = umbel_home()
    screen = _Screen(sys.stdout if form is Format.TEXT else sys.stderr, plan)
    wanted = Wanted(
        app=plan.app,
        edge=plan.edge,
        gpu=plan.gpu,
        home=home,
        name=name,
        secure=plan.secure,
        rounds=plan.rounds,
        settings=plan.settings,
        init=plan.init,
        core=plan.secure or plan.umbel,
        ranks=plan.ranks,
        resume=resume,
    )
    with FlowerUp(wanted, screen.say) as federation:
        screen.say(f"starting {plan.edge} edge and {plan.gpu} GPU clients of federation {name}")
        course = run(federation, plan, screen.shown())
        screen.close()
        nodes = federation.federation.nodes
        result = up_report.result_of(course, nodes, home)
        if form is Format.JSON:
            typer.echo(json.dumps(up_report.as_json(result, course, nodes)))
        else:
            typer.echo(up_report.summary(result, course, nodes))
        if keep and not course.stopped:
            if resume or course.restarted:
                federation.resume("")  # the runs from now on are new ones
            _keep(federation, screen, name)
        else:
            screen.say("ending every process")
    if course.stopped:
        raise KeyboardInterrupt(_goes_on(plan, course))
    log = federation.supervisor.log(SERVERAPP)
    failure = up_report.failure_of(course, log)
    if failure is not None:
        raise failure


def _goes_on(plan: UpPlan, course: Course) -> str:
    """Return by which command a run that was interrupted goes on; nothing where it cannot."""
    known = course.run if plan.umbel else None
    return "" if known is None else f"`umbel runs resume {known.run}` goes on with it"


def _keep(federation: FlowerUp, screen: _Screen, name: str) -> None:
    from .flower_keeper import hand_over  # noqa: PLC0415

    hand_over(federation.supervisor)
    option = "" if name == "dev" else f" --name {name}"
    screen.say(
        f"federation {name} keeps running; run the app again from its directory:\n"
        f"  FLWR_HOME={federation.client_home} flwr run . umbel --stream\n"
        f"a changed app needs `umbel up` again; `umbel down{option}` ends it"
    )


class _Screen:
    """What a person sees while it goes on."""

    def __init__(self, out: TextIO, plan: UpPlan) -> None:
        self._out, self._plan = out, plan
        self._live: report.Live | None = None
        self._colours = out.isatty() and not os.environ.get("NO_COLOR")

    def shown(self) -> Shown:
        """Return the ways in which a run tells what happens."""
        from .flower_run import Shown  # noqa: PLC0415

        return Shown(self.say, self.begin, self.record, self.tested, self.output)

    def say(self, line: str) -> None:
        """Say a line, above the live one."""
        if self._live is not None:
            self._live.begin(line)
        else:
            self.output(line + "\n")

    def begin(self, run: RunRecord) -> None:
        """Start the live line of a run."""
        rounds = int(run.config["rounds"])
        self._live = report.Live(rounds, self._out, tests=bool(run.config.get(SERVER_TEST)))
        clients = self._plan.edge + self._plan.gpu
        self.say(
            f"{run.run}: {clients} clients, {rounds} rounds, secure aggregation {run.security}"
        )
        if line := introduced(run):
            self.say(line)

    def record(self, record: RoundRecord) -> None:
        """Show a record."""
        if self._live is not None:
            self._live(record)

    def tested(self, record: RoundRecord) -> None:
        """Show an earlier record's test."""
        if self._live is not None:
            self._live.tested(record)

    def output(self, text: str) -> None:
        """Show text as it is; colours on a terminal only."""
        self._out.write(text if self._colours else without_colours(text))
        self._out.flush()

    def close(self) -> None:
        """Leave the live line."""
        if self._live is not None:
            self._live.__exit__()
            self._live = None
