"""Messages about files that do not parse: modules, configs, small documents.

They name the line, and conflict markers that a merge left. This module imports nothing else of the package, so it can
report a module that does not parse.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MARKERS = (b"<<<<<<<", b"=======", b">>>>>>>")
_PACKAGE = Path(__file__).resolve().parent.parent


def conflict_line(content: bytes) -> int | None:
    """Return the line, from 1, of the first conflict marker of git, or None.

    Only for content that does not parse: in other content a row of `=` may be text.
    """
    return next((number for number, line in enumerate(content.split(b"\n"), 1) if line.startswith(_MARKERS)), None)


def parse_error_message(path: str | Path, kind: str, line: int | None, why: str, marked: int | None) -> str:
    """Describe where and why a file is not ``kind``.

    The reason is a conflict marker in line ``marked``, or else the parser's message ``why``.
    """
    if marked is not None:
        return (
            f"{path}:{marked}: git's conflict markers begin here, so it is not {kind}: "
            "a merge was not resolved in this file"
        )
    return f"{path}{'' if line is None else f':{line}'}: not {kind}: {why}"


def yaml_error_message(path: str | Path, content: bytes, error: Exception) -> str:
    """Describe an error of a YAML parser in one line, as `parse_error_message`."""
    mark = getattr(error, "problem_mark", None)
    why = ", ".join(
        part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part
    ) or " ".join(str(error).split())
    return parse_error_message(path, "YAML", None if mark is None else mark.line + 1, why, conflict_line(content))


def import_error_message(error: ModuleNotFoundError | SyntaxError) -> str | None:
    """Describe a failed import that the user can fix, or return None.

    That is a module of this package that is not Python, or another package that is not installed.
    """
    if isinstance(error, ModuleNotFoundError):
        if (error.name or _PACKAGE.name).split(".")[0] == _PACKAGE.name:
            return None
        return (
            f"the package {error.name!r} is not installed for {sys.executable}: "
            "run `make setup`, then `source .venv/bin/activate`"
        )
    path = Path(error.filename or "")
    if _PACKAGE not in path.resolve().parents:
        return None
    marked = error.lineno if conflict_line((error.text or "").encode()) else None
    return parse_error_message(os.path.relpath(path), "Python", error.lineno, error.msg, marked)


@contextlib.contextmanager
def reporting_import_errors(name: str) -> Iterator[None]:
    """Import the first modules of a program; ``name`` is its `__name__`.

    An import that fails ends the program with one message and exit code 2. When the module is imported by another
    program, the error passes through.
    """
    try:
        yield
    except (ModuleNotFoundError, SyntaxError) as error:
        if name != "__main__" or (message := import_error_message(error)) is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
