"""A git merge driver for dvc.lock: `python -m pipeline.project.versions.merge_driver BASE OURS THEIRS`, into OURS.

DVC's own driver is for `.dvc` files only. This one merges stage by stage. A stage that one side changed takes the entry
of that side. A stage that both sides changed in different ways loses its entry, so that `dvc repro` restores it from
the run cache or runs it; an entry of one side could fit neither side's config. `make setup` registers the driver with
git; `.gitattributes` names its files.
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
    """Merge the stages of three lock files.

    Returns the merged stages, and the names of the stages that both sides changed, which have no entry any more.
    """
    merged, dropped = {}, []
    for name in dict.fromkeys([*ours, *theirs, *base]):
        before, mine, other = base.get(name), ours.get(name), theirs.get(name)
        if mine == other or other == before:
            kept = mine
        elif mine == before:
            kept = other
        else:
            dropped.append(name)
            continue
        if kept is not None:
            merged[name] = kept
    return merged, dropped


def render(stages: Mapping[str, Any]) -> bytes:
    """Return a lock file in the form that DVC writes, so that a diff shows only the changed entries."""
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump({"schema": "2.0", "stages": dict(stages)}, text)
    return text.getvalue().encode()


def main(argv: list[str]) -> None:
    """Merge three files into the second.

    Raises:
        ConfigError: wrong arguments, or a file is not a lock file; nothing is written, and git reports a conflict.

    """
    if len(argv) != 3:
        raise ConfigError(f"usage: python -m pipeline.project.versions.merge_driver BASE OURS THEIRS; found {argv}")
    base, ours, theirs = (
        raw_stages(read_bytes(Path(name)), f"dvc.lock ({side})")
        for side, name in zip(("base", "ours", "theirs"), argv, strict=True)
    )
    merged, dropped = merge(base, ours, theirs)
    write_bytes(Path(argv[1]), render(merged))
    if dropped:
        print(
            f"dvc.lock: changed on both sides, so dropped: {', '.join(dropped)}; "
            "`python -m pipeline plan` tells what `dvc repro` would cost",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
