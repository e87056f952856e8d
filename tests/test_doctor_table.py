"""Every finding that a doctor can make is provoked by a test."""

from __future__ import annotations

from umbel.tests import (
    test_doctor,
    test_doctor_cli,
    test_doctor_dial,
    test_doctor_files,
    test_doctor_line,
    test_doctor_machine,
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
    test_doctor_tls,
    test_server_doctor_files,
    test_server_doctor_live,
)


def test_each_finding_is_provoked_once() -> None:
    cases = [name for module in MODULES for name in module.CASES]
    assert sorted(cases) == sorted(KINDS)


def test_meanings_are_distinct() -> None:
    assert len({kind.meaning for kind in KINDS.values()}) == len(KINDS)
