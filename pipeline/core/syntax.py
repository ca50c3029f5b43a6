"""What the syntax of a module says: a digest of all that runs, and which imports stand in it."""

import ast
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.errors import AerieError, ConfigError
from pipeline.core.files import read_json, sha256_file, to_json, write_bytes
from pipeline.core.parse_faults import conflict, fault

HIDING = frozenset({"import_module", "__import__", "iter_modules", "walk_packages", "entry_points", "exec", "eval"})
"""Calls that could import what the walk cannot see; refused in a stage's closure."""

_CODE = sha256_file(Path(__file__))
"""What works facts out: notes of another version of this module say nothing."""


class Facts(NamedTuple):
    """All that is asked of a module's syntax. The tree is not kept: those of the package are 50 MiB, through which Python would look for cycles."""

    digest: str
    imports: frozenset[str]
    """Absolute dotted names; `from a import b` gives a and a.b."""
    fault: tuple[int, str] | None
    """Line and name of the first call that hides an import."""


_known: dict[str, Facts] = {}
"""Facts by `key_of`, worked out by this process or noted by an earlier one."""


def key_of(package: str, source: bytes) -> str:
    """By what the facts of a source in a package are known again."""
    return hashlib.sha256(package.encode() + b"\0" + source).hexdigest()


def facts_of(package: str, path: Path, source: bytes) -> Facts:
    """Facts of a module.

    Args:
        package: what its relative imports start from.
        path: its file, for the message.
        source: the file's bytes.

    Raises:
        ConfigError: it is not Python.

    """
    key = key_of(package, source)
    if key not in _known:
        tree = parse(path, source)
        _known[key] = Facts(digest_tree(tree), *_imports(tree, package))
    return _known[key]


@contextlib.contextmanager
def noted(folder: Path, keys: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Take facts from earlier processes, and leave new ones to later ones, beside what Python itself compiled, which is as easily lost.

    Args:
        folder: a `__pycache__`; where Python made none or must not write, nothing is written.
        keys: of the modules that are there now, as `key_of`; what is known of others is forgotten.

    """
    note = folder / f"syntax.{sys.implementation.cache_tag}.json"
    with contextlib.suppress(AerieError, AttributeError, KeyError, TypeError, ValueError):
        found = read_json(note)
        if found["code"] == _CODE:
            _known.update(
                {
                    key: Facts(digest, frozenset(names), hidden and (hidden[0], hidden[1]))
                    for key, (digest, names, hidden) in found["facts"].items()
                }
            )
    before = len(_known)
    yield
    if len(_known) > before and folder.is_dir() and not sys.dont_write_bytecode:
        with contextlib.suppress(AerieError):
            facts = {
                key: [_known[key].digest, sorted(_known[key].imports), _known[key].fault]
                for key in keys()
                if key in _known
            }
            write_bytes(note, to_json({"code": _CODE, "facts": facts}))


def parse(path: Path, source: bytes) -> ast.Module:
    """Syntax of a source.

    Raises:
        ConfigError: it is not Python.

    """
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise ConfigError(fault(path, "Python", error.lineno, error.msg, conflict(source))) from error


def _imports(tree: ast.AST, package: str) -> tuple[frozenset[str], tuple[int, str] | None]:
    names: set[str] = set()
    hidden = None
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
                hidden = hidden or (node.lineno, called)
    return frozenset(names), hidden


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
    return b"(" + kind.__name__.encode(), [
        (name, b" " + name.encode() + b"=") for name in sorted(kind._fields) if name not in ("kind", "type_comment")
    ]


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
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


@cache
def _children(kind: type) -> tuple[str, ...] | None:
    """Fields of a node of this type, last first; None for what is no node, and for names and constants, which hold nothing."""
    return (
        tuple(reversed(kind._fields))
        if issubclass(kind, ast.AST) and not issubclass(kind, ast.Name | ast.Constant | ast.expr_context)
        else None
    )


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
