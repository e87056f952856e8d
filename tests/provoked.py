"""Findings of the doctors that a test has provoked, and what each of them owes.

A test module has a table `CASES` of ids with what provokes them, and tests each by `shown`;
test_doctor_table.py compares all these tables with the findings that the doctors can make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.clients import doctor as client
from umbel.host.doctor import PROBLEM, WARNING
from umbel.protocol.errors import LONGEST
from umbel.server import doctor as server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from umbel.host.doctor import Finding

KINDS = {
    name: kind for table in (*client.TABLES, *server.TABLES) for name, kind in table.kinds.items()
}
"""Every finding."""


def shown(name: str, findings: Iterable[Finding]) -> Finding:
    """Return the finding of an id, which must be there, whole and by itself among its like."""
    found = list(findings)
    ids = [finding.id for finding in found]
    assert ids.count(name) == 1, ids
    one = found[ids.index(name)]
    assert one.severity == KINDS[name].severity
    assert one.line
    for text in (one.line, one.fix):
        assert text.isprintable()
        assert len(text) <= LONGEST
        assert "PRIVATE KEY" not in text
    assert one.fix or one.severity not in {PROBLEM, WARNING}, "a problem without the next move"
    return one
