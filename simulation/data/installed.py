"""Real sets in packages that somebody else publishes: finding them, and keeping what was made.

Nothing is downloaded. A package is looked up, and imported only where nothing else can read its
file: most bring libraries that no device needs for a table of numbers.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .mapped import ClientData
from ...host.places import umbel_home
from ...protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable


def file_of(package: str, inside: str, install: str) -> Path:
    """Return a file, or a folder, of an installed package.

    Args:
        package: Its name in Python.
        inside: The path below the package; it may be empty.
        install: What to type when the package is not there.

    Raises:
        SettingsError: The package is not installed, or this version of it has no such file.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SettingsError(f"package {package}", "it to be installed", "it is not", install)
    path = Path(spec.origin).parent / inside
    if not path.exists():
        raise SettingsError(f"package {package}", f"the file {inside}", "none", install)
    return path


def kept(name: str, package: str, make: Callable[[], ClientData]) -> ClientData:
    """Return a set that was made before, mapped from `$UMBEL_HOME/data`; else make and keep it.

    Every process of a run then has the same pages. Who may not read or write there (a device's
    policy keeps its user code out) has the set in memory.

    Args:
        name: Of the set, and of what decides its content.
        package: The distribution that it is made from; its version is part of the name.
        make: Makes it.

    Raises:
        StateError: What was kept is damaged.
    """
    own = f"{name}-{version(package)}"
    place = umbel_home(writes=False) / "data" / own
    try:
        if place.is_dir():
            return ClientData.open(place, verify=True)
    except StateError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
    made = make()
    try:
        made.write(umbel_home() / "data" / own)
    except StateError:
        return made  # another process was faster, or nothing can be written there
    return ClientData.open(place)
