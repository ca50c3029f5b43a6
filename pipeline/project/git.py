"""Read-only git commands."""

import subprocess

from pipeline.core.errors import InputError


def git(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Run a git command and return its standard output.

    Raises:
        InputError: git is missing, this is not a repository, or git refuses; with git's own message.

    """
    try:
        done = subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=False)
    except OSError as error:
        raise InputError(f"git cannot be started: {error}; versions are compared through git, so install it") from error
    if b"not a git repository" in done.stderr:
        raise InputError("this folder is not in a git repository, and versions are commits: run this in a clone")
    if done.returncode:
        raise InputError(f"git {' '.join(arguments[:3])}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout


def uncommitted(paths: list[str]) -> list[str]:
    """Return the files below some paths that differ from HEAD or that git does not know.

    Raises:
        InputError: as `git`.

    """
    lines = git(
        "--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", *paths
    ).split(b"\0")
    return [line[3:].decode("utf-8", "surrogateescape") for line in lines if line]
