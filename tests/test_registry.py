"""The registry of a federation: read whole, or not at all with the row and the field named."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import StateError
from umbel.server.registry import FILE, Node, read
from umbel.tests.federations import made

if TYPE_CHECKING:
    from pathlib import Path


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Return a good row with some fields changed."""
    return {
        "name": f"edge-{number}",
        "id": f"{number:032x}",
        "site": "north",
        "flower_key": f"{number:04x}",
        "tls_fingerprint": f"{number:064x}",
        "signing_fingerprint": f"{number + 100:064x}",
        **changes,
    }


def write(folder: Path, rows: object) -> Path:
    """Write the file and return its folder."""
    (folder / FILE).write_text(json.dumps(rows))
    return folder


def test_what_enrolment_writes_is_read(tmp_path: Path) -> None:
    federation = made(tmp_path / "dev", 3)
    found = read(federation.folder)
    assert [asdict(node) for node in found.values()] == [asdict(n) for n in federation.nodes]
    assert list(found) == [node.flower_key for node in federation.nodes]


def test_nodes_are_found_by_their_key_in_flower(tmp_path: Path) -> None:
    found = read(write(tmp_path, [row(1), row(2)]))
    assert found["0002"] == Node(**row(2))
    assert read(write(tmp_path, [])) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "00" * 15),
        ("id", "AB" * 16),
        ("id", 7),
        ("tls_fingerprint", "0" * 63),
        ("tls_fingerprint", "g" * 64),
        ("signing_fingerprint", None),
        ("name", ""),
        ("name", "edge\x1b[2J"),
        ("site", "\u202enorth"),
        ("site", ["north"]),
        ("flower_key", ""),
        ("flower_key", "a" * 4097),
        ("name", "a\nb"),
    ],
)
def test_a_field_of_another_form_is_named(tmp_path: Path, field: str, value: object) -> None:
    write(tmp_path, [row(1), row(2, **{field: value})])
    with pytest.raises(StateError, match=rf"nodes\.json: node 1: {field}: expected ") as caught:
        read(tmp_path)
    assert str(caught.value).endswith("; restore the file, or enrol the node again")


@pytest.mark.parametrize(
    "broken",
    [{"admin": True}, {key: value for key, value in row(1).items() if key != "site"}, "edge-1", 3],
)
def test_a_row_with_other_fields_is_refused(tmp_path: Path, broken: object) -> None:
    bad = {**row(1), **broken} if broken == {"admin": True} else broken
    write(tmp_path, [bad])
    with pytest.raises(StateError, match="node 0: expected an object with name, id, site"):
        read(tmp_path)


@pytest.mark.parametrize("shared", ["id", "flower_key"])
def test_two_nodes_share_neither_id_nor_key(tmp_path: Path, shared: str) -> None:
    write(tmp_path, [row(1), row(2, **{shared: row(1)[shared]})])
    with pytest.raises(StateError, match="expected distinct ids and keys, got a repeated one"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["", "[", "\xff", '{"edge-1": {}}', "null", "[" * 9999])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(StateError, match=r"nodes\.json: expected ") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="expected the registry of nodes"):
        read(tmp_path)
