"""Kernels that numba compiles: made in a thread beside the first use that would be worth it.

A module whose kernels have an equal in numpy is loaded by `load_beside`, which nobody waits for:
until it is there, and wherever numba (the extra `[fast]`) is not, the equal does the work. So no
round stands still for a compiler, and a process with small sums never loads one.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any


class Compiled:
    """One such module. It may have a function `fits`, which says whether it is worth while here."""

    def __init__(self, name: str, package: str) -> None:
        """Load nothing yet; `name` is relative to `package`."""
        self.module: Any = None
        """The module, once its kernels are compiled."""
        self._name, self._package = name, package
        self._lock = threading.Lock()
        self._tried = self._begun = False

    def load(self) -> bool:
        """Load it now, once a process; say whether it is there."""
        with self._lock:
            if not self._tried:
                self._tried = True
                self.module = self._loaded()
        return self.module is not None

    def load_beside(self) -> None:
        """Load it in a thread of its own, once."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self.load, name="umbel-compile").start()

    def _loaded(self) -> Any:
        try:
            module = importlib.import_module(self._name, self._package)
        except ImportError:
            return None
        fits = getattr(module, "fits", None)
        return module if fits is None or fits() else None
