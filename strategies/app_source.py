"""Where a process of its own finds what was handed to `umbel.client_app` and its like.

It imports the app anew, from the bundle that Flower installed: an object cannot be carried
over, its name can. So a task is a class or an object that a module of the app has under a name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .app import AppRef
from .task import Task
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from types import ModuleType


def source_of(found: object) -> AppRef:
    """Return the module-level name of a task, a class of tasks, or an app.

    Raises:
        SettingsError: It has none: it was made inside a function, or in place.
    """
    if isinstance(found, type):
        return _named(sys.modules[found.__module__], found.__qualname__, found)
    own = sys.modules[type(found).__module__]
    others = [module for module in list(sys.modules.values()) if module is not own]
    for module in (own, *others):
        if module is not None and getattr(module, "__file__", None):
            for name, value in list(vars(module).items()):
                if value is found and module.__name__ != "__main__":
                    return _named(module, name, found)
    if isinstance(found, Task) and not vars(found):  # made without arguments: the class is enough
        return source_of(type(found))
    what = f"{type(found).__name__}(...)"
    raise SettingsError("umbel", "a task or app that a module has under a name", what, "name it")


def _named(module: ModuleType, name: str, found: object) -> AppRef:
    """Return the reference, after looking whether it leads back to the object."""
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is not found or not getattr(module, "__file__", None):
        place = f"{module.__name__}:{name}"
        raise SettingsError("umbel", "a name in a module", place, "define it at the top level")
    file = Path(str(module.__file__)).resolve()
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    return AppRef(file.parents[depth], f"{module.__name__}:{name}")
