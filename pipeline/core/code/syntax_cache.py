"""Cache of syntax facts, in this process and in a file beside Python's own compiled modules."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pipeline.core.code import syntax
from pipeline.core.code.syntax import Facts, facts_of_tree, parse
from pipeline.core.errors import AerieError
from pipeline.core.files.atomic import write_bytes
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.digests import sha256_file

_CODE = f"{sha256_file(Path(syntax.__file__))} {sha256_file(Path(__file__))}"
"""Digest of the code that makes the facts: a file written by other code is ignored."""

_known: dict[str, Facts] = {}
"""Facts by `key_of`, made by this process or read from the file."""


def key_of(package: str, source: bytes) -> str:
    """Return the cache key of a source in a package."""
    return hashlib.sha256(package.encode() + b"\0" + source).hexdigest()


def facts_of(package: str, path: Path, source: bytes) -> Facts:
    """Return the facts of a module.

    Args:
        package: base of the module's relative imports.
        path: its file, for the message.
        source: the file's bytes.

    Raises:
        ConfigError: the source is not Python.

    """
    key = key_of(package, source)
    if key not in _known:
        _known[key] = facts_of_tree(parse(path, source), package)
    return _known[key]


@contextlib.contextmanager
def cached_facts(folder: Path, keys: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Read the facts that earlier processes left in a file, and write the file anew when the block made more.

    Args:
        folder: a `__pycache__`; nothing is written when it does not exist or Python must not write compiled modules.
        keys: gives the keys of the modules that exist now; facts of other keys are dropped from the file.

    """
    file = folder / f"syntax.{sys.implementation.cache_tag}.json"
    with contextlib.suppress(AerieError, AttributeError, KeyError, TypeError, ValueError):
        document = json.loads(read_bytes(file))
        if document["code"] == _CODE:
            _known.update(
                {
                    key: Facts(digest, frozenset(names), hidden_import and (hidden_import[0], hidden_import[1]))
                    for key, (digest, names, hidden_import) in document["facts"].items()
                }
            )
    before = len(_known)
    yield
    if len(_known) > before and folder.is_dir() and not sys.dont_write_bytecode:
        with contextlib.suppress(AerieError):
            facts = {
                key: [_known[key].digest, sorted(_known[key].imports), _known[key].hidden_import]
                for key in keys()
                if key in _known
            }
            write_bytes(file, json.dumps({"code": _CODE, "facts": facts}).encode())
