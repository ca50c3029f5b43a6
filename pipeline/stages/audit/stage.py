"""The audit of one dataset: from rows to findings, accepted rows, a report and a verdict.

A no-go does not fail this stage: DVC records no failed stage, so the report would be lost. The gate stops the build.
"""

from pathlib import Path
from typing import Any

from pipeline.core.files.json_file import read_model
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.special_tokens import open_tokenizer
from pipeline.stages.audit.config import AuditSection, ExpectSection, laid_over
from pipeline.stages.audit.inputs.context import make_context
from pipeline.stages.audit.inputs.endpoints import read_endpoints
from pipeline.stages.audit.inputs.heldout import read_heldout
from pipeline.stages.audit.inputs.latency import read_latencies
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.outputs import AuditOutputs, write_audit
from pipeline.stages.audit.workers import suitable


class Config(Section):
    """The stage's part of the configuration."""

    audit: AuditSection
    """Thresholds that all datasets share."""
    own: dict[str, Any]
    """Keys of ``audit`` for which this dataset has its own value."""
    expect: ExpectSection
    allow: list[str]
    deny: list[str]
    heldout: str
    """Path of the evaluation prompts, which nobody may train on."""
    heldout_digest: str | None
    """Digest of that file, so that the audit runs again when it changes; null where the file does not exist."""


def run(
    config: Config,
    *,
    prompts: Path,
    responses: Path,
    generated: Path,
    timings: Path,
    tokens: Path,
    record: Path,
    accepted: Path,
    findings: Path,
    report: Path,
    summary: Path,
    sketch: Path,
    lengths: Path,
) -> None:
    """Audit a dataset.

    Raises:
        InputError: an input is missing or malformed.
        TokenizerError: the tokenizer is not the recorded one.

    """
    section = AuditSection.model_validate(laid_over(config.audit.model_dump(), config.own))
    target = read_model(record, TargetRecord)
    tokenizer = open_tokenizer(target)
    heldout = (
        None
        if config.heldout_digest is None
        else read_heldout(Path(config.heldout), tokenizer, section.contamination.n)
    )
    endpoints = read_endpoints(generated)
    context = make_context(target, tokenizer, config.expect, config.allow, config.deny, heldout, endpoints)
    write_audit(
        f"Audit of {accepted.parent.name}",
        Source(parquet(tokens), prompts, responses, str(tokens)),
        context,
        section,
        AuditOutputs(accepted, findings, report, summary, sketch, lengths),
        workers=suitable(tokens),
        latencies=read_latencies(timings),
    )
