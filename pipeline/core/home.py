"""Shared folder of a clone, for data that outlives builds, branches and experiments.

It holds the ledger of paid answers and the cache of results that later builds reuse.
"""

import os
import subprocess
from pathlib import Path

STORE_VARIABLE = "AERIE_STORE"
"""Environment variable with the path of the folder. Without it, all work trees and experiments of a clone share one."""


def workspace() -> Path:
    """Return the root of the clone.

    DVC runs an experiment in a copy that has a git folder of its own; DVC_ROOT then has the path of the clone.
    """
    return Path(os.environ.get("DVC_ROOT") or Path.cwd())


def shared_folder() -> Path | None:
    """Return `$AERIE_STORE`, else `aerie` in the clone's git folder; None outside a git repository."""
    if chosen := os.environ.get(STORE_VARIABLE):
        return Path(chosen).absolute()
    # a git hook sets GIT_DIR, which may name another repository
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(workspace()), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()) / "aerie" if done.returncode == 0 else None


def store_folder() -> Path:
    """Return the folder of the ledger: the shared one, else `.aerie` here, since paid answers must be kept."""
    return shared_folder() or workspace() / ".aerie"
