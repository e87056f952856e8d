"""What runs the tests of one copy of the package for mutants.py, a fork for each guard.

The heavy modules are imported once, here, and the package never is: each fork imports it from
the copy, as it is then. Lines come in, each a JSON list of tests; a line goes out for each, the
verdict: [pytest's exit code, whether every failure was a fair one, what failed].
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import cryptography.x509.verification  # noqa: F401 - so that no fork has to
import google.protobuf.message  # noqa: F401
import numpy as np  # noqa: F401
import pytest

QUIET = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
LIMIT_S = 60
"""Seconds for one test. Removing a guard may make it wait for ever; that is no fair failure."""


class Watch:
    """A pytest plugin that notes how tests fail: fairly is by an assertion or an error of ours."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self.failures: list[tuple[bool, str]] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[object]) -> None:
        """Note one failure."""
        from umbel.protocol.errors import UmbelError  # noqa: PLC0415 - the copy's, in the fork

        if call.excinfo is not None:
            text = call.excinfo.exconly().splitlines()[0]
            ours = (AssertionError, UmbelError, pytest.fail.Exception)
            fair = issubclass(call.excinfo.type, ours) and "Timeout" not in text
            self.failures.append((fair and call.when == "call", text))


def verdict(root: Path, tests: list[str]) -> list[object]:
    """Run tests on the copy at `root`, which must be what they import."""
    sys.path.insert(0, str(root.parent))
    import umbel  # noqa: PLC0415 - not before the fork

    if Path(umbel.__file__).resolve().parent != root:
        return [-1, False, f"{umbel.__file__} was imported, not {root}"]
    watch, said = Watch(), io.StringIO()
    with redirect_stdout(said):
        options = [*QUIET, f"--rootdir={root}", "-o", f"timeout={LIMIT_S}"]
        code = pytest.main([*options, *tests], plugins=[watch])
    fair = bool(watch.failures) and all(fair for fair, _ in watch.failures)
    why = "; ".join(text for _, text in watch.failures) or said.getvalue()[-2000:]
    return [int(code), fair, why]


def main(root: Path) -> None:
    """Answer line by line until there are no more."""
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, json.dumps(verdict(root, json.loads(line))).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read().decode()
        os.waitpid(child, 0)
        print(answer or json.dumps([-1, False, "the process ended"]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
