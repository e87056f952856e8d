"""How rows of a ledger are spelled, and chained: a row's hash is also over the hash before it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from ..protocol.canonical import canonical
from ..protocol.errors import SettingsError


def link(last: bytes, table: str, row: Mapping[str, object]) -> bytes:
    """Return the hash of a row of a table."""
    return hashlib.sha256(last + canonical({"table": table, **row})).digest()


def linked(last: bytes, table: str, row: Mapping[str, object]) -> bytes | None:
    """Return the hash of a row as it was read; None for values that no row was written with."""
    try:
        return link(last, table, row)
    except SettingsError:
        return None


def dump(value: object) -> str:
    """Return JSON in one spelling; a number that is not finite becomes its name."""
    if isinstance(value, Mapping):
        value = {
            k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in value.items()
        }
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
