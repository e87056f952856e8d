"""Every time that the package waits, found in its own source: for `doctor --times`.

The same list stands with its consequences in docs/operations.md; a test compares the two. A time is
a module's number whose name or docstring says so, a `timedelta` of a module, a number given for
`timeout`, `wait`, `grace` and the like, or an option of gRPC in milliseconds. How often something
is looked at is none: nothing ends by it.
"""

from __future__ import annotations

import ast
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = re.compile(r"_(S|DAYS)$|TIMEOUT|KEEPALIVE|HANDSHAKE|GRACE|PATIENCE|SUCCESSOR")
_LOOKS = re.compile(r"(POLL|LOOK|EVERY|STATE|TASKS|DAY)_S$|_TICK$")
_SAID = re.compile(r"\bSeconds\b|\bHow long\b|\bPause before\b|\bdays\b")
_KEYWORDS = {"timeout", "wait", "grace", "lease", "patience", "years", "days"}
_UNITS = {"_DAYS": 86400, "days": 86400, "years": 365 * 86400}


class Time(NamedTuple):
    """How long something is waited for."""

    where: str
    """`file name`, from the package's root."""
    value: str
    """As `text` says it."""
    meaning: str
    """What the source says of it; empty where nothing stands there."""


def times(root: Path, parts: tuple[str, ...]) -> list[Time]:
    """Return the times of every file of some folders below `root`."""
    found: dict[str, Time] = {}
    for part in parts:
        for path in sorted((root / part).glob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            where = path.relative_to(root).as_posix()
            for name, seconds, meaning in [*_named(tree), *_given(tree)]:
                place = f"{where} {name}"
                found[place] = Time(place, text(seconds), meaning)
    return list(found.values())


def listed(parts: tuple[str, ...], form: str) -> None:
    """Print the times of some parts of the installed package, as text or JSON."""
    found = times(Path(__file__).resolve().parents[1], parts)
    if form == "json":
        typer.echo(json.dumps([time._asdict() for time in found]))
        return
    wide = max(len(time.where) for time in found)
    for time in found:
        typer.echo(f"{time.value:>8}  {time.where:{wide}}  {time.meaning}".rstrip())


def text(seconds: float) -> str:
    """Return seconds as the table has them: in days or hours if those are whole."""
    for unit, size in (("d", 86400), ("h", 3600)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _named(tree: ast.Module) -> Iterator[tuple[str, float, str]]:
    """Yield the module's own numbers that are times."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        said = _docstring(after) if after is not None else ""
        for name, value in zip(map(ast.unparse, names), values, strict=False):
            seconds = _number(value)
            is_time = (
                isinstance(value, ast.Call) or _NAMES.search(name) or (said and _SAID.search(said))
            )
            if seconds is not None and is_time and not _LOOKS.search(name):
                unit = next((u for suffix, u in _UNITS.items() if name.endswith(suffix)), 1)
                yield name, seconds * unit, " ".join(said.split())


def _given(tree: ast.Module) -> Iterator[tuple[str, float, str]]:
    """Yield the times that stand in a call, a default or an option of gRPC."""
    for node in ast.walk(tree):
        found: Iterator[tuple[str, float]] = iter(())
        if isinstance(node, ast.Call):
            found = _of_call(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = _of_function(node)
        elif isinstance(node, ast.Tuple) and len(node.elts) == len(("name", "value")):
            found = _of_option(node)
        yield from ((name, seconds, "") for name, seconds in found)


def _of_option(node: ast.Tuple) -> Iterator[tuple[str, float]]:
    name, seconds = node.elts[0], _number(node.elts[1])
    if isinstance(name, ast.Constant) and str(name.value).endswith("_ms") and seconds:
        yield str(name.value), seconds / 1000


def _of_call(node: ast.Call) -> Iterator[tuple[str, float]]:
    called = ast.unparse(node.func)
    for word in node.keywords if called != "timedelta" else ():
        seconds = _number(word.value)
        if word.arg in _KEYWORDS and seconds is not None:
            yield f"{called} {word.arg}", seconds
    if node.args and called.rpartition(".")[2] in {"wait", "join", "sleep"}:
        seconds = _number(node.args[-1])
        if seconds:
            yield called, seconds


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, float]]:
    of = node.args
    pairs = [
        *zip(of.args[::-1], of.defaults[::-1], strict=False),
        *zip(of.kwonlyargs, of.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        seconds = None if default is None else _number(default)
        if argument.arg in _KEYWORDS and seconds is not None:
            yield f"{node.name} {argument.arg}", seconds * _UNITS.get(argument.arg, 1)


def _docstring(node: ast.stmt) -> str:
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _number(node: ast.expr) -> float | None:
    """Return the number of seconds that an expression without names is, if it is one."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "timedelta":
        return timedelta(
            **{k.arg or "": _number(k.value) or 0.0 for k in node.keywords}
        ).total_seconds()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else left * right
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None
