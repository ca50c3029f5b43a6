"""One audit from its source to its files, for the stage of a build and for files from elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import write_json
from pipeline.core.files.tables import writing_table
from pipeline.formats.schema.findings import SCHEMA as FINDINGS
from pipeline.formats.schema.sketch import SCHEMA as SKETCH
from pipeline.formats.schema.tokens import SCHEMA as TOKENS
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.decision.summary import summarize
from pipeline.stages.audit.decision.verdict import judge
from pipeline.stages.audit.engine import AuditTally, compare, decide, gather
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.fit import check_fit
from pipeline.stages.audit.inputs.latency import Latencies
from pipeline.stages.audit.inputs.source import Source
from pipeline.stages.audit.page.report import report
from pipeline.stages.audit.sketch import in_file
from pipeline.stages.audit.workers import batch_results, sketches


@dataclass(frozen=True)
class AuditOutputs:
    """The paths of an audit's files."""

    accepted: Path
    findings: Path
    report: Path
    summary: Path
    sketch: Path
    """Hashes and signatures, by which rows of this dataset and of others are compared."""
    lengths: Path | None = None
    """Histogram of the answers' lengths as CSV, for DVC plots."""

    @classmethod
    def in_folder(cls, folder: Path) -> "AuditOutputs":
        """Return the usual names in one folder; `lengths` stays None, since only a build plots it."""
        return cls(
            folder / "accepted.parquet",
            folder / "findings.parquet",
            folder / "report.html",
            folder / "summary.json",
            folder / "sketch.parquet",
        )

    def paths(self) -> list[Path]:
        """Return the path of every file that the audit writes."""
        return [
            path
            for path in (self.accepted, self.findings, self.report, self.summary, self.sketch, self.lengths)
            if path is not None
        ]


def write_audit(
    title: str,
    source: Source,
    context: Context,
    section: AuditSection,
    outputs: AuditOutputs,
    others: Iterable[tuple[str, Batch]] = (),
    workers: int = 1,
    latencies: Latencies | None = None,
) -> dict[str, Any]:
    """Audit all rows; write findings, sketch, accepted rows, report and, last, the summary; return the summary.

    ``others`` are batches of other datasets, each with the dataset's name; rows may not repeat their rows. The files do
    not depend on ``workers``. Only the report depends on ``latencies``, which differ from run to run; where they are
    None it shows those of the response lines.

    Raises:
        InputError: a file is damaged, or holds the ids of another vocabulary.

    """
    check_fit(source, context)
    compared = sketches(others, section)
    with writing_table(outputs.findings, FINDINGS) as findings:
        with writing_table(outputs.sketch, SKETCH) as sketch:
            tally = gather(batch_results(source, context, section, workers), findings.write_rows, sketch.write)
        compare(tally, [*compared, in_file("", outputs.sketch, tally.rows)], section, findings.write_rows)
    decide(tally, section)
    write_accepted(source, tally, outputs.accepted)
    summary = summarize(tally, section, judge(tally, section), context.endpoints.quantizations)
    shown_latencies = tally.stats.latencies() if latencies is None else latencies
    write_text(
        outputs.report, report(title, summary, tally, context, missing_inputs(source, context, tally), shown_latencies)
    )
    if outputs.lengths is not None:
        write_text(outputs.lengths, lengths_csv(tally))
    write_json(outputs.summary, summary)
    return summary


def write_accepted(source: Source, tally: AuditTally, path: Path) -> None:
    """Read the rows a second time and write those that training may use."""
    start = 0
    with writing_table(path, TOKENS) as accepted:
        for table in source.small_tables():
            accepted.write(table.filter(pa.array(tally.keep[start : start + table.num_rows])))
            start += table.num_rows


def lengths_csv(tally: AuditTally) -> str:
    """Return a histogram of answer lengths as CSV, with four bins for each doubling.

    The edges are the same for every dataset, so that plots can be laid over each other.
    """
    lengths = tally.stats.lengths
    steps = np.floor(np.log2(lengths[lengths > 0]) * 4).astype(np.int64)
    counts = np.bincount(steps) if len(steps) else np.zeros(0, dtype=np.int64)
    lines = [f"{round(2 ** (step / 4))},{count}" for step, count in enumerate(counts.tolist()) if count]
    return "\n".join(["tokens,rows", *lines]) + "\n"


def missing_inputs(source: Source, context: Context, tally: AuditTally) -> list[str]:
    """Return a sentence for each file that was not given, with the checks that found nothing to ask about."""
    missing = [
        (source.prompts, "No prompts were given, so tool_name and tool_schema asked nothing. "),
        (
            source.responses,
            "No responses were given, so cost, model_name, reasoning_count and answer_error asked little or nothing. ",
        ),
        (context.heldout, "No held-out file was given, so contamination asked nothing. "),
        (
            tally.stats.prompt_lengths.any() or None,
            "No row has the ids of its prompt, so prompt_start asked nothing, and language asked nothing of rows "
            "without messages. ",
        ),
    ]
    return [note for given, note in missing if given is None]
