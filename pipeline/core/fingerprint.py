"""What a stage's code is: a digest of the syntax of every module of the package that it can import.

A list of files in `dvc.yaml` forgets the helper that someone imports later, and reruns a GPU stage for a comment. So the
import closure is walked from the syntax trees; comments, docstrings and formatting do not count, and imports that only
a type checker reads are not followed. Library versions count: the pins in requirements.lock of every third-party package that the closure imports.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.files import read_bytes, sha256_file
from pipeline.core.syntax import Facts, facts_of, key_of, noted, parse

PACKAGE = "pipeline"

ROOTS = ("pipeline.core.process.runner",)
"""Modules that every stage runs through; `pipeline.<stage>.stage` is added for each."""

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
        return parse(self.path, self.source)

    @property
    def digest(self) -> str:
        """Digest of the syntax."""
        return self._facts.digest

    @property
    def imports(self) -> frozenset[str]:
        """Absolute dotted names in its import statements, wherever they stand.

        Raises:
            ConfigError: the module calls something that hides an import from this walk.

        """
        if fault := self._facts.fault:
            raise ConfigError(
                f"{self.path}:{fault[0]}: {fault[1]}() hides an import from the code fingerprint; import it by name"
            )
        return self._facts.imports

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self.package, self.path, self.source)

    @property
    def package(self) -> str:
        """What its relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"


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
    tops = (
        {name.split(".")[0] for names in reached.values() for name in names}
        - {PACKAGE, ""}
        - set(sys.stdlib_module_names)
        - OPTIONAL
    )
    found = {}
    for top in sorted(tops):
        name = _normalised(DISTRIBUTIONS.get(top, top))
        if name not in pins:
            users = sorted(module for module, names in reached.items() if any(n.split(".")[0] == top for n in names))
            raise ConfigError(
                f"{', '.join(users)} imports {top!r}, which requirements.lock does not pin (looked for {name!r})"
            )
        found[name] = pins[name]
    return found


def _folder_data(module: Module) -> list[tuple[str, str]]:
    """Files beside a package's `__init__` that are no code: templates, corpora."""
    if not module.is_package:
        return []
    files = (
        path
        for path in sorted(module.path.parent.iterdir())
        if path.is_file() and path.suffix not in (".py", ".pyc", ".typed")
    )
    return [(path.name, sha256_file(path)) for path in files if not path.name.startswith(".")]


def fingerprints(root: Path, stages: Iterable[str]) -> dict[str, dict[str, object]]:
    """For each stage, a digest of its code and the versions of its libraries.

    Raises:
        ConfigError: code that is not Python, hides an import, or imports what is not pinned.

    """
    known = modules(root)
    pins = read_pins(root / "requirements.lock")
    with noted(
        root / PACKAGE / "__pycache__", lambda: [key_of(module.package, module.source) for module in known.values()]
    ):
        return {stage: _fingerprint(known, pins, stage) for stage in stages}


def _fingerprint(known: dict[str, Module], pins: dict[str, str], stage: str) -> dict[str, object]:
    start = f"{PACKAGE}.stages.{stage}.stage"
    if start not in known:
        raise ConfigError(f"stage {stage!r} has no module {start}")
    reached = closure(known, [*ROOTS, start])
    parts = [(name, known[name].digest, _folder_data(known[name])) for name in sorted(reached)]
    return {"code": hashlib.sha256(repr(parts).encode()).hexdigest()[:16], "libraries": libraries(reached, pins)}
