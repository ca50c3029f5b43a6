"""Fingerprint of a stage's code: a digest of its import closure, and the pins of its libraries.

A list of files in `dvc.yaml` would miss a helper that is imported later, and would rerun a GPU stage for a comment. So
the import closure is walked through the syntax trees. Comments, docstrings and formatting do not count, and the walk
does not follow imports that only a type checker reads.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pipeline.core.code.modules import PACKAGE, Module, closure, modules
from pipeline.core.code.pins import libraries, read_pins
from pipeline.core.code.syntax_cache import cached_facts, key_of
from pipeline.core.errors import ConfigError
from pipeline.core.files.digests import sha256_file

ROOTS = ("pipeline.core.sections",)
"""Modules that every stage runs through; `pipeline.stages.<stage>.stage` is added for each."""

PLUMBING = frozenset(
    {
        "pipeline.core.code",
        "pipeline.core.dvc_cache",
        "pipeline.core.errors",
        "pipeline.core.files",
        "pipeline.core.home",
        "pipeline.core.http",
        "pipeline.core.parse_errors",
        "pipeline.core.process",
        "pipeline.core.reuse",
        "pipeline.core.terminal",
    }
)
"""Modules, and folders of modules, whose code is left out of the fingerprints.

They carry bytes, messages and processes, and decide nothing about content: how a file is written whole, how a process
ends, where an earlier result lies. Half of the changes in `extract`'s closure touched only them, and each would have
rerun an extraction on a GPU. They import only each other and libraries (a test holds that), and the pins of those
libraries count: another version of pyarrow or orjson may write other bytes.
"""

PLUMBING_VERSION = 1
"""Part of every fingerprint. Raise it by one when a change of plumbing changes what a stage writes.

`tests/core/code/test_plumbing.py` compares the bytes that the file layer writes with recorded ones.
"""


def is_plumbing(name: str) -> bool:
    """Return whether a module is in `PLUMBING`, by its own name or by a folder above it."""
    return any(name == entry or name.startswith(f"{entry}.") for entry in PLUMBING)


def fingerprints(root: Path, stages: Iterable[str]) -> dict[str, dict[str, object]]:
    """Return for each stage a digest of its code (`code`, 16 hex digits) and the pins of its libraries (`libraries`).

    Raises:
        ConfigError: code that is not Python, hides an import, or imports a package that is not pinned.

    """
    known = modules(root)
    pins = read_pins(root / "requirements.lock")
    with cached_facts(
        root / PACKAGE / "__pycache__", lambda: [key_of(module.package, module.source) for module in known.values()]
    ):
        return {stage: _fingerprint(known, pins, stage) for stage in stages}


def _fingerprint(known: dict[str, Module], pins: dict[str, str], stage: str) -> dict[str, object]:
    start = f"{PACKAGE}.stages.{stage}.stage"
    if start not in known:
        raise ConfigError(f"stage {stage!r} has no module {start}")
    reached = closure(known, [*ROOTS, start])
    parts = [(name, known[name].digest, _data_files(known[name])) for name in sorted(reached) if not is_plumbing(name)]
    digest = hashlib.sha256(repr((PLUMBING_VERSION, parts)).encode()).hexdigest()[:16]
    return {"code": digest, "libraries": libraries(reached, pins)}


def _data_files(module: Module) -> list[tuple[str, str]]:
    """Return names and digests of the files beside a package's `__init__` that are not code: templates, corpora."""
    if not module.is_package:
        return []
    files = (
        path
        for path in sorted(module.path.parent.iterdir())
        if path.is_file() and path.suffix not in (".py", ".pyc", ".typed")
    )
    return [(path.name, sha256_file(path)) for path in files if not path.name.startswith(".")]
