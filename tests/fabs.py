"""Bundles made by hand, good ones and others."""

from __future__ import annotations

import io
import zipfile
from hashlib import sha256

PROJECT = """
[project]
name = "tiny"
version = "{version}"
[tool.flwr.app]
publisher = "tests"
"""


def packed(entries: dict[str, bytes], **attributes: int) -> bytes:
    """Return a zip of these entries; `attributes` are set on each `ZipInfo`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            for attribute, value in attributes.items():
                setattr(entry, attribute, value)
            archive.writestr(entry, data)
    return out.getvalue()


def fab(version: str = "1.0.0", **files: bytes) -> bytes:
    """Return a bundle as Flower builds it, with these files besides its pyproject.toml."""
    named = {name.replace("__", "."): data for name, data in files.items()}
    entries = {"pyproject.toml": PROJECT.format(version=version).encode(), **named}
    lines = [f"{name},{sha256(data).hexdigest()},{8 * len(data)}" for name, data in entries.items()]
    return packed({**entries, ".info/CONTENT": "\n".join(lines).encode()})
