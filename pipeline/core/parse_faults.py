"""What is said of a module, config or small file that cannot be read: the line, and whether a merge left its marks there. Imports nothing of ours."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MARKERS = (b"<<<<<<<", b"=======", b">>>>>>>")
_PACKAGE = Path(__file__).resolve().parent.parent


def conflict(content: bytes) -> int | None:
    """Line, from 1, of the first of git's conflict markers; None where there is none. For what does not parse: a row of `=` may be text."""
    return next((number for number, line in enumerate(content.split(b"\n"), 1) if line.startswith(_MARKERS)), None)


def fault(path: str | Path, kind: str, line: int | None, why: str, marked: int | None) -> str:
    """Where and why a file is not what its name says: the parser's words, unless a conflict marker in line ``marked`` explains them."""
    if marked is not None:
        return f"{path}:{marked}: git's conflict markers begin here, so it is not {kind}: a merge was not resolved in this file"
    return f"{path}{'' if line is None else f':{line}'}: not {kind}: {why}"


def fault_of_yaml(path: str | Path, content: bytes, error: Exception) -> str:
    """`fault` of what a YAML parser raised, in one line."""
    mark = getattr(error, "problem_mark", None)
    why = ", ".join(
        part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part
    ) or " ".join(str(error).split())
    return fault(path, "YAML", None if mark is None else mark.line + 1, why, conflict(content))


def fault_of_import(error: ModuleNotFoundError | SyntaxError) -> str | None:
    """Why a module could not be imported, where the user can mend it: one of this package that is no Python, or a package that is not installed; else None."""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or _PACKAGE.name).split(".")[0] == _PACKAGE.name:
            return None
        return f"the package {error.name!r} is not installed for {sys.executable}: run `make setup`, then `source .venv/bin/activate`"
    path = Path(error.filename or "")
    if _PACKAGE not in path.resolve().parents:
        return None
    marked = error.lineno if conflict((error.text or "").encode()) else None
    return fault(os.path.relpath(path), "Python", error.lineno, error.msg, marked)


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Import the first modules of the program ``name``: one that cannot be imported ends it with one message and exit code 2. A program that is only imported lets the error pass."""
    try:
        yield
    except (ModuleNotFoundError, SyntaxError) as error:
        if name != "__main__" or (said := fault_of_import(error)) is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        raise SystemExit(2) from None
