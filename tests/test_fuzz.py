"""Every parser of foreign bytes, hundreds of spoilt inputs each (fuzzing.py: what it owes)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from umbel.tests.fuzz_clients import CLIENTS
from umbel.tests.fuzz_core import CORE
from umbel.tests.fuzz_files import FILES
from umbel.tests.fuzz_protocol import PROTOCOL
from umbel.tests.fuzz_roles import ROLES
from umbel.tests.fuzz_runs import RUNS
from umbel.tests.fuzzing import Parser, checked, spoilt

if TYPE_CHECKING:
    from random import Random

PARSERS = (*PROTOCOL, *FILES, *RUNS, *CORE, *CLIENTS, *ROLES)
SHORT = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")
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
