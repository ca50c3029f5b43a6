"""Atomic writes: a file or folder appears whole and on the disk, or not at all.

Every write goes to a temporary name in the same folder, is synced to the disk, and is then renamed. A killed process
leaves the old file or the new one, never a part. When the disk is full, the temporary file is removed and a
`DiskError` says so.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pipeline.core.errors import DiskError

_TEMPORARY = ".partial"

WRITE_BUFFER = 1 << 18
"""Bytes per write call: without a buffer, each row of a few KiB would be a system call."""


def temporary_path(path: Path) -> Path:
    """Return the name under which this process writes ``path`` until it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed processes, of the file ``name`` or of any file.

    Only for a caller that is the only writer in this folder: a running process's temporary files go too.
    """
    for leftover in folder.glob(f".{name}.*{_TEMPORARY}"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing in binary; the file appears only when the block ends without an error.

    Raises:
        DiskError: the disk is full, the folder is not writable, or ``path`` is a device or pipe, which a file would
            replace. The temporary file is removed.

    """
    temporary = temporary_path(path)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DiskError(f"{path}: is not a regular file; choose another path")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", buffering=WRITE_BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        # ask for the free space before the removal of the temporary file frees some
        disk_error = _disk_error(path, error) if isinstance(error, OSError) else None
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if disk_error is not None:
            raise disk_error from error
        raise


@contextlib.contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that replaces ``path`` when the block ends, and is removed when the block raises.

    Raises:
        DiskError: the disk is full, or the parent folder is not writable.

    """
    temporary = temporary_path(path)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        install_folder(temporary, path)
    except BaseException as error:
        disk_error = _disk_error(path, error) if isinstance(error, OSError) else None
        if isinstance(error, DiskError):  # raised for a file in the folder; name the final path, not the temporary one
            disk_error = DiskError(str(error).replace(str(temporary), str(path)))
        shutil.rmtree(temporary, ignore_errors=True)
        if disk_error is not None:
            raise disk_error from error
        raise


def install_folder(finished: Path, path: Path) -> None:
    """Sync every file of a finished folder, then replace ``path`` with the folder in one rename."""
    for file in sorted(finished.rglob("*")):
        if file.is_file():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    if path.exists():
        shutil.rmtree(path)
    finished.replace(path)
    _sync_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, atomically."""
    with writing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically."""
    write_bytes(path, text.encode())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk_error(path: Path, error: OSError) -> DiskError:
    if error.errno == errno.EFBIG:
        return DiskError(
            f"{path}: the file is longer than allowed here (`ulimit -f`, or the file system's own limit); "
            "nothing was written there"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(
            f"{path}: {_exhausted_resource(path.parent, error)}; nothing was written there: "
            "free some space and run again"
        )
    return DiskError(
        f"{path}: cannot be written: {error.strerror or error}; "
        f"check that you may write to {path.parent}, or choose another path"
    )


def _exhausted_resource(folder: Path, error: OSError) -> str:
    if error.errno == errno.EDQUOT or not folder.exists():
        return f"{error.strerror}"
    disk = os.statvfs(folder)
    if disk.f_files and not disk.f_favail:
        return f"the disk takes no more files (no inode is left in {folder})"
    return f"the disk is full ({disk.f_bavail * disk.f_frsize:,} bytes are left in {folder})"
