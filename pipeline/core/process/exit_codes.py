"""Exit codes: turn the end of a program into one message and a code."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from pipeline.core.errors import AerieError
from pipeline.core.parse_errors import import_error_message
from pipeline.core.process.messages import DISK_FULL, tell

INTERRUPTED = 130
"""Exit code after Ctrl-C. Never 0, since DVC would record an incomplete output as a success."""

BROKEN = 70
"""Exit code after a fault of the program. Never 1, which says that the gate or an audit rejected the data."""

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of a path that this user may not use."""


def guarded(work: Callable[[], int | None]) -> int:
    """Run ``work`` and return the exit code.

    An error that the user can act on becomes one message on standard error; a fault of the program shows its traceback.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = work() or 0
        sys.stdout.flush()  # the disk behind the output may be full: find out now, not when the interpreter ends
        return code
    except AerieError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        tell("interrupted: what was finished is kept; run again to continue")
        return INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)
        return 128 + signal.SIGPIPE
    except MemoryError:
        tell("error: out of memory; lower tokens_per_batch or the concurrency in conf/")
        return 2
    except (ModuleNotFoundError, SyntaxError) as error:
        if (message := import_error_message(error)) is None:
            return _fault()
        tell(f"error: {message}")
        return AerieError.exit_code
    except OSError as error:
        if error.errno in DISK_FULL:
            _discard(sys.stdout)
            tell(f"error: {error.filename or 'the output'}: {error.strerror}; free some space and run again")
        elif error.errno in _FORBIDDEN and error.filename is not None:
            tell(f"error: {error.filename}: {error.strerror}; check that you may read and write there, and run again")
        else:
            return _fault()
        return AerieError.exit_code
    except Exception:  # noqa: BLE001 - the last boundary: Python itself would show the same and exit with 1
        return _fault()
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # otherwise the interpreter flushes again at its end and exits with a code of its own
            _discard(sys.stderr)


def _fault() -> int:
    tell(
        f"{traceback.format_exc()}this is a fault of the program, not of the data; "
        "please report it with the lines above"
    )
    return BROKEN


def _discard(output: TextIO) -> None:
    """Redirect a broken output to the null device, also for the flush when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def _terminate(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
