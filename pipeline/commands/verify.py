"""`python -m pipeline verify`: check that build/ and dvc.lock agree with conf/, params.yaml and the code.

The command writes nothing and runs nothing.
"""

import argparse

from pipeline.core.errors import ConfigError
from pipeline.project.compose import documents
from pipeline.project.params import read_params
from pipeline.project.versions.agreement import faults
from pipeline.project.versions.lockfile import read_lock


def main(argv: list[str]) -> None:
    """Print that everything agrees.

    Raises:
        ConfigError: something does not agree, with the remedy; or conf/ or dvc.lock cannot be read at all.

    """
    argparse.ArgumentParser(prog="python -m pipeline verify", description=__doc__).parse_args(argv)
    lock = read_lock()
    _, files = documents(read_params())
    if disagreements := faults(files, lock):
        raise ConfigError("build/ and dvc.lock do not agree with conf/ and the code:\n  " + "\n  ".join(disagreements))
    state = "nothing built yet (no dvc.lock)" if lock is None else f"dvc.lock agrees ({len(lock)} stages)"
    print(f"{', '.join(map(str, files))} agree with conf/ and the code; {state}")
