"""Finding the files of real sets in packages that somebody else publishes; nothing is downloaded.

A package is looked up and never imported where its file alone is wanted: most bring libraries that
no device needs for a table of numbers.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ...protocol.errors import SettingsError


def file_of(package: str, inside: str, install: str) -> Path:
    """Return a file of an installed package.

    Args:
        package: Its name in Python.
        inside: The file's path below the package.
        install: What to type when the package is not there.

    Raises:
        SettingsError: The package is not installed, or this version of it has no such file.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SettingsError(f"package {package}", "it to be installed", "it is not", install)
    path = Path(spec.origin).parent / inside
    if not path.is_file():
        raise SettingsError(f"package {package}", f"the file {inside}", "none", install)
    return path
