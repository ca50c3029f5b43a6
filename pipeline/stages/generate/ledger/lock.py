"""The lock that makes one process the ledger's only writer."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from pipeline.core.errors import BusyError, DiskError
from pipeline.core.home import STORE_VARIABLE

_POLL_SECONDS = 0.2


@contextlib.contextmanager
def only_writer(folder: Path, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the ledger's lock for the block. The kernel releases it when this process ends, however it ends.

    Raises:
        BusyError: another running generator holds the lock, and ``wait`` is false.
        DiskError: the folder cannot be created.

    """
    path = folder / "ledger.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DiskError(
            f"{path}: {error.strerror or error}; set {STORE_VARIABLE} to a folder on a local disk that has room and "
            "that you may write to"
        ) from error
    try:
        _acquire(handle, folder, wait=wait, say=say)
        with contextlib.suppress(OSError):  # a full disk: the holder's name is only a hint to others
            _write_holder(handle)
        yield
    finally:
        os.close(handle)


def _write_holder(handle: int) -> None:
    holder = {"pid": os.getpid(), "experiment": os.environ.get("DVC_EXP_NAME"), "folder": str(Path.cwd())}
    os.ftruncate(handle, 0)
    os.pwrite(handle, orjson.dumps(holder), 0)


def _acquire(handle: int, folder: Path, *, wait: bool, say: Callable[[str], None]) -> None:
    announced = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1000, 0).decode("utf-8", "replace") or "a process that is just starting"
            if not wait:
                raise BusyError(
                    f"{folder}: another generator is running: {holder}; wait until it ends, or set "
                    "provider.wait_for_store to true"
                ) from None
            if not announced:
                say(f"waiting for the generator that holds {folder}: {holder}")
                announced = True
            time.sleep(_POLL_SECONDS)
        else:
            return
