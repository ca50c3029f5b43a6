"""Parent death: end this process when the process that started it dies.

A killed `dvc` must not leave a stage behind that goes on spending money.
"""

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NAME_LENGTH = 15
"""Characters of a program's name that Linux keeps for a process."""


def follow_parent(parent: int | None = None) -> None:
    """End this process when its parent dies, or at once when the parent is dead already.

    A program that takes a while to load passes the process id of its ``parent`` as it was at the start: if the parent
    dies meanwhile, `getppid` returns the process that adopted this one.
    """
    parent = parent or os.getppid()
    starter = _parent_of(parent) if _is_shell_of_dvc(parent) else parent
    if _was_orphaned_while_loading(starter):
        os._exit(128 + signal.SIGTERM)
    libc = ctypes.CDLL(None, use_errno=True)
    if kernel_signals := hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
    if starter != parent:
        threading.Thread(target=_watch, args=(starter, lambda: _parent_of(parent)), daemon=True).start()
    elif not kernel_signals:
        threading.Thread(target=_watch, args=(parent, os.getppid), daemon=True).start()


def begin_worker() -> None:
    """Prepare a process of a pool: it ends with its parent, and at once on SIGTERM.

    A handler that raises, as a stage's own handler does, would not end the process: the pool's code catches the
    exception and goes on waiting for a reader that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_parent()


def _is_shell_of_dvc(pid: int) -> bool:
    """Return whether a process is the shell through which DVC started this stage.

    bash replaces itself with the command; dash does not, and lives on when DVC dies.
    """
    return "DVC_STAGE" in os.environ and _name_of(pid) == Path(os.environ.get("SHELL") or "/bin/sh").name[:_NAME_LENGTH]


def _was_orphaned_while_loading(starter: int) -> bool:
    """Return whether DVC died while this stage was loading, so that process 1 or the user's systemd adopted the stage.

    A stage shares DVC's process group, so a process of another group did not start it.
    """
    if "DVC_STAGE" not in os.environ:
        return False
    try:
        return os.getpgid(starter) != os.getpgrp() and (starter == 1 or _name_of(starter) == "systemd")
    except ProcessLookupError:  # it died just now
        return True


def _name_of(pid: int) -> str:
    """Return the name of a process's program; empty when the process has ended or the system has no /proc."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _parent_of(pid: int) -> int:
    """Return the parent of a process; 1 when the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 1


def _watch(process: int, current: Callable[[], int]) -> None:
    """Wait until ``current()`` is no longer ``process``, which has then died; end this process.

    Returns within a second of the death, and at once where the system has process file descriptors.
    """
    with contextlib.suppress(AttributeError, OSError):
        handle = os.pidfd_open(process)
        if current() == process:
            select.select([handle], [], [])
    while current() == process:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
