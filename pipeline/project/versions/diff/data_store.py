"""Data files of any version, from the DVC cache or from a remote that fills it.

DVC's `exists()` returns true for a file that is nowhere, and the config of an old revision does not know a remote that
was added later. So the digest in that revision's dvc.lock is looked up in the cache and the remote of this workspace.
"""

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class DataVersion:
    """A data file of a version; read only."""

    path: Path
    md5: str | None
    """Its digest in dvc.lock; None for a file in the working tree, which may be newer."""

    def same_as(self, other: "DataVersion") -> bool:
        """Return whether both are the same bytes, as far as that is known without reading them."""
        if self.md5 is not None and self.md5 == other.md5:
            return True
        with suppress(OSError):
            return self.path.samefile(other.path)
        return False


class DataStore:
    """The DVC cache of this workspace, and its default remote. DVC is imported at the first use."""

    def __init__(self, *, fetch: bool = True) -> None:
        self._may_fetch = fetch
        self._repo: Any = None

    def find(self, path: str, md5: str) -> DataVersion:
        """Return the cached file with a digest; fetch it from the remote if the cache lacks it.

        Raises:
            ArtifactError: neither has it.

        """
        cache = self._open(path).cache.local
        cached = Path(cache.oid_to_path(md5))
        if not cached.exists():
            self._fetch_into_cache(path, md5)
        if not cached.exists():
            raise ArtifactError(
                f"{path}: its version {md5} is neither in the DVC cache nor in the remote; "
                "the person who built it can `dvc push` it"
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
            except (sqlite3.Error, OSError) as error:  # DVC needs a database of its own even to read
                raise ArtifactError(
                    f"{path}: DVC cannot be asked, since it cannot write its notes "
                    f"(`dvc config core.site_cache_dir`): {error}"
                ) from error
        return self._repo

    def _fetch_into_cache(self, path: str, md5: str) -> None:
        """Copy a file from the default remote into the cache."""
        from dvc.config import NoRemoteError
        from dvc_data.hashfile.hash_info import HashInfo

        if not self._may_fetch:
            return
        try:
            self._repo.cloud.pull([HashInfo("md5", md5)])
        except NoRemoteError as error:
            raise ArtifactError(
                f"{path}: its version {md5} is not in the DVC cache, and there is no default remote to ask "
                "(`dvc remote default NAME`)"
            ) from error
        except Exception as error:  # each storage library raises its own errors, for credentials, plugins, networks
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ArtifactError(
                f"{path}: its version {md5} is not in the DVC cache, and the remote cannot give it: {reason}"
            ) from error
