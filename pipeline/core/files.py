"""The only opener of data files: what is read is checked, what is written appears whole or not at all.

Every write goes to a temporary name in the same folder, is flushed to the disk, and is then renamed: a killed
process leaves either the old file or the new one, never a part. A full disk removes the temporary file and says so.
"""

import contextlib
import errno
import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from pipeline.core.errors import ArtifactError, DiskError, InputError
from pipeline.core.parse_faults import conflict, fault

Model = TypeVar("Model", bound=BaseModel)

_TEMPORARY = ".partial"

WRITE_BUFFER = 1 << 18
"""Bytes written at a time: rows of some KiB would else be a system call each."""


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of an unfinished file of that name, or of any. Only for a caller that knows itself to be the only writer."""
    for leftover in folder.glob(f".{name}.*{_TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _disk_error(path: Path, error: OSError) -> DiskError:
    if error.errno == errno.EFBIG:
        return DiskError(
            f"{path}: longer than a file may be here (`ulimit -f`, or the file system's own limit); nothing was written there"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(
            f"{path}: {_what_is_full(path.parent, error)}; nothing was written there: free some space and run again"
        )
    return DiskError(
        f"{path}: cannot be written: {error.strerror or error}; see that you may write to {path.parent}, or name another place"
    )


def _what_is_full(folder: Path, error: OSError) -> str:
    if error.errno == errno.EDQUOT or not folder.exists():
        return f"{error.strerror}"
    found = os.statvfs(folder)
    if found.f_files and not found.f_favail:
        return f"the disk takes no more files (no inode is left in {folder})"
    return f"the disk is full ({found.f_bavail * found.f_frsize:,} bytes are left in {folder})"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing in binary; it appears, whole and on the disk, only when the block ends well.

    Raises:
        DiskError: the disk is full or the folder not writable; the temporary file is gone. Or a device or pipe is there, which a file would replace.

    """
    temporary = _temporary(path)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DiskError(f"{path}: is no regular file, and a file would take its place; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", buffering=WRITE_BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        said = (
            _disk_error(path, error) if isinstance(error, OSError) else None
        )  # before the removal frees what there was no room for
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if said is not None:
            raise said from error
        raise


def refuse_overwriting(inputs: Iterable[Path | None], outputs: Iterable[Path | None]) -> None:
    """Refuse outputs that are a file which is read, or one another: what a user brought is never written over.

    Raises:
        InputError: two of them are one file; the message names it.

    """
    seen = [(path, "is read as well, and would be written over") for path in inputs if path is not None]
    for out in outputs:
        if out is None:
            continue
        for path, why in seen:
            if out.absolute() == path.absolute() or (out.exists() and path.exists() and out.samefile(path)):
                raise InputError(f"{out}: {why}; write to another place")
        seen.append((out, "is to be written twice"))


def install_folder(finished: Path, path: Path) -> None:
    """Put a finished folder in the place of ``path``, in one rename, once every file of it is on the disk."""
    for file in sorted(finished.rglob("*")):
        if file.is_file():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    if path.exists():
        shutil.rmtree(path)
    finished.replace(path)
    _sync_folder(path.parent)


@contextlib.contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that replaces ``path`` when the block ends well, and vanishes when it does not.

    Raises:
        DiskError: the disk is full or the parent not writable.

    """
    temporary = _temporary(path)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        install_folder(temporary, path)
    except BaseException as error:
        said = _disk_error(path, error) if isinstance(error, OSError) else None
        if isinstance(error, DiskError):  # of a file in the folder, which by now has no such name
            said = DiskError(str(error).replace(str(temporary), str(path)))
        shutil.rmtree(temporary, ignore_errors=True)
        if said is not None:
            raise said from error
        raise


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder for files that nobody needs after the block.

    Raises:
        DiskError: no folder for temporary files has room.

    """
    elsewhere = "or set TMPDIR to a folder that has room and that you may write to"
    try:
        made = tempfile.TemporaryDirectory(prefix="aerie-")
    except OSError as error:
        raise DiskError(
            f"temporary files have no place: {error.strerror or error}; free some space, {elsewhere}"
        ) from error
    with made as folder:
        try:
            yield Path(folder)
        except DiskError as error:
            raise DiskError(f"{error}, {elsewhere}") if folder in str(error) else error from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` whole, or nothing."""
    with writing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole, or nothing."""
    write_bytes(path, text.encode())


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """JSON with sorted keys and no trailing spaces: equal values give equal bytes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | (orjson.OPT_INDENT_2 if indent else 0))


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON document for people and for git: indented, keys sorted, ends with a newline."""
    write_bytes(path, to_json(value, indent=True) + b"\n")


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        ArtifactError: the file is missing or cannot be read.

    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}; run `dvc repro` to make it") from error


def read_json(path: Path) -> Any:
    """Read a JSON document.

    Raises:
        ArtifactError: missing, or not JSON.

    """
    content = read_bytes(path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ArtifactError(
            f"{fault(path, 'JSON', error.lineno, error.msg, conflict(content))}; delete it and run `dvc repro`"
        ) from error


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON document as ``model``; unknown or missing fields are refused.

    Raises:
        ArtifactError: missing, not JSON, or not of this shape.

    """
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(
            f"{path}: {where or 'document'}: {first['msg']}; it was written by another version: run `dvc repro`"
        ) from error


READ_BUFFER = 1 << 18
"""Bytes read at a time: a response's line is often longer than the default of 8 KiB, and then read in pieces, in three times the time."""


def open_plain(path: Path) -> IO[bytes]:
    """Open a file for reading as it is."""
    return open(path, "rb", buffering=READ_BUFFER)


def open_gzip(path: Path) -> IO[bytes]:
    """Open a gzip file for reading what it holds."""
    return cast(IO[bytes], gzip.open(path, "rb"))


def read_lines(
    path: Path, opener: Callable[[Path], IO[bytes]] = open_plain
) -> Generator[tuple[int, bytes], None, None]:
    r"""Lines of a file with their numbers from 1, split on ``\n`` only (U+2028, NEL and VT belong to the text); empty lines are left out.

    Raises:
        InputError: the file is missing, cut short, or cannot be read.

    """
    try:
        with opener(path) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def read_jsonl(path: Path, opener: Callable[[Path], IO[bytes]] = open_plain) -> Iterator[tuple[int, Any]]:
    """Each line's number (from 1) and its value.

    Raises:
        InputError: the file is missing, or a line is not JSON; the message has the line's number.

    """
    for number, line in read_lines(path, opener):
        try:
            yield number, orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; found {line[:80]!r}") from error


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write one JSON value a line, in the order given; return how many. A ``bytes`` row is taken as JSON already."""
    count = 0
    with writing(path) as file:
        for row in rows:
            file.write((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n")
            count += 1
    return count


def digests_of_file(path: Path, *names: str, read_size: int = 1 << 20) -> list[str]:
    """Hex digests of a file's bytes by several algorithms, in one reading.

    Raises:
        ArtifactError: the file is missing or cannot be read.

    """
    digests = [hashlib.new(name, usedforsecurity=False) for name in names]
    try:
        with open(path, "rb") as file:
            while chunk := file.read(read_size):
                for digest in digests:
                    digest.update(chunk)
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror or error}") from error
    return [digest.hexdigest() for digest in digests]


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return digests_of_file(path, "sha256")[0]


def sha256_folder(folder: Path, known: Mapping[str, str] | None = None) -> str:
    """Hex digest of a folder: the relative names and bytes of its files, in name order; ``known`` are digests of files by name that need no reading."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0{(known or {}).get(name) or sha256_file(path)}\n".encode())
    return digest.hexdigest()


class KeyedLines:
    """A JSONL file whose lines are wanted by their `id`, mostly in the file's own order; one line in memory at a time.

    As long as ids are asked for in the order of the file, it is read once from front to back, and a line that begins with its id, as ours do,
    is not parsed. The first id out of order makes an index of where each line begins.
    """

    def __init__(self, path: Path, *, anyone: bool = False) -> None:
        """Open a file of ours, or one that `anyone` may have written: there a line without an id is `line-<n>`, and one that is not JSON is passed over."""
        self.path = path
        self._anyone = anyone
        self._lines = read_lines(path)
        self._offsets: dict[str, int] | None = None

    def get(self, key: str) -> bytes | None:
        """Return the line with this id as it stands in the file, or None when there is none; one that begins with the id may be cut short.

        Raises:
            InputError: the file is missing, or a line is not JSON or has no id.

        """
        if self._offsets is None:
            for number, line in self._lines:
                if self._begins_with(line, key) or self._id(line, number) == key:
                    return line
                break
            self._lines.close()
            self._offsets = self._index()
        offset = self._offsets.get(key)
        if offset is None:
            return None
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.readline()

    def _begins_with(self, line: bytes, key: str) -> bool:
        """Whether a line of ours has this id: it stands first, written as `orjson` writes it."""
        return not self._anyone and line.startswith(b'{"id":' + orjson.dumps(key) + b",")

    def _id(self, line: bytes, number: int) -> str | None:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if self._anyone:
                return None
            raise InputError(f"{self.path}:{number}: not JSON: {error}; found {line[:80]!r}") from error
        if self._anyone:
            name = (value.get("custom_id") or value.get("id")) if isinstance(value, dict) else None
            return str(name) if (isinstance(name, str) and name) or type(name) is int else f"line-{number}"
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise InputError(f"{self.path}:{number}: needs an object with a string `id`; found {line[:80]!r}")
        return str(value["id"])

    def _index(self) -> dict[str, int]:
        offsets: dict[str, int] = {}
        at = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (name := self._id(line, number)) is not None:
                    offsets.setdefault(name, at)
                at += len(line)
        return offsets


def read_start(path: Path, size: int) -> bytes:
    """First bytes of a file, to tell what it is.

    Raises:
        InputError: the file is missing or cannot be read.

    """
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
