"""Versions of a build, read without a checkout: small files from git, data from the DVC cache or remote."""

from pathlib import Path
from typing import Any, Protocol

import orjson

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.contents import read_bytes
from pipeline.project.compose import documents
from pipeline.project.git import git
from pipeline.project.params import read_params
from pipeline.project.versions.diff.data_store import DataStore, DataVersion
from pipeline.project.versions.lockfile import LOCK, LockEntry, parse_lock, read_lock
from pipeline.project.versions.staleness import CODE, CONFIG, instances


class Version(Protocol):
    """One side of a comparison."""

    label: str
    """Its name in messages and reports."""

    def document(self, path: str) -> Any:
        """Return a small JSON document that git keeps; None if this version does not have it."""

    def lock(self) -> dict[str, LockEntry] | None:
        """Return the entries of dvc.lock; None if nothing was built."""

    def data(self, path: str) -> DataVersion:
        """Return a data file of this version.

        Raises:
            ArtifactError: the file is not available; with the reason.

        """


def commit_of(revision: str) -> str:
    """Return the hash of the commit that a revision names.

    Raises:
        InputError: there is no such revision.

    """
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    except InputError as error:
        refs = ("refs/heads", "refs/tags", "refs/remotes")
        listed = git("for-each-ref", "--count=8", "--sort=-committerdate", "--format=%(refname:short)", *refs)
        shallow = git("rev-parse", "--is-shallow-repository").strip() == b"true"
        advice = (
            "this clone is shallow: `git fetch --unshallow` brings older commits"
            if shallow
            else "`git fetch` brings what others pushed"
        )
        raise InputError(
            f"no revision {revision!r} in this repository ({advice}); branches and tags: {listed.decode().split()}"
        ) from error


def parse_range(arguments: list[str]) -> tuple[str, str | None]:
    """Parse `REV`, `REV REV2`, `A..B` or `A...B` (from the fork point) into old and new; None for the working tree.

    Raises:
        InputError: more than two, a range among two, or a revision that does not exist.

    """
    if len(arguments) > 2 or (len(arguments) == 2 and any(".." in argument for argument in arguments)):
        raise InputError(f"the versions to compare are REV, REV REV2, A..B or A...B; found {arguments}")
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
    """Return the newest commit that two revisions have in common."""
    commits = commit_of(left), commit_of(right)
    try:
        return git("merge-base", *commits).decode().strip()
    except InputError as error:
        raise InputError(
            f"{left} and {right} have no commit in common; a shallow clone needs `git fetch --unshallow`, "
            f"and `python -m pipeline diff {left} {right}` compares the two as they are"
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
                f"{self.label}: {CONFIG} of that commit is not what compose writes: it has no list `names`; "
                "choose a later commit"
            )

    def document(self, path: str) -> Any:
        """Return a document of the commit."""
        content = self._files.get(path)
        try:
            return None if content is None else orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path} in {self.label}: not JSON: {error}") from error

    def lock(self) -> dict[str, LockEntry] | None:
        """Return the entries of the commit's dvc.lock."""
        content = self._files.get(LOCK.name)
        return None if content is None else parse_lock(content, f"{LOCK} in {self.label}")

    def data(self, path: str) -> DataVersion:
        """Return the file that the commit's dvc.lock names."""
        return self._store.find(path, recorded(self.lock(), path, self.label))


class WorkingTree:
    """The files on the disk; config and code are those that `compose` would write now."""

    label = "the working tree"

    def __init__(self, store: DataStore) -> None:
        self._store = store
        _, files = documents(read_params())
        self._composed = {path.as_posix(): content for path, content in files.items()}

    def document(self, path: str) -> Any:
        """Return a document from the disk, or as composed now."""
        content = self._composed.get(path)
        if content is None:
            content = read_bytes(Path(path)) if Path(path).exists() else None
        try:
            return None if content is None else orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}: not JSON: {error}") from error

    def lock(self) -> dict[str, LockEntry] | None:
        """Return the entries of dvc.lock on the disk."""
        return read_lock()

    def data(self, path: str) -> DataVersion:
        """Return the file on the disk, else the one that dvc.lock names."""
        if Path(path).exists():
            return DataVersion(Path(path), None)
        return self._store.find(path, recorded(self.lock(), path, self.label))


def recorded(lock: dict[str, LockEntry] | None, path: str, label: str) -> str:
    """Return the digest of a data file in a version's dvc.lock.

    Raises:
        ArtifactError: nothing was built in that version, or this file was not.

    """
    if lock is None:
        raise ArtifactError(f"{path}: {label} has no {LOCK}, so nothing was built in it, or the lock was not committed")
    for entry in lock.values():
        if path in entry.outs:
            return entry.outs[path]
    raise ArtifactError(f"{path}: {LOCK} of {label} does not name it")


def _files_of(commit: str) -> dict[str, bytes]:
    """Return path and content of the small files that a comparison reads, with one call of git for all contents."""
    listed = git("ls-tree", "-r", "-z", commit, "--", "./build", LOCK.name).split(b"\0")
    blobs = {}
    for line in filter(None, listed):
        entry, _, name = line.partition(b"\t")
        path = name.decode("utf-8", "surrogateescape")
        if path == LOCK.name or path.endswith(".json"):
            blobs[path] = entry.split()[2]
    content = git("cat-file", "--batch", stdin=b"".join(blob + b"\n" for blob in blobs.values()))
    files, start = {}, 0
    for path in blobs:
        end = content.index(b"\n", start)
        header = content[start:end].split()
        if len(header) < 3:
            raise InputError(
                f"{path}: git does not have its content here, as in a clone made with --filter: "
                "`git fetch --refetch` brings it"
            )
        size = int(header[2])
        files[path] = content[end + 1 : end + 1 + size]
        start = end + 2 + size
    return files


def summaries_of(names: list[str], version: Version) -> dict[str, dict[str, Any]]:
    """Return the small documents that git holds of a version, by stage label and path."""
    summaries: dict[str, dict[str, Any]] = {}
    for label, stage, name in instances(names):
        paths = [template.format(d=name) for template in stage.kept_in_git() if template.endswith(".json")]
        summaries[label] = {
            path: document
            for path in paths
            if path not in (CONFIG, CODE) and (document := version.document(path)) is not None
        }
    return summaries
