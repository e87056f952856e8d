"""How much a base installation takes on disk: umbel and what it requires, without any extra.

Summed are the files that each distribution's own record names, as far as they are there: with
compiled bytecode where the installer wrote it, without what the interpreter compiled later.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_REQUIRED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?[^;]*(?:;(.*))?$")
_BYTES = 1 << 20


def install_mib(name: str) -> float:
    """Return the MiB of a distribution and of everything that it requires."""
    found: dict[str, int] = {}
    _add(name, frozenset(), found)
    return sum(found.values()) / _BYTES


def _add(name: str, extras: frozenset[str], found: dict[str, int]) -> None:
    key = re.sub(r"[-_.]+", "-", name).lower()
    try:
        dist = distribution(name)
    except PackageNotFoundError:
        return  # of another platform or Python: not installed here
    known = key in found
    found[key] = found.get(key) or _size(dist)
    for line in dist.requires or ():
        match = _REQUIRED.match(line)
        if match is None:
            continue
        wanted, more, marker = match[1], match[2] or "", match[3] or ""
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if extra is not None and extra[1] not in extras:
            continue
        if extra is None and known:
            continue
        _add(wanted, frozenset(filter(None, re.split(r"\s*,\s*", more))), found)


def _size(dist: Distribution) -> int:
    """Return the bytes of a distribution's files."""
    files = [Path(str(dist.locate_file(file))) for file in dist.files or ()]
    code = [file for file in files if file.suffix == ".py" and ".dist-info" not in str(file)]
    if not code:  # an editable installation: the package's own folders
        package = Path(__file__).resolve().parents[1]
        parts = {path.parent for path in package.glob("*/__init__.py")} - {package / "tests"}
        files = [*package.glob("*.py"), *(file for part in parts for file in part.rglob("*.py"))]
    return sum(file.stat().st_size for file in set(files) if file.is_file())
