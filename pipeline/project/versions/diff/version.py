"""A version of the build, read without checking anything out: small files from git, data from the DVC cache or remote."""

import subprocess
from pathlib import Path
from typing import Any, Protocol

import orjson

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files import read_bytes
from pipeline.project.compose import documents
from pipeline.project.params import read_params
from pipeline.project.versions.diff.data import DataStore, DataVersion
from pipeline.project.versions.lockfile import LOCK, Entry, parse_lock, read_lock
from pipeline.project.versions.staleness import CODE, CONFIG, instances


class Version(Protocol):
    """What a comparison asks of either side."""

    label: str
    """How people call it."""

    def document(self, path: str) -> Any:
        """Give a small JSON document that git keeps, or None when this version has none."""

    def lock(self) -> dict[str, Entry] | None:
        """Entries of dvc.lock, or None when nothing was built."""

    def data(self, path: str) -> DataVersion:
        """Give a data file as it was in this version.

        Raises:
            ArtifactError: it is nowhere to be had, and why.

        """


def git(*arguments: str, stdin: bytes | None = None) -> bytes:
    """Run a git command that only reads; return what it printed.

    Raises:
        InputError: git refuses, in its own words.

    """
    try:
        done = subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=False)
    except OSError as error:
        raise InputError(f"git cannot be started: {error}; versions are compared through git, so install it") from error
    if b"not a git repository" in done.stderr:
        raise InputError("this folder is in no git repository, and versions are commits: run this in a clone")
    if done.returncode:
        raise InputError(f"git {' '.join(arguments[:3])}: {done.stderr.decode('utf-8', 'replace').strip()}")
    return done.stdout


def commit_of(revision: str) -> str:
    """Hash of the commit that a revision names.

    Raises:
        InputError: there is no such revision.

    """
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except InputError as error:
        known = (
            git(
                "for-each-ref",
                "--count=8",
                "--sort=-committerdate",
                "--format=%(refname:short)",
                "refs/heads",
                "refs/tags",
                "refs/remotes",
            )
            .decode()
            .split()
        )
        shallow = git("rev-parse", "--is-shallow-repository").strip() == b"true"
        brings = (
            "this clone is shallow: `git fetch --unshallow` brings older commits"
            if shallow
            else "`git fetch` brings what others pushed"
        )
        raise InputError(
            f"no revision {revision!r} in this repository ({brings}); branches and tags: {known}"
        ) from error


def parse_range(arguments: list[str]) -> tuple[str, str | None]:
    """Old and new revision of `REV`, `REV REV2`, `A..B` or `A...B` (from where B left A); None stands for the working tree.

    Raises:
        InputError: more than two, a range among two, or a revision that does not exist.

    """
    if len(arguments) > 2 or (len(arguments) == 2 and any(".." in argument for argument in arguments)):
        raise InputError(f"compare what with what? Give REV, REV REV2, A..B or A...B; found {arguments}")
    if len(arguments) == 2:
        return arguments[0], arguments[1]
    only = arguments[0] if arguments else "HEAD"
    if "..." in only:
        left, _, right = only.partition("...")
        return _fork_point(left or "HEAD", right or "HEAD"), right or "HEAD"
    if ".." in only:
        left, _, right = only.partition("..")
        return left or "HEAD", right or "HEAD"
    return only, None


def _fork_point(left: str, right: str) -> str:
    """Commit at which two revisions parted."""
    commits = commit_of(left), commit_of(right)
    try:
        return git("merge-base", *commits).decode().strip()
    except InputError as error:
        raise InputError(
            f"{left} and {right} have no commit in common, so there is no place where one left the other; "
            f"a shallow clone needs `git fetch --unshallow`, and `python -m pipeline diff {left} {right}` compares the two as they are"
        ) from error


class Revision:
    """A commit."""

    def __init__(self, revision: str, store: DataStore) -> None:
        self.commit = commit_of(revision)
        self.label = revision if revision != self.commit else self.commit[:10]
        self._store = store
        self._files = _files_of(self.commit)
        if CONFIG not in self._files:
            raise InputError(
                f"{self.label}: that commit has no {CONFIG}, so nothing was composed in it; choose a later one"
            )
        config = self.document(CONFIG)
        names = config.get("names") if isinstance(config, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(
                f"{self.label}: {CONFIG} of that commit is not what compose writes: it has no list `names`; choose a later commit"
            )

    def document(self, path: str) -> Any:
        """Give a document out of the commit."""
        content = self._files.get(path)
        try:
            return None if content is None else orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path} in {self.label}: not JSON: {error}") from error

    def lock(self) -> dict[str, Entry] | None:
        """Entries of the commit's dvc.lock."""
        content = self._files.get(LOCK.name)
        return None if content is None else parse_lock(content, f"{LOCK} in {self.label}")

    def data(self, path: str) -> DataVersion:
        """Give the file that the commit's dvc.lock speaks of."""
        return self._store.find(path, recorded(self.lock(), path, self.label))


class WorkingTree:
    """What lies on the disk; its config and code are what `compose` would write now."""

    label = "the working tree"

    def __init__(self, store: DataStore) -> None:
        self._store = store
        _, files = documents(read_params())
        self._composed = {path.as_posix(): content for path, content in files.items()}

    def document(self, path: str) -> Any:
        """Give a document from the disk, or as composed now."""
        content = self._composed.get(path)
        if content is None:
            content = read_bytes(Path(path)) if Path(path).exists() else None
        try:
            return None if content is None else orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}: not JSON: {error}") from error

    def lock(self) -> dict[str, Entry] | None:
        """Entries of dvc.lock on the disk."""
        return read_lock()

    def data(self, path: str) -> DataVersion:
        """Give the file on the disk, else the one that dvc.lock speaks of."""
        if Path(path).exists():
            return DataVersion(Path(path), None)
        return self._store.find(path, recorded(self.lock(), path, self.label))


def recorded(lock: dict[str, Entry] | None, path: str, label: str) -> str:
    """Digest of a data file by a version's dvc.lock.

    Raises:
        ArtifactError: nothing was built in that version, or not this file.

    """
    if lock is None:
        raise ArtifactError(f"{path}: {label} has no {LOCK}, so nothing was built in it, or the lock was not committed")
    for entry in lock.values():
        if path in entry.outs:
            return entry.outs[path]
    raise ArtifactError(f"{path}: {LOCK} of {label} does not speak of it")


def _files_of(commit: str) -> dict[str, bytes]:
    """Path to content of the small files that a comparison reads, in one call of git."""
    listed = git("ls-tree", "-r", "-z", commit, "--", "./build", LOCK.name).split(b"\0")
    found = {}
    for line in filter(None, listed):
        about, _, name = line.partition(b"\t")
        path = name.decode("utf-8", "surrogateescape")
        if path == LOCK.name or path.endswith(".json"):
            found[path] = about.split()[2]
    content = git("cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in found.values()))
    files, at = {}, 0
    for path in found:
        end = content.index(b"\n", at)
        header = content[at:end].split()
        if len(header) < 3:
            raise InputError(
                f"{path}: git does not have its content here, as in a clone made with --filter: `git fetch --refetch` brings it"
            )
        size = int(header[2])
        files[path] = content[end + 1 : end + 1 + size]
        at = end + 2 + size
    return files


def summaries_of(names: list[str], version: Version) -> dict[str, dict[str, Any]]:
    """Each small document that the build wrote for a dataset or for all, by stage label and path: what git holds of a version."""
    found: dict[str, dict[str, Any]] = {}
    for label, stage, name in instances(names):
        paths = [template.format(d=name) for template in stage.kept_in_git() if template.endswith(".json")]
        found[label] = {
            path: document
            for path in paths
            if path not in (CONFIG, CODE) and (document := version.document(path)) is not None
        }
    return found
