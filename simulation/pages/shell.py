"""The page around everything: head, style, script, and the policy that lets nothing else in.

The policy names the style and the script by their SHA-256, so that a text of a ledger that slipped
through would still run nothing, style nothing and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from .markup import Markup, join, tag
from ... import __version__


def page(title: str, *content: object) -> bytes:
    """Return a whole page, UTF-8."""
    style, script = _own("page.css"), _own("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"umbel {__version__}"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", *content, tag("script", Markup(script)))
    return join(Markup("<!DOCTYPE html>\n"), tag("html", head, body, lang="en")).encode()


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return f"'sha256-{digest}'"
