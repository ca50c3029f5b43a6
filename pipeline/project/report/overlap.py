"""Rows that stand in more than one dataset of a build: the audits' own comparison, over the sketches that they leave."""

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
from pipeline.stages.audit.sketch import Names, Sketch, facts_of, in_memory

EXAMPLES = 3


@dataclass
class Overlap:
    """What a dataset has in common with one that comes before it; a row counts for the first dataset that has the like of it."""

    counts: Counter[str] = field(default_factory=Counter)
    """Rows by kind: same `prompt`, same `completion`, `near` for almost the same completion."""
    examples: list[tuple[str, str]] = field(default_factory=list)
    """Id in the first dataset, and in the other."""


def across(build: Build) -> dict[tuple[str, str], Overlap]:
    """What the audited datasets of a build have in common.

    Raises:
        InputError: a file is damaged.

    """
    made = [dataset for dataset in build.datasets if dataset.sketch.is_file() and dataset.accepted.is_file()]
    sketches = [accepted_sketch(dataset.name, dataset.sketch, dataset.accepted) for dataset in made]
    return overlaps(sketches, near_section(build, made[0].name) if made else NearDuplicateSection(severity="info"))


def near_section(build: Build, name: str) -> NearDuplicateSection:
    """How a dataset's audit compares answers that are almost the same; as by default where the configuration has no such section."""
    given = build.config.get("datasets", {}).get(name, {}).get("audit", {}).get("near_duplicates")
    return NearDuplicateSection(severity="info") if given is None else NearDuplicateSection.model_validate(given)


def accepted_sketch(name: str, sketch: Path, accepted: Path) -> Sketch:
    """What is kept of a dataset's accepted rows.

    Raises:
        InputError: a file is damaged.

    """
    wanted = pa.chunked_array([batch.column(0) for batch in read_columns(accepted, ["id"])], pa.string())
    return in_memory(
        name, [batch.filter(pc.is_in(batch.column("id"), value_set=wanted)) for batch in read_batches(sketch, SCHEMA)]
    )


def overlaps(sketches: list[Sketch], section: NearDuplicateSection) -> dict[tuple[str, str], Overlap]:
    """What each two datasets have in common, in the order of the sketches; pairs with nothing in common are left out."""
    names = Names(sketches)
    starts = np.cumsum([0, *(sketch.rows for sketch in sketches)])
    order = [sketch.name for sketch in sketches]
    found: dict[tuple[str, str], Overlap] = {}
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
            overlap = found.setdefault((dataset, later), Overlap())
            overlap.counts[kind] += 1
            if len(overlap.examples) < EXAMPLES and (one, other) not in overlap.examples:
                overlap.examples.append((one, other))
    return dict(sorted(found.items(), key=lambda item: [order.index(name) for name in item[0]]))


def _across(starts: NDArray[np.int64], rows: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of rows in two datasets; [pairs, 2]. What is alike inside one dataset is for its own audit to say."""
    pairs = np.stack([rows, firsts], axis=1)
    dataset = np.searchsorted(starts, pairs, side="right")
    return np.asarray(pairs[dataset[:, 0] != dataset[:, 1]])
