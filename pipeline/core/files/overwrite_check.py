"""Overwrite check: refuse an output path that is also an input, or is named twice."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.core.errors import InputError


def refuse_overwriting(inputs: Iterable[Path | None], outputs: Iterable[Path | None]) -> None:
    """Refuse an output that is one of the inputs or another output: a user's file must not be overwritten.

    Raises:
        InputError: two of the paths are the same file; the message names it.

    """
    earlier = [(path, "is also an input and would be overwritten") for path in inputs if path is not None]
    for output in outputs:
        if output is None:
            continue
        for path, reason in earlier:
            if output.absolute() == path.absolute() or (output.exists() and path.exists() and output.samefile(path)):
                raise InputError(f"{output}: {reason}; choose another path")
        earlier.append((output, "is named for two outputs"))
