"""git's merge driver for dvc.lock: `python -m pipeline.project.versions.merge_driver BASE OURS THEIRS`, stage by stage, into OURS.

DVC has a driver of its own only for `.dvc` files. A stage that one side changed takes that side's entry; one that both
changed in different ways is forgotten, so that `dvc repro` restores it from the run cache or runs it, and can never take an entry that
fits neither side's config. `make setup` tells git of it; `.gitattributes` says which files it is for.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.parse_errors import reporting_import_errors

with reporting_import_errors(__name__):
    from ruamel.yaml import YAML

    from pipeline.core.errors import ConfigError
    from pipeline.core.files.atomic import write_bytes
    from pipeline.core.files.contents import read_bytes
    from pipeline.core.process.exit_codes import guarded
    from pipeline.project.versions.lockfile import raw_stages


def merge(
    base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Merge the stages of three lock files; return the merged ones, and the names of those changed on both sides, which are left out."""
    merged, forgotten = {}, []
    for name in dict.fromkeys([*ours, *theirs, *base]):
        before, mine, other = base.get(name), ours.get(name), theirs.get(name)
        if mine == other or other == before:
            kept = mine
        elif mine == before:
            kept = other
        else:
            forgotten.append(name)
            continue
        if kept is not None:
            merged[name] = kept
    return merged, forgotten


def render(stages: Mapping[str, Any]) -> bytes:
    """Write a lock file as DVC does, so that an entry that did not change gives no line in a diff."""
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump({"schema": "2.0", "stages": dict(stages)}, text)
    return text.getvalue().encode()


def main(argv: list[str]) -> None:
    """Merge three files into the second.

    Raises:
        ConfigError: wrong arguments, or one of the files is no lock file; nothing is written, and git reports a conflict.

    """
    if len(argv) != 3:
        raise ConfigError(f"usage: python -m pipeline.project.versions.merge_driver BASE OURS THEIRS; found {argv}")
    base, ours, theirs = (
        raw_stages(read_bytes(Path(name)), f"dvc.lock ({side})")
        for side, name in zip(("base", "ours", "theirs"), argv, strict=True)
    )
    merged, forgotten = merge(base, ours, theirs)
    write_bytes(Path(argv[1]), render(merged))
    if forgotten:
        print(
            f"dvc.lock: changed on both sides, so forgotten: {', '.join(forgotten)}; `python -m pipeline plan` tells what `dvc repro` would pay",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
