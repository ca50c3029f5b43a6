"""Commands in a namespace of their own: `offline()` where only loopback exists, `mounting()` where a small disk can be mounted.

The kernel is the witness: that a build needs no network, or what a full disk does. Where it grants no namespace, they give None.
As a script, it switches on loopback and becomes the command that it is given.
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
    """`unshare` with the options under which ``trial`` works: as root first, else as a user who is root inside only."""
    for options in ((kind,), ("--user", "--map-root-user", kind)):
        words = ("unshare", *options)
        if (
            shutil.which("unshare")
            and subprocess.run([*words, *trial], capture_output=True, check=False).returncode == 0
        ):
            return words
    return None


def offline() -> tuple[str, ...] | None:
    """Words to put before a command that shall find no network but loopback."""
    through = (sys.executable, os.path.abspath(__file__))
    words = _granted("--net", *through, "true")
    return None if words is None else (*words, *through)


def mounting(script: str) -> tuple[str, ...] | None:
    """Words to put before a command's arguments, which a shell script that may mount disks finds in "$@"."""
    words = _granted("--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return None if words is None else (*words, "sh", "-c", script, "sh")


def loopback_up() -> None:
    """Switch on `lo`, which a new namespace has switched off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    loopback_up()
    os.execvp(sys.argv[1], sys.argv[1:])
