"""Digests of files and folders."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pipeline.core.errors import ArtifactError


def digests_of_file(path: Path, *algorithms: str, read_size: int = 1 << 20) -> list[str]:
    """Compute hex digests of a file by several algorithms of `hashlib`, reading the file once.

    Raises:
        ArtifactError: the file is missing or cannot be read.

    """
    digests = [hashlib.new(name, usedforsecurity=False) for name in algorithms]
    try:
        with open(path, "rb") as file:
            while chunk := file.read(read_size):
                for digest in digests:
                    digest.update(chunk)
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}") from error
    return [digest.hexdigest() for digest in digests]


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file.

    Raises:
        ArtifactError: the file is missing or cannot be read.

    """
    return digests_of_file(path, "sha256")[0]


def sha256_folder(folder: Path, known: Mapping[str, str] | None = None) -> str:
    """Return the hex SHA-256 of a folder: the relative names and contents of its files, in the order of the names.

    ``known`` has digests of files by relative name; these files are not read again.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0{(known or {}).get(name) or sha256_file(path)}\n".encode())
    return digest.hexdigest()
