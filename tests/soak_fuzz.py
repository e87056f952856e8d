"""A hundred thousand spoilt inputs for every parser, then a core under fire, and a mad gateway.

    python -m umbel.tests.soak_fuzz --inputs 100000 --seed 1 --live 30      part of `make soak`
    python -m umbel.tests.soak_fuzz --only wire --live 0                    some parsers alone

Prints a line for each parser: inputs, accepted, rejected, the worst input's seconds of CPU and KiB
of memory. The first input of each kind that breaks a promise of fuzzing.py is printed whole, in
base64, and the exit status is 1. The same seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from base64 import b64encode
from pathlib import Path
from random import Random

from umbel.protocol.errors import UmbelError
from umbel.tests.fuzz_gateway import sessions
from umbel.tests.fuzz_live import MOST_MB, fire
from umbel.tests.fuzz_table import PARSERS
from umbel.tests.fuzzing import Parser, checked, spoilt

HEAD = ("inputs", "accepted", "rejected", "worst s", "worst KiB")
TRACED = 10
"""Memory is measured for one input of so many: to measure costs more than to parse."""


def main(words: list[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--inputs", type=int, default=100_000, help="inputs for each parser")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="parsers whose names hold this")
    options.add_argument("--part", default="1/1", help="k/n: every n-th parser, from the k-th on")
    options.add_argument("--live", type=float, default=30.0, help="seconds; 0 for none")
    given = options.parse_args(words)
    first, parts = (int(word) for word in given.part.split("/"))
    chosen = [p for p in PARSERS if given.only in p.name][first - 1 :: parts]
    for words_of in ("Parsed a serial number", "Attribute's length"):  # the certificate's library
        warnings.filterwarnings("ignore", message=words_of)
    print(
        f"{'parser':44}{'inputs':>8}{'accepted':>9}{'rejected':>9}{'worst s':>9}{'worst KiB':>10}"
    )
    broken = sum([soaked(parser, given.inputs, given.seed) for parser in chosen])
    if given.live:
        broken += not under_fire(given.live, given.seed)
        broken += not lied_to(given.live, given.seed)
    return min(broken, 1)


def soaked(parser: Parser, inputs: int, seed: int) -> int:
    """Hold a parser to its promises; print its line and return how many kinds of breach there are.

    Raises:
        KeyboardInterrupt: Whoever waits has had enough.
    """
    rng = Random(f"{parser.name} {seed}")  # noqa: S311 - repeatable
    accepted, worst_s, worst_b, began = 0, 0.0, 0, time.monotonic()
    breaches: dict[str, bytes] = {}
    monsters = list(parser.monsters)
    if parser.seal is not None:
        monsters += [parser.seal(data) for data in parser.monsters]
    for count in range(max(inputs, len(monsters))):
        data = monsters[count] if count < len(monsters) else spoilt(parser, rng)
        try:
            verdict = checked(parser, data, trace=count % TRACED == 0 or count < len(monsters))
        except (UmbelError, ArithmeticError, LookupError, OSError, RuntimeError) as error:
            _note(breaches, error, data)
        except (AssertionError, AttributeError, TypeError, ValueError, MemoryError) as error:
            _note(breaches, error, data)
        else:
            accepted += verdict.accepted
            worst_s, worst_b = max(worst_s, verdict.seconds), max(worst_b, verdict.peak)
    count = max(inputs, len(monsters))
    print(
        f"{parser.name[:43]:44}{count:9}{accepted:9}{count - accepted:9}{worst_s:9.2f}"
        f"{worst_b >> 10:9}   {time.monotonic() - began:.0f} s",
        flush=True,
    )
    for what, data in breaches.items():
        print(f"  BROKEN {what}\n  {b64encode(data).decode()}", flush=True)
    return len(breaches)


def _note(breaches: dict[str, bytes], error: Exception, data: bytes) -> None:
    """Keep the shortest input for each place and kind of breach."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} at {place.filename}:{place.lineno}: {str(error)[:100]!r}"
    if what not in breaches or len(data) < len(breaches[what]):
        breaches[what] = data


def under_fire(seconds: float, seed: int) -> bool:
    """Attack a real core; print what came of it and say whether it was as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        report = fire(Path(folder), seconds, seed)
    attacks = ", ".join(f"{count} {way}" for way, count in sorted(report.attacks.items()))
    print(
        f"live: {report.seconds:.0f} s: {attacks}; memory {report.grown_mb:+.1f} MB; "
        f"the core {'lives' if report.lived else 'is gone'}; "
        f"a round of {report.survivors} after it; {report.tracebacks} tracebacks in a log of "
        f"{report.log_kb:.0f} KB",
        flush=True,
    )
    return report.lived and report.grown_mb <= MOST_MB and not report.tracebacks


def lied_to(seconds: float, seed: int) -> bool:
    """Let a device have sessions with a mad gateway; say whether each ended in an outcome."""
    with tempfile.TemporaryDirectory() as folder:
        ended = sessions(Path(folder), seconds, seed)
    reasons = ", ".join(f"{count} {name}" for name, count in sorted(ended.reasons.items()))
    print(f"live: {ended.sessions} sessions with a mad gateway: {reasons}", flush=True)
    return ended.sessions == sum(ended.reasons.values()) > 0


if __name__ == "__main__":
    sys.exit(main())
