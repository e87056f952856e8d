"""What every report says of the machine and of what is installed on it."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil  # type: ignore[import-untyped]

PACKAGES = (
    *("flwr", "grpcio", "cryptography", "numpy", "protobuf", "torch", "numba", "safetensors"),
    *("psutil", "click", "typer", "rich", "uvicorn", "starlette", "httpx", "ml_dtypes"),
)


def versions(umbel: str) -> dict[str, Any]:
    """Return what is installed, and on what; of variables the names alone."""
    return {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "umbel": umbel,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "packages": {name: _version(name) for name in PACKAGES},
        "variables": sorted(name for name in os.environ if name.startswith(("UMBEL_", "FLWR_"))),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
