"""What memory is left: never more than the machine's or the control group's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from umbel.server.core.room import available, of_group

if TYPE_CHECKING:
    from pathlib import Path


def group(folder: Path, limit: str, current: int, inactive: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\nactive_file 9\n")
    return folder


def test_a_control_groups_limit_counts_without_files_that_nobody_uses(tmp_path: Path) -> None:
    assert of_group(group(tmp_path, "1000", 700, 50)) == 350
    assert of_group(group(tmp_path, "1000", 1200, 50)) == 0


def test_no_limit_is_no_bound(tmp_path: Path) -> None:
    assert of_group(tmp_path) == sys.maxsize
    assert of_group(group(tmp_path, "max", 700, 50)) == sys.maxsize


def test_a_machine_has_some_and_not_everything() -> None:
    assert 1 << 20 < available() < sys.maxsize
