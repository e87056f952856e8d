"""The federation's registry: which certificates belong to which Flower node.

`nodes.json` in the federation's directory, written at enrolment: a list of objects with `name`,
`id` (32 hex digits), `site`, `flower_key` (hex of the node's public key as Flower's node list
gives it), `tls_fingerprint` and `signing_fingerprint` (64 hex digits). So an invitation to a
Flower node carries the ticket of its certificate and of no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..protocol.documents import read_json
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "nodes.json"
_HEX = {"id": 32, "tls_fingerprint": 64, "signing_fingerprint": 64}


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One enrolled node."""

    name: str
    id: str
    """The node id of its certificates, hex."""
    site: str
    flower_key: str
    """Its public key in Flower, hex."""
    tls_fingerprint: str
    signing_fingerprint: str

    @classmethod
    def of(cls, row: object, where: str) -> Node:
        """Check one row of the file.

        Raises:
            StateError: A field is missing, unknown or has another form.
        """
        names = cls.__slots__
        if not isinstance(row, dict) or set(row) != set(names):
            raise StateError(where, f"an object with {', '.join(names)}", row, _MOVE)
        for name, value in row.items():
            wanted = rf"[0-9a-f]{{{_HEX[name]}}}" if name in _HEX else r".{1,4096}"
            printable = isinstance(value, str) and value.isprintable()
            if not printable or not re.fullmatch(wanted, value):
                raise StateError(f"{where}: {name}", wanted, value, _MOVE)
        return cls(**row)


_MOVE = "restore the file, or enrol the node again"


def read(federation: Path) -> dict[str, Node]:
    """Return the nodes of a federation's directory by their public key in Flower, hex.

    Raises:
        StateError: The file is missing or damaged, or two rows share an id or a key.
    """
    path = federation / FILE
    try:
        rows = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(str(path), "the registry of nodes", error, _MOVE) from error
    if not isinstance(rows, list):
        raise StateError(str(path), "a list of nodes", type(rows).__name__, _MOVE)
    nodes = [Node.of(row, f"{path}: node {i}") for i, row in enumerate(rows)]
    by_key = {node.flower_key: node for node in nodes}
    if len(by_key) != len(nodes) or len({node.id for node in nodes}) != len(nodes):
        raise StateError(str(path), "distinct ids and keys", "a repeated one", _MOVE)
    return by_key
