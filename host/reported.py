"""What reports and records say of the machine and of what is installed on it."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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


def computed_by(umbel: str) -> dict[str, str]:
    """Return what decides the last bits of a run's numbers, for the run's own record."""
    packages = {name: _version(name) for name in ("numpy", "torch")}
    return {
        "umbel": umbel,
        "python": platform.python_version(),
        **{name: found for name, found in packages.items() if found is not None},
        "processor": processor(),
    }


def processor() -> str:
    """Return the processor's model name; Linux tells it in one place only."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
