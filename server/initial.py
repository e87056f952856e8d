"""A run's first model from a file: what an earlier run, or another tool, left as safetensors.

The file must hold the arrays of the app's own model: the same names, shapes and dtypes. It is read
without executing anything; the metadata in it is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors

from ..protocol.errors import PeerError, SettingsError
from ..protocol.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

INIT = "UMBEL_INIT"
"""Environment variable of a ServerApp: path of the file, absolute."""


def first_model(own: Mapping[str, NDArray[Any]], file: Path | None) -> Mapping[str, NDArray[Any]]:
    """Return the model that a run begins with.

    Args:
        own: The app's own initial model.
        file: A safetensors file to take instead; None for `own`.

    Raises:
        SettingsError: There is no such file, it is damaged, or it holds another model.
    """
    if file is None:
        return own
    manifest = Manifest.of(own)
    move = "`umbel runs export` writes a model of the same app"
    try:
        with safetensors.safe_open(file, "numpy") as opened:
            found = opened.get_tensors()
        manifest.check(found, str(file))
    except (OSError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise SettingsError(f"--init {file}", "a safetensors file", str(error), move) from error
    except PeerError as error:
        raise SettingsError(
            f"--init {file}", "the arrays of the app's model", str(error), move
        ) from error
    return {entry.name: found[entry.name] for entry in manifest.entries}
