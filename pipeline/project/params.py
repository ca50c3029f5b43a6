"""params.yaml: the datasets to build, and Hydra overrides."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.errors import ConfigError
from pipeline.project.settings import CONF, PARAMS, load_yaml

RESERVED = frozenset({"target", "drafter", "extracted", "evaluate"})
"""Names that no dataset can have: build/ and build/config.json use them for something else."""

_DATASET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")


class Params(NamedTuple):
    """The content of params.yaml."""

    datasets: list[str]
    overrides: list[str]


def read_params(path: Path = PARAMS) -> Params:
    """Read params.yaml.

    Raises:
        ConfigError: the file is missing or malformed; the message names every mistake.

    """
    if not path.exists():
        raise ConfigError(
            f"{path} is missing: it names the datasets to build, "
            "for example `datasets: [reasoning]` and `overrides: []`"
        )
    document = load_yaml(path)
    if not isinstance(document, dict) or set(document) != {"datasets", "overrides"}:
        found = sorted(document) if isinstance(document, dict) else document
        raise ConfigError(f"{path}: needs exactly the keys `datasets` and `overrides` (lists); found {found}")
    datasets, overrides = document["datasets"], document["overrides"]
    if faults := [*_dataset_faults(datasets), *_override_faults(overrides)]:
        raise ConfigError(f"{path}:\n  " + "\n  ".join(faults))
    return Params(datasets, overrides)


def _dataset_faults(datasets: Any) -> list[str]:
    """Return the mistakes in the list of datasets."""
    if not isinstance(datasets, list) or not datasets:
        return [f"datasets: needs a list with at least one name; found {datasets!r}"]
    faults = []
    for name in datasets:
        if not isinstance(name, str) or not _DATASET_NAME.match(name):
            faults.append(f"datasets: {name!r} is not a dataset name: a letter, then letters, digits, _ or -")
        elif name in RESERVED:
            faults.append(f"datasets: the build itself uses the name {name!r}; it also reserves {sorted(RESERVED)}")
        elif not (CONF / "dataset" / f"{name}.yaml").exists():
            known = sorted(file.stem for file in (CONF / "dataset").glob("*.yaml"))
            faults.append(f"datasets: {name!r} has no file {CONF}/dataset/{name}.yaml; there are {known}")
    if repeated := sorted({str(name) for name in datasets if datasets.count(name) > 1}):
        faults.append(f"datasets: named more than once: {repeated}")
    return faults


def _override_faults(overrides: Any) -> list[str]:
    """Return the mistakes in the list of overrides; their grammar is checked when they are composed."""
    if not isinstance(overrides, list) or not all(isinstance(override, str) for override in overrides):
        return [f"overrides: needs a list of strings such as 'train.lr=3e-4'; found {overrides!r}"]
    return [
        f"overrides: {override!r} sets up Hydra itself, which changes no build; leave it out"
        for override in overrides
        if override.lstrip("+~").startswith(("hydra.", "hydra/"))
    ]
