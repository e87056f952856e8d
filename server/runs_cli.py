"""`umbel runs`: what this machine knows of past and present runs; nothing here changes one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from . import reviews, run_check, signals_text
from .array_file import write_arrays
from .client_times import KIND as CLIENTS
from .outcome import as_json, tests_of
from .planned_rounds import compared
from .run_directory import RunDirectory, list_runs
from .signals import signals as signals_of
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..protocol.errors import StateError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show, verify, export and resume runs; example: umbel runs show digits-1",
)


Run = Annotated[str, typer.Argument(help="Id of the run, as `umbel runs list` prints it.")]


@app.command("list", epilog="Example: umbel runs list --format json")
def list_(form: Form = Format.TEXT) -> None:
    """List the runs kept on this machine."""
    home = umbel_home(writes=False)
    found = [_line(home, run) for run in list_runs(home)]
    if form is Format.JSON:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo(f"no runs in {home}; `umbel simulate APP` makes one")
        return
    lines = [dict(zip(found[0], found[0], strict=True)), *found]
    wide = {key: max(len(str(line[key])) for line in lines) for key in lines[0]}
    for line in lines:
        cells = (f"{value!s:<{wide[key]}}" for key, value in line.items())
        typer.echo("  ".join(cells).rstrip())


@app.command(epilog="Example: umbel runs show digits-1")
def show(run: Run, form: Form = Format.TEXT) -> None:
    """Show the rounds and events of a run, and check its record."""
    with RunDirectory.open(umbel_home(writes=False), run) as directory:
        rows = directory.ledger.verify()
        latest = directory.latest()
        about: dict[str, Any] = {
            "run": asdict(directory.ledger.run()),
            "ledger": {"rows": rows, "head": directory.ledger.head()[1]},
            "model": None if latest is None else str(directory.round_path(latest)),
            "rounds": [as_json(record) for record in directory.ledger.rounds()],
            "events": [asdict(event) for event in directory.ledger.events()],
        }
        found = reviews.items(directory.ledger)
        about["items"] = [reviews.as_json(item) for item in found]
        waits = reviews.waiting(found)
    if form is Format.JSON:
        typer.echo(json.dumps(about))
    else:
        more = [reviews.move(run, waits)] if waits else []
        typer.echo("\n".join([_as_text(about), *more]))


@app.command(epilog="Example: umbel runs export digits-1 --round 20 -o model.safetensors")
def export(
    run: Run,
    round_: Annotated[
        int | None, typer.Option("--round", help="Number of the round; the newest by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; RUN-ROUND.safetensors.")
    ] = None,
    form: Form = Format.TEXT,
) -> None:
    """Write a round's model as one safetensors file.

    It is hashed again first.
    """
    with RunDirectory.open(umbel_home(writes=False), run) as directory:
        number = directory.latest() if round_ is None else round_
        kept = sorted(directory.committed().intersection(directory.kept()))
        if number not in kept:
            raise StateError(
                str(directory.path), f"one of the rounds {kept}", number, "name one of them"
            )
        arrays, digest = directory.read_round(number), directory.digest(number).hex()
        tests = tests_of(directory.ledger.rounds(), number, digest)
    path = out or Path(f"{run}-{number}.safetensors")
    about = {"run": run, "round": str(number), "digest": digest}
    try:
        temporary = path.with_name(f".{path.name}.part")
        write_arrays(temporary, arrays, about)
        temporary.replace(path)
    except OSError as error:
        raise StateError(
            str(path), "a file that can be written", error, "choose another"
        ) from error
    answer = {**about, "round": number, "file": str(path), "bytes": path.stat().st_size, **tests}
    typer.echo(
        json.dumps(answer)
        if form is Format.JSON
        else f"{path}: round {number} of {run}, {answer['bytes']} bytes, digest {digest}"
        + "".join(f", {name} {value:.4f}" for name, value in tests.items())
    )


@app.command("verify", epilog="Example: umbel runs verify digits-1")
def verify_(run: Run, form: Form = Format.TEXT) -> None:
    """Check a run's record and every kept model.

    Exit status 2 where something is damaged.
    """
    with RunDirectory.open(umbel_home(writes=False), run) as directory:
        found = run_check.verify(directory)
    if form is Format.JSON:
        typer.echo(json.dumps(asdict(found)))
    else:
        typer.echo(_as_lines(found))
    if found.wrong:
        more = f" (and {len(found.wrong) - 1} more)" if len(found.wrong) > 1 else ""
        raise StateError(f"run {run}", "a whole record and whole models", found.wrong[0] + more)


@app.command(epilog="Example: umbel runs signals digits-1")
def signals(run: Run, form: Form = Format.TEXT) -> None:
    """Show what a run's record says of its quality.

    Participation, gaps, durations, reasons.
    """
    with RunDirectory.open(umbel_home(writes=False), run) as directory:
        ledger = directory.ledger
        ledger.verify()
        record, rounds = ledger.run(), ledger.rounds()
        found, plan = signals_of(record, rounds, ledger.events()), compared(record, rounds)
    told = signals_text.as_json(found, plan)
    typer.echo(json.dumps(told) if form is Format.JSON else signals_text.as_text(found, plan))


def _as_lines(found: run_check.Checked) -> str:
    lines = [f"run {found.run}"]
    if found.rows:
        lines.append(f"ledger: {found.rows} rows, chain intact, head {found.head}")
    lines += [f"round {n}: whole, digest {digest}" for n, digest in found.rounds.items()]
    lines += [f"round {n}: lost" for n in found.lost]
    lines += [f"rounds/{name}: not checked" for name in found.passed]
    lines += [f"damaged: {line}" for line in found.wrong]
    return "\n".join(lines)


def _line(home: Path, run: str) -> dict[str, Any]:
    """Return one run's row; a damaged run does not hide the others."""
    try:
        with RunDirectory.open(home, run) as directory:
            record, rounds = directory.ledger.run(), directory.ledger.rounds()
            waits = reviews.waiting(reviews.items(directory.ledger))
            finished = sum(r.outcome == "finished" and r.phase == "train" for r in rounds)
    except StateError as error:
        return {"run": run, "created": "", "rounds": 0, "last": f"damaged: {error}"}
    last = rounds[-1].outcome if rounds else "not started"
    if waits:
        last = f"{last}; {reviews.numbers(waits)} to be decided"
    return {"run": run, "created": record.created, "rounds": finished, "last": last}


def _as_text(about: dict[str, Any]) -> str:
    run = about["run"]
    lines = [
        f"run {run['run']}, created {run['created']}",
        f"secure aggregation: {run['security']}",
        f"ledger: {about['ledger']['rows']} rows, chain intact, head {about['ledger']['head']}",
        f"model: {about['model'] or 'none yet'}",
    ]
    for item in about["rounds"]:
        metrics = " ".join(
            f"{name}=" + ("not finite" if value is None else f"{value:.4g}")
            for name, value in item["metrics"].items()
        )
        lines.append(
            f"round {item['round']}.{item['attempt']} {item['phase']} {item['outcome']}: "
            f"{len(item['survivors'])} of {len(item['roster'])} members, "
            f"{sum(item['seconds'].values()):.2f} s, {item['bytes_up']} B up, "
            f"{item['bytes_down']} B down {item['cause'] or metrics}".rstrip()
        )
    for item in (item for item in about["events"] if item["kind"] != CLIENTS):
        detail = " ".join(f"{name}={value}" for name, value in item["detail"].items())
        said = " ".join(filter(None, (item["kind"], item["node"], item["code"], detail)))
        lines.append(f"event {item['round']}.{item['attempt']} {said}")
    return "\n".join(lines)
