"""Who may write to the ledger."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from pipeline.core.errors import BusyError, DiskError
from pipeline.core.home import STORE_VARIABLE


@contextlib.contextmanager
def only_writer(folder: Path, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the store alone. The kernel lets go of it when this process ends, however it ends.

    Raises:
        BusyError: another live generator holds it, and ``wait`` is false.
        DiskError: the folder cannot be made.

    """
    path = folder / "ledger.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DiskError(
            f"{path}: {error.strerror or error}; set {STORE_VARIABLE} to a folder on a local disk that has room and that you may write to"
        ) from error
    try:
        _take(handle, folder, wait=wait, say=say)
        with contextlib.suppress(
            OSError
        ):  # a full disk: who holds the lock is only a hint, and the ledger says it better
            os.ftruncate(handle, 0)
            os.pwrite(
                handle,
                orjson.dumps(
                    {"pid": os.getpid(), "experiment": os.environ.get("DVC_EXP_NAME"), "folder": str(Path.cwd())}
                ),
                0,
            )
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path, *, wait: bool, say: Callable[[str], None]) -> None:
    said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1000, 0).decode("utf-8", "replace") or "a process that is just starting"
            if not wait:
                raise BusyError(
                    f"{folder}: another generator is at work: {holder}; wait for it, or set provider.wait_for_store to true"
                ) from None
            if not said:
                say(f"waiting for the generator that holds {folder}: {holder}")
                said = True
            time.sleep(0.2)
        else:
            return
