"""What a stage's code is: a digest of the syntax of every module of the package that it can import.

A list of files in `dvc.yaml` forgets the helper that someone imports later, and reruns a GPU stage for a comment. So the
import closure is walked from the syntax trees; comments, docstrings and formatting do not count, and imports that only
a type checker reads are not followed. Library versions count: the pins in requirements.lock of every third-party package that the closure imports.
"""

import ast
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.artifacts import read_bytes, sha256_file
from pipeline.errors import ConfigError

PACKAGE = "pipeline"

ROOTS = ("pipeline.runner",)
"""Modules that every stage runs through; `pipeline.<stage>.stage` is added for each."""

HIDING = frozenset({"import_module", "__import__", "iter_modules", "walk_packages", "entry_points", "exec", "eval"})
"""Calls that could import what the walk cannot see; refused in a stage's closure."""

DISTRIBUTIONS = {
    "attr": "attrs",
    "dotenv": "python-dotenv",
    "httpx_aiohttp": "httpx-aiohttp",
    "hydra": "hydra-core",
    "ruamel": "ruamel.yaml",
    "splintr": "splintr-rs",
    "yaml": "pyyaml",
}
"""Import name to the name on the package index, where they differ."""

OPTIONAL = frozenset({"datasets"})
"""Imports of extras, which the lock does not pin: a build without them never reaches them."""


@dataclass(frozen=True, eq=False)
class Module:
    """One module of the package. It is read when something of it is first asked for; what follows from its source is worked out once a process."""

    name: str
    path: Path

    @cached_property
    def source(self) -> bytes:
        """The file's bytes."""
        return read_bytes(self.path)

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax of the module.

        Raises:
            ConfigError: it is not Python.

        """
        return _parse(self.path, self.source)

    @property
    def digest(self) -> str:
        """Digest of the syntax."""
        return self._facts().digest

    @property
    def imports(self) -> frozenset[str]:
        """Absolute dotted names in its import statements, wherever they stand; `from a import b` gives a and a.b.

        Raises:
            ConfigError: the module calls something that hides an import from this walk.

        """
        if fault := self._facts().fault:
            raise ConfigError(fault)
        return self._facts().imports

    def _facts(self) -> "_Facts":
        return _facts(self.name if self.is_package else self.name.rpartition(".")[0], self.path, self.source)

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"


class _Facts(NamedTuple):
    digest: str
    imports: frozenset[str]
    fault: str | None
    """The first call that hides an import."""


@cache
def _facts(package: str, path: Path, source: bytes) -> _Facts:
    """All that is asked of a module's syntax. The tree is not kept: those of the package are 50 MiB, through which Python would look for cycles."""
    tree = _parse(path, source)
    return _Facts(digest_tree(tree), *_imports(tree, package, path))


def _parse(path: Path, source: bytes) -> ast.Module:
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: not Python: {error.msg}") from error


def _imports(tree: ast.AST, package: str, path: Path) -> tuple[frozenset[str], str | None]:
    names: set[str] = set()
    fault = None
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = above[: len(above) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names.update([origin, *(f"{origin}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            # `model.eval()` of torch takes no argument; the built-in always does
            if called in HIDING and (called != "eval" or node.args):
                fault = fault or f"{path}:{node.lineno}: {called}() hides an import from the code fingerprint; import it by name"
    return frozenset(names), fault


def digest_tree(tree: ast.AST) -> str:
    """Digest of a syntax tree: node types and non-empty fields.

    Positions, contexts and empty fields are left out, since they differ between Python versions; docstrings, since they
    change nothing that a stage writes.
    """
    parts: list[bytes] = []
    _write(tree, parts.append)
    return hashlib.sha256(b"".join(parts)).hexdigest()


@cache
def _labels(kind: type[ast.AST]) -> tuple[bytes, list[tuple[str, bytes]]]:
    """How a node of this type begins, and each of its fields that count, with how that begins."""
    return b"(" + kind.__name__.encode(), [(name, b" " + name.encode() + b"=") for name in sorted(kind._fields) if name not in ("kind", "type_comment")]


def _write(node: object, write: Callable[[bytes], None]) -> None:
    """Hand over a node piece by piece. Calls, and no generator in a generator: a package has half a million nodes."""
    if isinstance(node, ast.AST):
        if isinstance(node, ast.expr_context):
            return
        opening, fields = _labels(type(node))  # type: ignore[arg-type]  # classes are hashable; mypy looks at the hash of their instances
        write(opening)
        for name, label in fields:
            value = _body(node) if name == "body" else getattr(node, name, None)
            keeps_none = name == "value" and isinstance(node, ast.Constant)
            if (value is None and not keeps_none) or value == []:
                continue
            write(label)
            _write(value, write)
        write(b")")
    elif isinstance(node, list):
        write(b"[")
        for item in node:
            _write(item, write)
            write(b",")
        write(b"]")
    else:
        write(f"{type(node).__name__}:{node!r}".encode())


def _body(node: ast.AST) -> object:
    """Body of a node without its docstring."""
    body = getattr(node, "body", None)
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    if documented and isinstance(body, list) and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
        body = body[1:]
    # pydantic reads the bare string under a field as its description: documentation as well
    if isinstance(body, list):
        body = [statement for statement in body if not _is_bare_string(statement)]
    return body


def _is_bare_string(statement: object) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


@cache
def _children(kind: type) -> tuple[str, ...] | None:
    """Fields of a node of this type, last first; None for what is no node, and for names and constants, which hold nothing."""
    return tuple(reversed(kind._fields)) if issubclass(kind, ast.AST) and not issubclass(kind, ast.Name | ast.Constant | ast.expr_context) else None


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the branches that only a type checker reads, and without names and constants."""
    todo: list[Any] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += reversed(node)
        elif (fields := _children(type(node))) is None:  # type: ignore[arg-type]  # as of _labels
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.append(node.orelse)
        else:
            yield node
            todo += [getattr(node, name, None) for name in fields]


def modules(root: Path) -> dict[str, Module]:
    """Every module of the package below ``root``, by dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def _parents(name: str) -> list[str]:
    """Return a dotted name and the packages above it; their `__init__` runs too."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def closure(known: dict[str, Module], starts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Modules that can be imported from ``starts``, each with the names that it imports."""
    reached: dict[str, frozenset[str]] = {}
    todo = [parent for start in starts for parent in _parents(start) if parent in known]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached[name] = known[name].imports
        for imported in reached[name]:
            if imported.split(".")[0] == PACKAGE:
                todo += [parent for parent in _parents(imported) if parent in known]
    return reached


def read_pins(lock: Path) -> dict[str, str]:
    """Versions in a requirements.lock, by normalised name.

    Raises:
        ConfigError: a line is no `name==version`.

    """
    pins = {}
    for number, line in enumerate(read_bytes(lock).decode().split("\n"), 1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        name, equals, version = text.partition("==")
        if not equals:
            raise ConfigError(f"{lock}:{number}: expected name==version, found {text!r}")
        pins[_normalised(name)] = version.split(";")[0].strip()
    return pins


def _normalised(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def libraries(reached: Mapping[str, Set[str]], pins: dict[str, str]) -> dict[str, str]:
    """Pins of the third-party packages that a closure imports.

    Raises:
        ConfigError: one of them is not pinned.

    """
    tops = {name.split(".")[0] for names in reached.values() for name in names} - {PACKAGE, ""} - set(sys.stdlib_module_names) - OPTIONAL
    found = {}
    for top in sorted(tops):
        name = _normalised(DISTRIBUTIONS.get(top, top))
        if name not in pins:
            users = sorted(module for module, names in reached.items() if any(n.split(".")[0] == top for n in names))
            raise ConfigError(f"{', '.join(users)} imports {top!r}, which requirements.lock does not pin (looked for {name!r})")
        found[name] = pins[name]
    return found


def _folder_data(module: Module) -> list[tuple[str, str]]:
    """Files beside a package's `__init__` that are no code: templates, corpora."""
    if not module.is_package:
        return []
    files = (path for path in sorted(module.path.parent.iterdir()) if path.is_file() and path.suffix not in (".py", ".pyc", ".typed"))
    return [(path.name, sha256_file(path)) for path in files if not path.name.startswith(".")]


def fingerprints(root: Path, stages: Iterable[str]) -> dict[str, dict[str, object]]:
    """For each stage, a digest of its code and the versions of its libraries.

    Raises:
        ConfigError: code that is not Python, hides an import, or imports what is not pinned.

    """
    known = modules(root)
    pins = read_pins(root / "requirements.lock")
    result: dict[str, dict[str, object]] = {}
    for stage in stages:
        start = f"{PACKAGE}.{stage}.stage"
        if start not in known:
            raise ConfigError(f"stage {stage!r} has no module {start}")
        reached = closure(known, [*ROOTS, start])
        parts = [(name, known[name].digest, _folder_data(known[name])) for name in sorted(reached)]
        code = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        result[stage] = {"code": code, "libraries": libraries(reached, pins)}
    return result
