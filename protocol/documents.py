"""JSON and TOML that somebody else wrote: one error, whatever is wrong with them.

Python's readers raise more than their own errors: RecursionError where brackets nest, ValueError
for an integer of thousands of digits; and what they return can break whoever uses it: a table a
thousand levels deep, an integer that no float holds. Here such texts are refused at the door, by
ValueError in one short line, which a caller turns into the error of its kind.

    JSON    UTF-8; no NaN and no Infinity, which JSON does not have, nor 1e999, which becomes
            one; integers of at most 64 bits; no key twice in an object, of which one reader
            takes the first value and another the last
    TOML    tables at most `MAX_DEPTH` deep; at most `MAX_TOML` characters, and `MAX_DOTS` dots
            to a line: tomllib takes quadratic time for a dotted key, 8 s for one of 60 KB.
            Integers may be of any size, so that who reads the key can name it
"""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any

MAX_DEPTH = 32
MAX_TOML = 1 << 20
MAX_DOTS = 1000
_DIGITS = 20
"""Characters of the longest integer of 64 bits, with its sign."""


def read_json(data: bytes | bytearray | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none.
    """
    try:
        return _JSON.decode(data if isinstance(data, str) else data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("it nests too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (at line {error.lineno})") from None


def read_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        ValueError: It is none; the message ends with the line where tomllib gives one.
    """
    if len(text) > MAX_TOML:
        raise ValueError(f"more than {MAX_TOML} characters")
    _check_keys(text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it nests too deep") from None
    except ValueError:  # int() of more digits than Python converts
        raise ValueError("an integer of thousands of digits") from None
    _check_depth(table)
    return table


def _check_keys(text: str) -> None:
    """Refuse a line that could hold a key of very many parts."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"more than {MAX_DOTS} dots (at line {number})")


def _check_depth(table: dict[str, Any]) -> None:
    """Refuse what nests too deep; without recursion."""
    level: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner.extend(node.values())
            elif isinstance(node, list):
                inner.extend(node)
        if not inner:
            return
        level = inner
    raise ValueError("it nests too deep")


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError("an integer beyond 64 bits")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # it could not be said in JSON again
        raise ValueError("a number that no float holds")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key twice in one object")
    return table


def _no_constant(name: str) -> float:
    raise ValueError(f"{name}, which JSON does not have")


_JSON = json.JSONDecoder(
    parse_int=_integer, parse_float=_real, parse_constant=_no_constant, object_pairs_hook=_object
)
