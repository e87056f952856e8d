"""Every finding that a doctor can make is provoked by a test."""

from __future__ import annotations

from umbel.clients import doctor as client
from umbel.server import doctor as server
from umbel.tests import (
    test_doctor,
    test_doctor_cli,
    test_doctor_dial,
    test_doctor_files,
    test_doctor_line,
    test_doctor_machine,
    test_doctor_state,
    test_doctor_tls,
    test_server_doctor_files,
    test_server_doctor_live,
)
from umbel.tests.provoked import KINDS

MODULES = (
    test_doctor,
    test_doctor_cli,
    test_doctor_dial,
    test_doctor_files,
    test_doctor_line,
    test_doctor_machine,
    test_doctor_state,
    test_doctor_tls,
    test_server_doctor_files,
    test_server_doctor_live,
)


def test_each_finding_is_provoked_once() -> None:
    cases = [*test_doctor_line.BY_CORE, *(name for module in MODULES for name in module.CASES)]
    assert sorted(cases) == sorted(KINDS)


def test_each_id_is_in_one_table() -> None:
    tables = {id(table): table for table in (*client.TABLES, *server.TABLES)}
    assert sum(len(table.kinds) for table in tables.values()) == len(KINDS)


def test_meanings_are_distinct() -> None:
    assert len({kind.meaning for kind in KINDS.values()}) == len(KINDS)
