"""The audit of one dataset: rows in, findings, accepted rows, a report and a verdict out.

A no-go does not fail this stage, because DVC records no failed stage and the report would be lost; the gate acts on the verdict.
"""

from pathlib import Path
from typing import Any

from pipeline.core.files.json_file import read_model
from pipeline.core.reuse.cache import open_cache
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.special_tokens import open_tokenizer
from pipeline.stages.audit.config import AuditSection, ExpectSection, laid_over
from pipeline.stages.audit.inputs.context import make_context
from pipeline.stages.audit.inputs.endpoints import read_endpoints
from pipeline.stages.audit.inputs.heldout import read_heldout
from pipeline.stages.audit.inputs.latency import read_latencies
from pipeline.stages.audit.inputs.source import Source, parquet
from pipeline.stages.audit.kept import KeptAudit, decides
from pipeline.stages.audit.outputs import Outputs, write_audit
from pipeline.stages.audit.workers import suitable


class Config(Section):
    """What the stage is given of the configuration."""

    audit: AuditSection
    """What all datasets share."""
    own: dict[str, Any]
    """Keys of it for which the dataset has its own value."""
    expect: ExpectSection
    allow: list[str]
    deny: list[str]
    heldout: str
    """Path of the evaluation prompts, which must not be trained on."""
    heldout_digest: str | None
    """Digest of that file, so that the audit runs again when it changes; null when there is no such file."""


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
    context = make_context(
        target, tokenizer, config.expect, config.allow, config.deny, heldout, read_endpoints(generated)
    )
    source = Source(parquet(tokens), prompts, responses, str(tokens))
    outputs = Outputs(accepted, findings, report, summary, sketch, lengths)
    latencies = read_latencies(timings)
    with open_cache("audit", decides(context, section, config.heldout_digest)) as kept:
        rows = KeptAudit(kept, context) if kept.on else None
        write_audit(
            f"Audit of {accepted.parent.name}",
            source,
            context,
            section,
            outputs,
            workers=suitable(tokens),
            kept=rows,
            latencies=latencies,
        )
