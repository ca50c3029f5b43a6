"""Messages to the user on standard error."""

import errno
import sys

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk or quota that is full, or of a file that may not grow."""


def tell(text: str) -> None:
    """Print a line on standard error. On a full disk the message is dropped: no work may end because of it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
