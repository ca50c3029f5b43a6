"""Modules of the package, and the closure of modules that one of them can import."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.core.code.syntax import Facts, parse
from pipeline.core.code.syntax_cache import facts_of
from pipeline.core.errors import ConfigError
from pipeline.core.files.contents import read_bytes

PACKAGE = "pipeline"


@dataclass(frozen=True, eq=False)
class Module:
    """One module of the package; its file is read, and its syntax parsed, on first use."""

    name: str
    path: Path

    @cached_property
    def source(self) -> bytes:
        """The file's bytes."""
        return read_bytes(self.path)

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree of the module.

        Raises:
            ConfigError: the source is not Python.

        """
        return parse(self.path, self.source)

    @property
    def digest(self) -> str:
        """Digest of the syntax."""
        return self._facts.digest

    @property
    def imports(self) -> frozenset[str]:
        """Absolute dotted names in its import statements, at the top and inside functions.

        Raises:
            ConfigError: the module calls something that can hide an import.

        """
        if hidden_import := self._facts.hidden_import:
            line, call = hidden_import
            raise ConfigError(
                f"{self.path}:{line}: {call}() hides an import from the code fingerprint; import it by name"
            )
        return self._facts.imports

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self.package, self.path, self.source)

    @property
    def package(self) -> str:
        """Base of its relative imports."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"


def modules(root: Path) -> dict[str, Module]:
    """Find every module of the package below the folder ``root``, by dotted name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def closure(known: dict[str, Module], starts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Find the modules that can be imported from ``starts``, each with the names that it imports."""
    reached: dict[str, frozenset[str]] = {}
    todo = [parent for start in starts for parent in _with_parents(start) if parent in known]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached[name] = known[name].imports
        for imported in reached[name]:
            if imported.split(".")[0] == PACKAGE:
                todo += [parent for parent in _with_parents(imported) if parent in known]
    return reached


def _with_parents(name: str) -> list[str]:
    """Return a dotted name and the packages above it; their `__init__` runs too."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
