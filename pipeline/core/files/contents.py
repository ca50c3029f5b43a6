"""Bytes of a file: all of them, or the first few."""

from pathlib import Path

from pipeline.core.errors import ArtifactError, InputError


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        ArtifactError: the file is missing or cannot be read.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}; run `dvc repro` to make it") from error


def read_start(path: Path, size: int) -> bytes:
    """Read the first ``size`` bytes of a file, by which its format is recognized.

    Raises:
        InputError: the file is missing or cannot be read.

    """
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
