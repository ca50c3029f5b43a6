"""What happens around a stage: follow the parent's death, show errors as one message, give the right exit code.

Root of every stage's code fingerprint, so it imports no stage and no table.
"""

import contextlib
import ctypes
import errno
import gc
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from pipeline.core.errors import AerieError, ConfigError
from pipeline.core.parse_faults import fault_of_import
from pipeline.core.sections import Section, mistake

INTERRUPTED = 130
"""Exit code after Ctrl-C: never 0, since DVC would record a half output as success."""

BROKEN = 70
"""Exit code after a fault of ours: never 1, which says that the gate or an audit decided against the data."""

STARTED = time.time()
"""When this process began to load code, in seconds since 1970."""

_PR_SET_PDEATHSIG = 1
_COMM = 15
"""Characters of a program's name that Linux keeps for its process."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def follow_parent(parent: int | None = None) -> None:
    """End this process when the one that started it dies, or has died already: a killed `dvc` must leave no stage that goes on spending.

    A process that takes a while until it comes here is told who its ``parent`` was, which may be dead by then.
    """
    parent = parent or os.getppid()
    starter = _parent_of(parent) if _is_dvcs_shell(parent) else parent
    if _dvc_is_gone(starter):
        os._exit(128 + signal.SIGTERM)
    libc = ctypes.CDLL(None, use_errno=True)
    if follows_at_once := hasattr(libc, "prctl"):  # Linux: the kernel tells us
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
    if starter != parent:
        threading.Thread(target=_watch, args=(starter, lambda: _parent_of(parent)), daemon=True).start()
    elif not follows_at_once:
        threading.Thread(target=_watch, args=(parent, os.getppid), daemon=True).start()


def _is_dvcs_shell(pid: int) -> bool:
    """Whether that process is the shell through which DVC started this stage, and which lives on without DVC: dash does not become the command that it is given, as bash does."""
    return "DVC_STAGE" in os.environ and _name_of(pid) == Path(os.environ.get("SHELL") or "/bin/sh").name[:_COMM]


def _dvc_is_gone(starter: int) -> bool:
    """Whether DVC died while this stage of it was still being loaded: then the system's first process, or the user's, has taken it in.

    A stage shares DVC's process group, so a process of another group is not the one that started it.
    """
    if "DVC_STAGE" not in os.environ:
        return False
    try:
        return os.getpgid(starter) != os.getpgrp() and (starter == 1 or _name_of(starter) == "systemd")
    except ProcessLookupError:  # it died just now
        return True


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:  # it has ended, or a system without /proc
        return ""


def _parent_of(pid: int) -> int:
    """Parent of a process; 1 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 1


def begin_worker() -> None:
    """Begin a process of a pool: it ends with its parent, and at once when it is told to.

    A handler that raises, as a stage's own does, would end nothing: the pool's code catches what is raised and waits on, for a reader that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    follow_parent()


def _watch(process: int, now: Callable[[], int]) -> None:
    """Wait until another process stands in the place of ``process``, which has then died."""
    with contextlib.suppress(AttributeError, OSError):  # where the system tells at once; elsewhere within a second
        handle = os.pidfd_open(process)
        if now() == process:
            select.select([handle], [], [])
    while now() == process:
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
            raise ConfigError(
                f"build/config.json has no {path!r} (looked for {part!r}); run `python -m pipeline compose`"
            )
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
        raise ConfigError(
            f"build/config.json does not fit this code; run `python -m pipeline compose`:\n  {listed}"
        ) from error


def tell(text: str) -> None:
    """Say something to people, on standard error. Where a full disk takes what is said there, it stays unsaid: no work may end for that."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in _FULL:
            raise


def guarded(work: Callable[[], int | None]) -> int:
    """Run ``work``; show what the user can act on as one message on stderr, and a fault of ours whole; return the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = work() or 0
        sys.stdout.flush()  # what it writes to may be full: better to know now than when the interpreter ends
        return code
    except AerieError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        tell("interrupted: what was finished is kept; run again to continue")
        return INTERRUPTED
    except BrokenPipeError:
        _drop(sys.stdout)
        return 128 + signal.SIGPIPE
    except MemoryError:
        tell("error: out of memory; lower tokens_per_batch or the concurrency in conf/")
        return 2
    except (ModuleNotFoundError, SyntaxError) as error:
        if (said := fault_of_import(error)) is None:
            return _fault()
        tell(f"error: {said}")
        return AerieError.exit_code
    except OSError as error:
        if error.errno in _FULL:
            _drop(sys.stdout)
            tell(f"error: {error.filename or 'where the output goes'}: {error.strerror}; free some space and run again")
        elif error.errno in _FORBIDDEN and error.filename is not None:
            tell(f"error: {error.filename}: {error.strerror}; see that you may read and write there, and run again")
        else:
            return _fault()
        return AerieError.exit_code
    except Exception:  # noqa: BLE001 - the last boundary: Python itself would show the same and exit with 1
        return _fault()
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # or the interpreter tries again at its end, and exits with a code of its own
            _drop(sys.stderr)


def _fault() -> int:
    tell(
        f"{traceback.format_exc()}this is a fault of the program, not of the data; please report it with the lines above"
    )
    return BROKEN


def _drop(output: TextIO) -> None:
    """Let nothing more go to an output that takes nothing, also not when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _terminate(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
