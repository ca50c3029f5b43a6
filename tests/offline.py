"""Run a command where only loopback exists: `python -m tests.offline COMMAND ...` in a network namespace of its own.

The kernel is the witness that a build needs no network. Where the kernel grants no namespace, `prefix()` is None.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from functools import cache

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


@cache
def prefix() -> tuple[str, ...] | None:
    """Words to put before a command, or None where namespaces are not to be had."""
    for options in (("--net",), ("--user", "--map-root-user", "--net")):
        words = ("unshare", *options, sys.executable, os.path.abspath(__file__))
        if shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    return None


def loopback_up() -> None:
    """Switch on `lo`, which a new namespace has switched off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    loopback_up()
    os.execvp(sys.argv[1], sys.argv[1:])
