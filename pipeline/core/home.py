"""Where a clone keeps what outlives builds, branches and experiments: the ledger of paid answers, and the rows that later builds reuse."""

import os
import subprocess
from pathlib import Path

STORE_VARIABLE = "AERIE_STORE"
"""Environment variable that names the folder; without it, all work trees, experiments and queues of a clone share one."""


def workspace() -> Path:
    """Root of the clone. DVC runs an experiment in a copy with a git folder of its own, and says in DVC_ROOT where the clone is."""
    return Path(os.environ.get("DVC_ROOT") or Path.cwd())


def shared_folder() -> Path | None:
    """`$AERIE_STORE`, else `aerie` in the clone's git folder; None without a git repository."""
    if chosen := os.environ.get(STORE_VARIABLE):
        return Path(chosen).absolute()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    }  # a hook's GIT_DIR names another repository
    command = ["git", "-C", str(workspace()), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
    except FileNotFoundError:
        return None
    return Path(found.stdout.strip()) / "aerie" if found.returncode == 0 else None


def store_folder() -> Path:
    """Folder of the ledger: the shared one, else `.aerie` here, since answers that were paid for must lie somewhere."""
    return shared_folder() or workspace() / ".aerie"
