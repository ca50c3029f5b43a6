"""Rows that occur in more than one dataset of a build, found in the sketches of the audits."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.core.files.tables import read_batches, read_columns
from pipeline.formats.schema.sketch import SCHEMA
from pipeline.project.report.gather import Build
from pipeline.stages.audit.checks.duplicates import near_pairs, repeats
from pipeline.stages.audit.config import NearDuplicateSection
from pipeline.stages.audit.sketch import RowNames, Sketch, facts_of, in_memory

EXAMPLES = 3


@dataclass
class Overlap:
    """The rows that a dataset has in common with an earlier one; a row counts for the first dataset with an equal."""

    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of rows with the same `prompt`, the same `completion`, and almost the same completion, `near`."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of ids, in the earlier dataset and in the later one."""


def across(build: Build) -> dict[tuple[str, str], Overlap]:
    """Find the rows that the audited datasets of a build have in common.

    Raises:
        InputError: a file is damaged.

    """
    made = [dataset for dataset in build.datasets if dataset.sketch.is_file() and dataset.accepted.is_file()]
    sketches = [accepted_sketch(dataset.name, dataset.sketch, dataset.accepted) for dataset in made]
    return overlaps(sketches, near_section(build, made[0].name) if made else NearDuplicateSection(severity="info"))


def near_section(build: Build, name: str) -> NearDuplicateSection:
    """Return the near-duplicate settings of a dataset's audit, or the defaults where the configuration has none."""
    given = build.config.get("datasets", {}).get(name, {}).get("audit", {}).get("near_duplicates")
    return NearDuplicateSection(severity="info") if given is None else NearDuplicateSection.model_validate(given)


def accepted_sketch(name: str, sketch: Path, accepted: Path) -> Sketch:
    """Return the sketch of a dataset's accepted rows.

    Raises:
        InputError: a file is damaged.

    """
    wanted = pa.chunked_array([batch.column(0) for batch in read_columns(accepted, ["id"])], pa.string())
    return in_memory(
        name, [batch.filter(pc.is_in(batch.column("id"), value_set=wanted)) for batch in read_batches(sketch, SCHEMA)]
    )


def overlaps(sketches: list[Sketch], section: NearDuplicateSection) -> dict[tuple[str, str], Overlap]:
    """Find the rows that two datasets have in common, in the order of the sketches; other pairs are left out."""
    names = RowNames(sketches)
    starts = np.cumsum([0, *(sketch.rows for sketch in sketches)])
    order = [sketch.name for sketch in sketches]
    by_pair: dict[tuple[str, str], Overlap] = {}
    same = _across(starts, *repeats(facts_of(sketches, "completion")))
    near = _across(starts, *near_pairs(facts_of(sketches, "signature"), section)[:2])
    kinds = {
        "prompt": _across(starts, *repeats(facts_of(sketches, "prompt"))),
        "completion": same,
        "near": near[~np.isin(near[:, 0], same[:, 0])],
    }
    for kind, pairs in kinds.items():
        for row, first in pairs.tolist():
            (dataset, one), (later, other) = names.of(first), names.of(row)
            overlap = by_pair.setdefault((dataset, later), Overlap())
            overlap.counts[kind] += 1
            if len(overlap.examples) < EXAMPLES and (one, other) not in overlap.examples:
                overlap.examples.append((one, other))
    return dict(sorted(by_pair.items(), key=lambda item: [order.index(name) for name in item[0]]))


def _across(starts: NDArray[np.int64], rows: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs of rows [pairs, 2] that lie in two datasets; pairs inside one are the task of its own audit."""
    pairs = np.stack([rows, firsts], axis=1)
    dataset = np.searchsorted(starts, pairs, side="right")
    return np.asarray(pairs[dataset[:, 0] != dataset[:, 1]])
