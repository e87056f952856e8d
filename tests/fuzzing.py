"""What every parser of foreign bytes owes, whatever comes: the properties, and how inputs are made.

For any bytes at all a parser

    1  returns, or raises one of the errors that it declares, and nothing else
    2  says what is wrong in one line of bounded length that steers no terminal, and repeats at
       most `ECHO` characters of the input at a stretch, and no secret
    3  takes memory in proportion to the input (`growth` times, and `spare`)
    4  ends: `HANG` seconds of CPU are not a figure, they are a way to notice quadratic work
    5  gives for what it accepted a form that is accepted again, and means the same

`fuzz_table.py` lists the parsers, `test_fuzz.py` runs a few hundred inputs each, `soak_fuzz.py` a
hundred thousand.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from umbel.tests.fuzz_mutators import MONSTERS, MUTATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from umbel.protocol.errors import UmbelError

ECHO = 256
LINE = 1200
GROWTH = 64
HANG = 5.0


@dataclass(frozen=True, kw_only=True)
class Parser:
    """One door for foreign bytes."""

    name: str
    parse: Callable[[bytes], Any]
    """Takes bytes; what it returns can be compared, where `again` is given."""
    errors: tuple[type[UmbelError], ...]
    """What it may raise."""
    make: Callable[[], Sequence[bytes]]
    """Valid inputs, by the project's own encoders."""
    form: str = "bytes"
    seal: Callable[[bytes], bytes] | None = None
    """Signs, or sums, spoilt bytes anew, so that the spoilt part is looked at too."""
    again: Callable[[Any], bytes] | None = None
    growth: int = GROWTH
    """Bytes of memory for each byte of input."""
    spare: int = 4 << 20
    """Bytes of memory that do not grow with the input."""
    echo: int = ECHO
    """Characters of the input that a message may repeat at a stretch."""
    secrets: tuple[bytes, ...] = ()
    """What no message may hold."""

    @cached_property
    def seeds(self) -> Sequence[bytes]:
        """The valid inputs, made once."""
        return self.make()

    @property
    def monsters(self) -> tuple[bytes, ...]:
        """Inputs that are always tried."""
        return (*self.seeds, *MONSTERS["bytes"], *MONSTERS.get(self.form, ()))


class Verdict(NamedTuple):
    """What a parser made of one input."""

    accepted: bool
    seconds: float
    """Of CPU."""
    peak: int
    """Bytes that Python allocated, 0 where nobody looked."""


def spoilt(parser: Parser, rng: Random) -> bytes:
    """Return an input: a seed after a few mutations, mostly sealed again, or random bytes."""
    what = rng.randrange(40)
    if what == 0:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(100)))
    data = rng.choice(parser.seeds)
    if what == 1:
        return data
    sealed = parser.seal is not None and rng.randrange(4) > 0
    if parser.seal is not None and not sealed:
        data = parser.seal(data)
    ways = MUTATORS[parser.form]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(ways)(rng, data)
    return parser.seal(data) if parser.seal is not None and sealed else data


def checked(parser: Parser, data: bytes, *, trace: bool = True) -> Verdict:
    """Hold a parser to its duties for one input; `trace` measures memory, which costs time."""
    if trace:
        tracemalloc.start()
    accepted, found = True, None
    began = time.process_time()
    try:
        found = parser.parse(data)
    except parser.errors as error:
        accepted = False
        said = str(error)
        del error
        _check_line(parser, data, said)
    finally:
        seconds = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1] if trace else 0
        if trace:
            tracemalloc.stop()
    assert seconds < HANG, f"{parser.name}: {seconds:.1f} s for {len(data)} bytes"
    allowed = parser.growth * len(data) + parser.spare
    assert peak <= allowed, f"{parser.name}: {peak} bytes of memory for {len(data)}"
    if accepted and parser.again is not None:
        once = parser.again(found)
        assert parser.parse(once) == found, f"{parser.name}: another meaning after a round trip"
    return Verdict(accepted, seconds, peak)


def _check_line(parser: Parser, data: bytes, said: str) -> None:
    """Look at what an error says."""
    assert len(said) <= LINE, f"{parser.name}: {len(said)} characters: {said[:200]}"
    assert said.isprintable(), f"{parser.name}: {said!a}"
    shown = data.decode("utf-8", "replace")
    for at in range(0, len(said) - parser.echo, 16):
        assert said[at : at + parser.echo] not in shown, (
            f"{parser.name} repeats its input: {said[:400]}"
        )
    for secret in parser.secrets:
        assert secret.hex() not in said, f"{parser.name} tells a secret"
        assert repr(secret)[2:-1] not in said, f"{parser.name} tells a secret"
