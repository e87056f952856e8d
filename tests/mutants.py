"""Take each guard out of a copy and see the attack that it stops get through.

    python tests/mutants.py [WORD ...]     all guards, or those whose test or source has a word

For every line of the tables (guards.py, guards_*.py) a copy of the package
loses one guard, and the attack's test runs on the copy. It has to fail, and for a reason of its
own: an assertion, or an error of ours that is not the expected one. A crash (an import, a name, an
index) proves nothing and counts as a survivor. Before that, no attack may get through the whole
package.

As many copies as there are processors are tried at a time; each has a worker of its own.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from umbel.tests import (
    guards,
    guards_care,
    guards_doctor,
    guards_issuer,
    guards_joining,
    guards_members,
    guards_owner,
    guards_policy,
    guards_server,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from umbel.tests.guards import Guard

GUARDS = [
    *guards.GUARDS, *guards_members.GUARDS,
    *guards_server.GUARDS, *guards_care.GUARDS, *guards_policy.GUARDS,
    *guards_joining.GUARDS, *guards_issuer.GUARDS, *guards_owner.GUARDS,
    *guards_doctor.GUARDS,
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED, NOTHING = 0, 1, 5  # pytest's exit codes
_LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "build", "dist", "docs", "examples", "benchmarks"
)


class Verdict(NamedTuple):
    """What the tests on one copy came to."""

    code: int
    fair: bool
    """Whether every failure was an assertion or an error of ours."""
    why: str


class Copy:
    """A copy of the package and of its tests, and the process that runs them."""

    def __init__(self, folder: Path) -> None:
        """Copy to `folder`/umbel."""
        self.root = folder / "umbel"
        shutil.copytree(ROOT, self.root, ignore=_LEFT_OUT)
        worker = [sys.executable, "-P", str(self.root / "tests" / "mutants_worker.py")]
        self._process = subprocess.Popen(
            [*worker, str(self.root)],
            cwd=self.root,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str]) -> Verdict:
        """Run tests on the copy as it is."""
        if not tests:
            return Verdict(NOTHING, fair=False, why="no test")
        names = [f"{self.root}/tests/test_attacks{test.replace('::', '.py::')}" for test in tests]
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return Verdict(-1, fair=False, why="the worker has no pipes")
        stdin.write(json.dumps(names) + "\n")
        stdin.flush()
        answer = stdout.readline()
        return Verdict(*json.loads(answer or '[-1, false, "the worker ended"]'))

    def without(self, guard: Guard) -> str:
        """Try the guard's attack without the guard; return why it survived, or nothing."""
        path = self.root / guard.file
        source = path.read_text("utf-8")
        changed = source
        for piece, replacement in guard.pieces:
            if changed.count(piece) != 1:
                return f"occurs {changed.count(piece)} times: {piece}"
            changed = changed.replace(piece, replacement)
        try:
            _write(path, changed)
            verdict = self.run([guard.test])
        finally:
            _write(path, source)
        if verdict.code == PASSED:
            return "the attack still fails: another guard stops it, or the test is blind"
        return "" if verdict.code == FAILED and verdict.fair else verdict.why

    def close(self) -> None:
        """End the worker."""
        self._process.communicate()


def _write(path: Path, source: str) -> None:
    """Write a module; what was compiled from another version of it goes."""
    path.write_text(source, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def gets_through(tests: Sequence[str], copies: Sequence[Copy]) -> str:
    """Run every attack on whole copies; return what went wrong, or nothing."""
    distinct = list(dict.fromkeys(tests))
    shares = [distinct[i :: len(copies)] for i in range(len(copies))]
    with ThreadPoolExecutor(len(copies)) as pool:
        verdicts = pool.map(lambda copy, share: copy.run(share), copies, shares)
        return "; ".join(v.why for v in verdicts if v.code not in {PASSED, NOTHING})


def tried(chosen: Sequence[Guard], copies: Sequence[Copy]) -> Iterator[tuple[Guard, str]]:
    """Yield every guard with the reason why it survived, empty where it was caught."""
    idle: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        idle.put(copy)

    def attempt(guard: Guard) -> str:
        copy = idle.get()
        try:
            return copy.without(guard)
        finally:
            idle.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(chosen, pool.map(attempt, chosen), strict=True)


def report(chosen: Sequence[Guard], copies: Sequence[Copy]) -> int:
    """Print each survivor; return how many guards were caught."""
    caught = 0
    for guard, why in tried(chosen, copies):
        caught += not why
        if why:
            taken = " and ".join(piece.strip() for piece, _ in guard.pieces)
            print(f"survived: {guard.file}: {taken}\n  {guard.test}\n  {why}")
    return caught


def main(words: Sequence[str]) -> int:
    """Print `N of N caught`, and each survivor; return the exit code."""
    started = time.monotonic()
    chosen = [guard for guard in GUARDS if not words or any(w in str(guard) for w in words)]
    with tempfile.TemporaryDirectory(prefix="umbel-mutants-") as folder:
        copies = [Copy(Path(folder) / str(i)) for i in range(os.cpu_count() or 1)]
        try:
            through = gets_through([guard.test for guard in chosen], copies)
            if through:
                print(f"an attack gets through the whole package: {through}")
                return 1
            caught = report(chosen, copies)
        finally:
            for copy in copies:
                copy.close()
    seconds = time.monotonic() - started
    print(f"{caught} of {len(chosen)} caught in {seconds:.0f} s")
    return int(caught != len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
