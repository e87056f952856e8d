"""The rules of the house (CONTRIBUTING.md), checked on the source itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from umbel.protocol import entropy

ROOT = Path(__file__).resolve().parents[1]

# Arrows go down only: what each part may import of the others.
MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "host": {"protocol"},
    "strategies": {"protocol"},
    "clients": {"protocol", "host", "strategies"},
    "server": {"protocol", "host", "strategies"},
    "simulation": {"protocol", "host", "strategies", "clients", "server"},
    "benchmarks": {"protocol", "host", "strategies", "clients", "server", "simulation"},
}
ROOT_FILES = {"__init__.py", "__main__.py", "cli.py"}
GENERATED = {"protocol/messages_pb2.py"}
# Folders of a part that hold no modules.
DATA_FOLDERS = {"simulation/templates", "benchmarks/results"}
# The boundary that calls user code: the only files that may catch everything.
BOUNDARIES = {"clients/worker.py", "clients/child.py", "server/evaluator.py"}
FRAMEWORKS = {
    **{"torch": "torch_", "flwr": "flower_", "grpc": "grpc_"},
    **{"numba": "numba_", "llvmlite": "numba_", "triton": "triton_"},
}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
IMPURE = {
    *("os", "io", "pathlib", "tempfile", "shutil", "time", "threading", "multiprocessing"),
    *("asyncio", "concurrent", "socket", "ssl", "select", "signal", "subprocess", "logging"),
    *("random", "secrets", "uuid", "urllib", "http", "sys", "warnings", "atexit", "mmap"),
}
PROTOCOL_NEEDS = {"numpy", "cryptography", "google"}
MAX_FILE, MAX_FUNCTION = 400, 50

PART_FILES = sorted(path for part in MAY_IMPORT for path in (ROOT / part).rglob("*.py"))
LIBRARY = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in [*PART_FILES, *sorted(ROOT.glob("*.py"))]
}
WRITTEN = {name: tree for name, tree in LIBRARY.items() if name not in GENERATED}
TESTS = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8"))
    for path in sorted((ROOT / "tests").rglob("*.py"))
}
ALL = WRITTEN | TESTS


def _part(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _in(part: str) -> list[str]:
    return [name for name in WRITTEN if _part(name) == part]


def _relative_targets(name: str, tree: ast.AST) -> list[tuple[int, list[str]]]:
    """Return (line, path from the root) of each relative import in the file `name`."""
    package = name.split("/")[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level <= len(package) + 1, f"{name}:{node.lineno}: leaves the package"
            base = package[: len(package) + 1 - node.level]
            tails = [node.module.split(".")] if node.module else [[a.name] for a in node.names]
            found += [(node.lineno, base + tail) for tail in tails]
    return found


def _absolute_imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, dotted name) of each absolute import."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append((node.lineno, node.module or ""))
    return found


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


# ---- walls ---------------------------------------------------------------------------------


def test_imports_go_down_only() -> None:
    for name in (name for name in WRITTEN if _part(name)):
        own = _part(name)
        for line, target in _relative_targets(name, WRITTEN[name]):
            if target[0] not in {own, "__version__"}:
                assert target[0] in MAY_IMPORT[own], f"{name}:{line}: may not import {target[0]}"


def test_inside_the_package_imports_are_relative() -> None:
    for name, tree in WRITTEN.items():
        for line, module in _absolute_imports(tree):
            assert module.split(".")[0] != "umbel", f"{name}:{line}: inside, use dots"


def test_the_root_holds_no_other_modules() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == ROOT_FILES


def test_a_part_has_at_most_one_level_of_folders() -> None:
    for part in MAY_IMPORT:
        for folder in (path for path in (ROOT / part).rglob("*") if path.is_dir()):
            inner = folder.relative_to(ROOT)
            if folder.name != "__pycache__":
                assert len(inner.parts) == 2, f"{inner}: two levels"
                room = (folder / "__init__.py").exists() or inner.as_posix() in DATA_FOLDERS
                assert room, f"{inner}: neither a package nor a known data folder"


def test_pyproject_lists_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = {
        ".".join(["umbel", *path.parent.relative_to(ROOT).parts])
        for path in PART_FILES
        if path.name == "__init__.py"
    }
    assert set(settings["tool"]["setuptools"]["packages"]) == {"umbel"} | folders


def test_the_link_for_static_tools_leads_to_the_root() -> None:
    assert (ROOT / ".view" / "umbel").resolve() == ROOT


# ---- sizes and words -----------------------------------------------------------------------


def test_files_and_functions_stay_small() -> None:
    for name, tree in ALL.items():
        lines = len((ROOT / name).read_text("utf-8").splitlines())
        assert lines <= MAX_FILE, f"{name}: {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= MAX_FUNCTION, f"{name}: {node.name}: {length} lines"


def test_a_module_opens_with_what_it_is_for() -> None:
    for name, tree in ALL.items():
        assert ast.get_docstring(tree), f"{name}: no docstring"


def test_nothing_is_left_for_later() -> None:
    for name in set(ALL) - {"tests/test_house.py"}:
        words = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", (ROOT / name).read_text("utf-8"))
        assert not words, name


# ---- frameworks ----------------------------------------------------------------------------


def test_a_framework_is_imported_in_files_of_its_name() -> None:
    for name, tree in WRITTEN.items():
        file = name.rsplit("/", 1)[-1]
        for line, module in _absolute_imports(tree):
            prefix = FRAMEWORKS.get(module.split(".")[0])
            # Triton's kernels run on torch's tensors.
            named = (prefix, "triton_") if prefix == "torch_" else prefix
            right = named is None or file.startswith(named)
            assert right, f"{name}:{line}: {module} needs a {prefix}* file"


def test_the_pure_files_import_without_any_framework() -> None:
    modules = [
        "umbel." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for part in ("protocol", "host", "strategies", "clients", "server")
        for name in _in(part)
        if not name.rsplit("/", 1)[-1].startswith(tuple(FRAMEWORKS.values()))
    ]
    program = (
        "import sys, importlib\n"
        f"for heavy in {[*FRAMEWORKS, 'ray']!r}: sys.modules[heavy] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- errors and unsafe calls ---------------------------------------------------------------


def test_library_code_raises_and_never_asserts() -> None:
    for name, tree in WRITTEN.items():
        lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        assert not lines, name


def _broad(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_broad(item) for item in node.elts)
    return node is None or (
        isinstance(node, ast.Name) and node.id in {"Exception", "BaseException"}
    )


def test_only_the_boundary_to_user_code_catches_everything() -> None:
    for name in WRITTEN.keys() - BOUNDARIES:
        for node in ast.walk(WRITTEN[name]):
            if isinstance(node, ast.ExceptHandler) and _broad(node.type):
                last = node.body[-1]  # to tidy up and raise again catches nothing
                assert isinstance(last, ast.Raise), f"{name}:{node.lineno}"
                assert last.exc is None, f"{name}:{node.lineno}: `raise` alone"
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                assert not any(map(_broad, node.args)), f"{name}:{node.lineno}"


def test_nothing_runs_what_a_peer_could_have_written() -> None:
    for name, tree in WRITTEN.items():
        for line, module in _absolute_imports(tree):
            assert module.split(".")[0] not in UNSAFE, f"{name}:{line}: {module}"
        for call in _calls(tree):
            called = ast.unparse(call.func)
            assert called not in {"eval", "exec", "torch.load"}, f"{name}:{call.lineno}: {called}"
            for keyword in call.keywords:
                true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                unsafe = true and keyword.arg in {"allow_pickle", "shell"}
                assert not unsafe, f"{name}:{call.lineno}"


# ---- protocol/ is pure ---------------------------------------------------------------------


@pytest.mark.parametrize("name", _in("protocol"))
def test_protocol_imports_only_arithmetic(name: str) -> None:
    lazily = {"ml_dtypes"} if name == "protocol/manifest.py" else set()
    for line, module in _absolute_imports(WRITTEN[name]):
        first = module.split(".")[0]
        known = first in sys.stdlib_module_names or first in PROTOCOL_NEEDS | lazily
        assert known, f"line {line}: {module}"
        pure = first not in IMPURE or module == "urllib.parse"
        assert pure, f"line {line}: {module} reaches outside"


def test_ml_dtypes_waits_until_it_is_needed() -> None:
    top = LIBRARY.get("protocol/manifest.py")
    if isinstance(top, ast.Module):
        for node in top.body:
            names = [module for _, module in _absolute_imports(ast.Module([node], []))]
            function = isinstance(node, ast.FunctionDef | ast.ClassDef)
            assert function or "ml_dtypes" not in names


@pytest.mark.parametrize("name", _in("protocol"))
def test_protocol_reads_no_file_and_no_clock(name: str) -> None:
    opened = []
    for node in ast.walk(WRITTEN[name]):
        assert not isinstance(node, ast.Global), f"line {node.lineno}: global state"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"print", "input", "breakpoint"}, f"line {node.lineno}: {called}"
            last = called.rsplit(".", 1)[-1]
            assert last not in {"now", "utcnow", "today"}, f"line {node.lineno}: {called}"
            if called == "open":
                opened.append(ast.unparse(node.args[0]))
    assert opened == (["SOURCE"] if name == "protocol/entropy.py" else [])


def test_the_one_file_that_protocol_opens_is_the_random_source() -> None:
    assert entropy.SOURCE == "/dev/urandom"


# ---- entropy -------------------------------------------------------------------------------

ENTROPY = {"entropy", "_entropy"}


def _handed_on(value: ast.expr) -> bool:
    """Tell whether `value` is the OS's entropy or a parameter or attribute of that name."""
    if isinstance(value, ast.Attribute):
        return value.attr in ENTROPY
    if isinstance(value, ast.Call):  # a dataclass's field without a default sets nothing
        options = {keyword.arg for keyword in value.keywords}
        return ast.unparse(value.func) == "field" and options <= {"repr", "compare", "kw_only"}
    return isinstance(value, ast.Name) and value.id in ENTROPY | {"os_entropy"}


def _entropy_values(tree: ast.AST) -> list[tuple[int, ast.expr]]:
    """Return (line, value) of each argument, default and assignment that sets an entropy."""
    found: list[tuple[int, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += [(node.lineno, k.value) for k in node.keywords if k.arg in ENTROPY]
        elif isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            defaults = list(zip(reversed(plain), reversed(node.defaults), strict=False))
            named = [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
            found += [(a.lineno, d) for a, d in named if a.arg in ENTROPY and d is not None]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            ours = [t for t in targets if ast.unparse(t).rsplit(".", 1)[-1] in ENTROPY]
            if ours and node.value is not None:
                found.append((node.lineno, node.value))
    return found


def test_only_tests_choose_another_entropy_than_the_systems() -> None:
    for name, tree in WRITTEN.items():
        for line, value in _entropy_values(tree):
            assert _handed_on(value), f"{name}:{line}: entropy = {ast.unparse(value)}"


@pytest.mark.parametrize("name", _in("protocol"))
def test_protocol_has_no_entropy_of_its_own(name: str) -> None:
    if name != "protocol/entropy.py":
        names = {ast.unparse(value) for _, value in _entropy_values(WRITTEN[name])}
        assert "os_entropy" not in names


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("f(entropy=os_entropy)", True),
        ("f(entropy=self._entropy)", True),
        ("entropy: Entropy = field(repr=False)", True),
        ("entropy: Entropy = field(default=zeros)", False),
        ("self._entropy = entropy", True),
        ("f(entropy=lambda buffer: None)", False),
        ("f(entropy=seeded if fast else os_entropy)", False),
        ("def f(*, entropy=zeros): ...", False),
        ("self._entropy = fixed(7)", False),
    ],
)
def test_the_entropy_rule_itself(source: str, allowed: bool) -> None:
    values = _entropy_values(ast.parse(source))
    assert [_handed_on(value) for _, value in values] == [allowed]
