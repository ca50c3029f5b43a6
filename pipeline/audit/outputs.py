"""One audit from its source to its four files; the same for the build's stage and for files from elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts import write_json, write_text
from pipeline.audit.config import AuditSection
from pipeline.audit.context import Context
from pipeline.audit.engine import Tally, audit
from pipeline.audit.page import page
from pipeline.audit.source import Source
from pipeline.audit.summary import summarize
from pipeline.audit.verdict import judge
from pipeline.schema.findings import SCHEMA as FINDINGS
from pipeline.schema.tokens import SCHEMA as TOKENS
from pipeline.tables import writing_table


@dataclass(frozen=True)
class Outputs:
    """Where an audit's files go."""

    accepted: Path
    findings: Path
    report: Path
    summary: Path


def write_audit(title: str, source: Source, context: Context, section: AuditSection, outputs: Outputs) -> dict[str, Any]:
    """Audit all rows and write findings, the accepted rows, the report and, last, the summary; return the summary."""
    with writing_table(outputs.findings, FINDINGS) as findings:
        tally = audit(source.batches(context), section, findings.write_rows)
    write_accepted(source, tally, outputs.accepted)
    summary = summarize(tally, section, judge(tally, section))
    write_text(outputs.report, page(title, summary))
    write_json(outputs.summary, summary)
    return summary


def write_accepted(source: Source, tally: Tally, path: Path) -> None:
    """Read the rows once more and write those that training may use."""
    start = 0
    with writing_table(path, TOKENS) as accepted:
        for table in source.small_tables():
            accepted.write(table.filter(pa.array(tally.keep[start : start + table.num_rows], type=pa.bool_())))
            start += table.num_rows
