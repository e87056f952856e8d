"""HTML and SVG as nested calls, in which whatever is not `Markup` is escaped.

Names, causes and codes of a ledger may come from a hostile client or app: there is no way to put a
plain string into a page but through `text`. What browsers would hide or turn round (control and
direction marks) becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Final

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
_CASED: Final = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
_VOID = frozenset({"meta", "input", "br", "link"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as text of a page, or as what stands between an attribute's quotes."""
    if isinstance(value, Markup):
        return value
    shown = _HIDDEN.sub("\ufffd", str(value))
    return Markup("".join(_ENTITIES.get(letter, letter) for letter in shown))


def join(*children: object) -> Markup:
    """Return children one after another; None and False are left out."""
    return Markup("".join(text(child) for child in children if child not in {None, False}))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Of the element; written here, never read from anywhere.
        children: Markup, or anything else, which is escaped.
        attributes: `class_` is `class`, `stroke_width` is `stroke-width`; None and False leave one
            out, True is one without a value, a float is written short.
    """
    said = "".join(
        f" {_spelled(key)}" if value is True else f' {_spelled(key)}="{text(short(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{join(*children)}</{name}>")


def short(value: object) -> object:
    """Return a coordinate with two digits behind the point, without zeros; others as they are."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
    return value


def _spelled(key: str) -> str:
    name = key.rstrip("_").replace("_", "-")
    return _CASED.get(name, name)
