"""What happens around a stage: follow the parent's death, show errors as one message, give the right exit code.

Root of every stage's code fingerprint, so it imports no stage and no table.
"""

import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.errors import AerieError, ConfigError
from pipeline.section import Section, mistake

INTERRUPTED = 130
"""Exit code after Ctrl-C: never 0, since DVC would record a half output as success."""

BROKEN = 70
"""Exit code after a fault of ours: never 1, which says that the gate or an audit decided against the data."""

STARTED = time.time()
"""When this process began to load code, in seconds since 1970."""

_PR_SET_PDEATHSIG = 1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def follow_parent() -> None:
    """End this process when the one that started it dies, or has died already: a killed `dvc` must leave no stage that goes on spending."""
    parent = os.getppid()
    if _dvc_is_gone(parent):
        os._exit(128 + signal.SIGTERM)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):  # Linux: the kernel tells us at once
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _dvc_is_gone(parent: int) -> bool:
    """Whether DVC died while this stage of it was still being loaded: then the system's first process, or the user's, has taken it in.

    A stage shares DVC's process group, so a parent of another group is not the one that started it.
    """
    if "DVC_STAGE" not in os.environ:
        return False
    try:
        return os.getpgid(parent) != os.getpgrp() and (parent == 1 or _name_of(parent) == "systemd")
    except ProcessLookupError:  # it died just now
        return True


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except OSError:  # a system without /proc
        return ""


def begin_worker() -> None:
    """Begin a process of a pool: it ends with its parent, and at once when it is told to.

    A handler that raises, as a stage's own does, would end nothing: the pool's code catches what is raised and waits on, for a reader that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_parent()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Switch the cycle collector off while much is made that stays: it would look through all of it again and again, and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def pick(config: Any, path: str) -> Any:
    """Value at a dotted path of build/config.json.

    Raises:
        ConfigError: nothing is there.

    """
    value = config
    for part in path.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ConfigError(f"build/config.json has no {path!r} (looked for {part!r}); run `python -m pipeline compose`")
        value = value[part]
    return value


def section_of(model: type[Section], values: dict[str, Any]) -> Section:
    """Validate a stage's slice of the config.

    Raises:
        ConfigError: it does not fit the stage's model; every mistake is named.

    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        listed = "\n  ".join(map(mistake, error.errors()))
        raise ConfigError(f"build/config.json does not fit this code; run `python -m pipeline compose`:\n  {listed}") from error


def guarded(work: Callable[[], int | None]) -> int:
    """Run ``work``; show what the user can act on as one message on stderr, and a fault of ours whole; return the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = work() or 0
        sys.stdout.flush()  # what it writes to may be full: better to know now than when the interpreter ends
        return code
    except AerieError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; run again to continue", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 128 + signal.SIGPIPE
    except MemoryError:
        print("error: out of memory; lower tokens_per_batch or the concurrency in conf/", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "pipeline":
            print(
                f"error: the package {error.name!r} is not installed for {sys.executable}: run `make setup`, then `source .venv/bin/activate`", file=sys.stderr
            )
            return AerieError.exit_code
        raise
    except OSError as error:
        if error.errno not in _FULL:
            return _fault()
        _drop_output()
        print(f"error: {error.filename or 'where the output goes'}: {error.strerror}; free some space and run again", file=sys.stderr)
        return AerieError.exit_code
    except Exception:  # noqa: BLE001 - the last boundary: Python itself would show the same and exit with 1
        return _fault()


def _fault() -> int:
    traceback.print_exc()
    print("this is a fault of the program, not of the data; please report it with the lines above", file=sys.stderr)
    return BROKEN


def _drop_output() -> None:
    """Let nothing more go to an output that takes nothing, also not when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
