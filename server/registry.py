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
    from collections.abc import Callable, Mapping
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


class Registry:
    """The registry as it is now: read anew whenever its file has changed."""

    def __init__(self, federation: Path, warn: Callable[[str], None]) -> None:
        """Read it.

        Args:
            federation: The federation's directory.
            warn: Takes a line about a file that could not be read again; what was read before
                stays.

        Raises:
            StateError: As `read`.
        """
        self._federation, self._warn = federation, warn
        self._seen = self._stamp()
        self._nodes: Mapping[str, Node] = read(federation)

    def __call__(self) -> Mapping[str, Node]:
        """Return the nodes by their key in Flower, hex; the same object until it changes."""
        found = self._stamp()
        if found != self._seen:
            self._seen = found
            try:
                self._nodes = read(self._federation)
            except StateError as error:
                self._warn(f"{error}; the nodes that were known before stay")
        return self._nodes

    def by_id(self) -> dict[str, Node]:
        """Return the nodes by the id of their certificates, hex."""
        return {node.id: node for node in self().values()}

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = (self._federation / FILE).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
