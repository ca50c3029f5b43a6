"""Prefixes that run a command in its own Linux namespace: without a network, or free to mount small disks.

So the kernel itself proves that a build needs no network, or fills a disk. Both functions return None if the kernel
refuses the namespace. As a script, this module switches on loopback and then becomes the command in its arguments.
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
def _granted(kind: str, *trial: str) -> tuple[str, ...] | None:
    """Return an `unshare` command under which ``trial`` works: as root, else as a user who is root inside only."""
    for options in ((kind,), ("--user", "--map-root-user", kind)):
        prefix = ("unshare", *options)
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, *trial], capture_output=True, check=False).returncode == 0
        ):
            return prefix
    return None


def offline_command() -> tuple[str, ...] | None:
    """Return the prefix for a command that must find no network but loopback."""
    this_script = (sys.executable, os.path.abspath(__file__))
    prefix = _granted("--net", *this_script, "true")
    return None if prefix is None else (*prefix, *this_script)


def mounting_command(script: str) -> tuple[str, ...] | None:
    """Return the prefix for a command's arguments: a shell script that may mount disks, with the arguments in "$@"."""
    prefix = _granted("--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return None if prefix is None else (*prefix, "sh", "-c", script, "sh")


def loopback_up() -> None:
    """Switch on `lo`, which is off in a new namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    loopback_up()
    os.execvp(sys.argv[1], sys.argv[1:])
