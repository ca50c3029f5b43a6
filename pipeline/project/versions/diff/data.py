"""Where a version's data lies: the DVC cache, or a remote that fills it. Decided by hash, with the workspace's own DVC config.

DVC's `exists()` says yes to a file that is nowhere, and a revision's own config does not know a remote that was added
later; so the digest in that revision's dvc.lock is looked up in this workspace's cache and remote.
"""

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class DataVersion:
    """A data file of some version, to be read and never written."""

    path: Path
    md5: str | None
    """Its digest by dvc.lock; None for a file in the working tree, which may be newer."""

    def same_as(self, other: "DataVersion") -> bool:
        """Whether it is known without reading that both are the same bytes."""
        if self.md5 is not None and self.md5 == other.md5:
            return True
        with suppress(OSError):
            return self.path.samefile(other.path)
        return False


class DataStore:
    """The workspace's DVC cache, and its default remote behind it. DVC is loaded when first asked."""

    def __init__(self, *, fetch: bool = True) -> None:
        self._fetch = fetch
        self._repo: Any = None

    def find(self, path: str, md5: str) -> DataVersion:
        """Give the cached file with this digest; bring it from the remote when the cache lacks it.

        Raises:
            ArtifactError: neither has it; the message says what was tried.

        """
        cache = self._open(path).cache.local
        cached = Path(cache.oid_to_path(md5))
        if not cached.exists():
            self._bring(path, md5)
        if not cached.exists():
            raise ArtifactError(
                f"{path}: its version {md5} is neither in the DVC cache nor in the remote; whoever built it can `dvc push` it"
            )
        return DataVersion(cached, md5)

    def _open(self, path: str) -> Any:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo

        if self._repo is None:
            try:
                self._repo = Repo()
            except DvcException as error:
                raise ArtifactError(f"{path}: DVC cannot be asked: {error}") from error
            except (
                sqlite3.Error,
                OSError,
            ) as error:  # it keeps notes of its own, and where those cannot be written it does nothing at all
                raise ArtifactError(
                    f"{path}: DVC cannot be asked, since it cannot write its notes (`dvc config core.site_cache_dir`): {error}"
                ) from error
        return self._repo

    def _bring(self, path: str, md5: str) -> None:
        """Copy a file from the default remote into the cache."""
        from dvc.config import NoRemoteError
        from dvc_data.hashfile.hash_info import HashInfo

        if not self._fetch:
            return
        try:
            self._repo.cloud.pull([HashInfo("md5", md5)])
        except NoRemoteError as error:
            raise ArtifactError(
                f"{path}: its version {md5} is not in the DVC cache, and there is no default remote to ask (`dvc remote default NAME`)"
            ) from error
        except (
            Exception
        ) as error:  # each storage's library has errors of its own: no credentials, a missing plugin, no network
            said = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ArtifactError(
                f"{path}: its version {md5} is not in the DVC cache, and the remote cannot give it: {said}"
            ) from error
