"""Syntax of a module: a digest of everything that runs, and the imports in it.

The digest is the same under every supported version of Python. Only the standard library is imported here and by the
modules that this one imports, so that any interpreter can check that.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.errors import ConfigError
from pipeline.core.parse_errors import conflict_line, parse_error_message

HIDING = frozenset({"import_module", "__import__", "iter_modules", "walk_packages", "entry_points", "exec", "eval"})
"""Calls that can import a module unseen by the import walk; refused in a stage's import closure."""


class Facts(NamedTuple):
    """The digest and imports of a module.

    The syntax tree itself is not kept: the trees of the package take 50 MiB, which Python would search for cycles.
    """

    digest: str
    imports: frozenset[str]
    """Absolute dotted names; `from a import b` gives a and a.b."""
    hidden_import: tuple[int, str] | None
    """Line and name of the first call that hides an import."""


def parse(path: Path, source: bytes) -> ast.Module:
    """Parse the source of a module.

    Raises:
        ConfigError: the source is not Python; the message names ``path``.

    """
    try:
        return ast.parse(source, str(path))
    except SyntaxError as error:
        raise ConfigError(
            parse_error_message(path, "Python", error.lineno, error.msg, conflict_line(source))
        ) from error


def facts_of_tree(tree: ast.Module, package: str) -> Facts:
    """Collect the facts of a module; ``package`` is the base of its relative imports."""
    return Facts(digest_tree(tree), *_imports(tree, package))


def digest_tree(tree: ast.AST) -> str:
    """Return the hex SHA-256 of a syntax tree: its node types and their non-empty fields.

    The same source must give the same digest under every version of Python. So positions, contexts and empty fields are
    left out (3.12 adds `type_params`, 3.13 changes defaults), and the empty pieces that 3.12 adds to f-strings. Values
    are written in ASCII, since `repr` escapes the characters that a version's Unicode tables do not know. Docstrings
    are left out as well, since they change nothing that a stage writes.
    """
    parts: list[bytes] = []
    _write(tree, parts.append)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _imports(tree: ast.AST, package: str) -> tuple[frozenset[str], tuple[int, str] | None]:
    names: set[str] = set()
    hidden_import = None
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
                hidden_import = hidden_import or (node.lineno, called)
    return frozenset(names), hidden_import


@cache
def _labels(kind: type[ast.AST]) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the opening of a node of this type, and each field that counts with its label."""
    return b"(" + kind.__name__.encode(), [
        (name, b" " + name.encode() + b"=") for name in sorted(kind._fields) if name not in ("kind", "type_comment")
    ]


def _write(node: object, write: Callable[[bytes], None]) -> None:
    """Pass a node to ``write`` piece by piece.

    Plain calls and no nested generators, for speed: the package has half a million nodes.
    """
    if isinstance(node, ast.AST):
        if isinstance(node, ast.expr_context):
            return
        # classes are hashable; mypy looks at the hash of their instances
        opening, fields = _labels(type(node))  # type: ignore[arg-type]
        write(opening)
        for name, label in fields:
            value = _field(node, name)
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
        write(f"{type(node).__name__}:{node!a}".encode())


def _field(node: ast.AST, name: str) -> object:
    """Return a field of a node: a body without its docstring, an f-string without its empty pieces."""
    if name == "body":
        return _body(node)
    if name == "values" and isinstance(node, ast.JoinedStr):
        return [piece for piece in node.values if not (isinstance(piece, ast.Constant) and piece.value == "")]
    return getattr(node, name, None)


def _body(node: ast.AST) -> object:
    """Return the body of a node without its docstring and other bare strings.

    pydantic reads the bare string under a field as its description: documentation as well.
    """
    body = getattr(node, "body", None)
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
    """Return the fields of a node of this type, last first; None for names, constants and what is not a node."""
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
        elif (fields := _children(type(node))) is None:  # type: ignore[arg-type]  # as in _write
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.append(node.orelse)
        else:
            yield node
            todo += [getattr(node, name, None) for name in fields]
