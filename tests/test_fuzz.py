"""Every parser of foreign bytes, hundreds of spoilt inputs each (fuzzing.py: what it owes)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umbel.tests.fuzz_gateway import sessions
from umbel.tests.fuzz_live import MOST_MB, fire
from umbel.tests.fuzz_table import CALLS, PARSERS, READERS
from umbel.tests.fuzzing import Parser, checked, spoilt

if TYPE_CHECKING:
    from random import Random

SHORT = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Parsed a serial number"),
    pytest.mark.filterwarnings("ignore:Attribute's length"),
]
named = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@named
def test_a_parser_keeps_its_promises_for_spoilt_input(parser: Parser) -> None:
    @SHORT
    @given(st.randoms(use_true_random=False))
    def play(rng: Random) -> None:
        checked(parser, spoilt(parser, rng))

    play()


@named
def test_a_parser_keeps_its_promises_for_monsters(parser: Parser) -> None:
    for data in parser.monsters:
        checked(parser, data)
        if parser.seal is not None:
            checked(parser, parser.seal(data))


@named
def test_a_parser_accepts_what_it_is_meant_for(parser: Parser) -> None:
    """Else only the first check of each would be fuzzed."""
    seeds = parser.seeds if parser.seal is None else [parser.seal(seed) for seed in parser.seeds]
    assert any(checked(parser, seed).accepted for seed in seeds)


def test_a_core_service_under_fire_lives_and_its_members_go_on(tmp_path: Path) -> None:
    report = fire(tmp_path, 3.0)
    assert (report.lived, report.survivors, report.tracebacks) == (True, 3, 0)
    assert report.grown_mb <= MOST_MB
    assert set(report.attacks) == {"session", "upload", "fetch", "tls", "tcp", "local"}


def test_a_device_survives_a_gateway_that_has_gone_mad(tmp_path: Path) -> None:
    ended = sessions(tmp_path, 3.0)
    assert ended.sessions >= 3
    assert sum(ended.reasons.values()) == ended.sessions
    assert ended.rounds == 0


ROOT = Path(__file__).resolve().parents[1]
PARTS = ("protocol", "host", "strategies", "clients", "server", "simulation")


def _reads(file: Path) -> bool:
    """Say whether a file of the package names a function that makes something of bytes."""
    named = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            named |= {node.attr, ast.unparse(node)}
        elif isinstance(node, ast.Name):
            named.add(node.id)
    return not named.isdisjoint(CALLS)


def test_the_table_names_every_file_that_reads_bytes() -> None:
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]
    reading = {
        str(file.relative_to(ROOT))
        for file in files
        if file.name != "messages_pb2.py" and _reads(file)
    }
    assert reading == READERS.keys()


def test_the_table_names_parsers_by_their_names() -> None:
    names = [parser.name for parser in PARSERS]
    assert len(set(names)) == len(names)
    reached = {name for where in READERS.values() for name in where.split("; ")}
    assert len(reached & set(names)) > len(names) / 2
