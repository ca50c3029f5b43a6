"""The explanation of one row: all that is known of it, as plain text for a terminal."""

import json
from collections.abc import Iterator
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.html.markup import visible
from pipeline.formats.schema.findings import Finding
from pipeline.stages.audit.checks.check import DatasetCheck
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.engine import active, findings_of, sketch_of, to_finding
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source
from pipeline.stages.audit.page.token_view import parts_of
from pipeline.stages.audit.sketch import RowNames, Sketch, facts_of, in_memory


def find(source: Source, context: Context, section: AuditSection, row_id: str) -> tuple[Batch, list[Finding]]:
    """Return a row as a batch of its own, and the findings of the dataset checks about it.

    Raises:
        InputError: no row has this id; the message names some that exist.

    """
    first_ids: list[str] = []
    located: tuple[int, Batch] | None = None
    sketches = []
    for batch in source.batches(context):
        if located is None and row_id in batch.ids:
            row = batch.ids.index(row_id)
            alone = Batch(
                context, batch.table.slice(row, 1), 0, batch.prompts[row : row + 1], batch.responses[row : row + 1]
            )
            located = batch.start + row, alone
        first_ids += batch.ids[: 3 - len(first_ids)]
        sketches.append(sketch_of(batch, section))
    if located is None:
        raise InputError(f"no row has the id {row_id!r}; the file begins with {first_ids}")
    row, alone = located
    return alone, list(_dataset_findings(in_memory("", sketches), section, row, row_id))


def _dataset_findings(sketch: Sketch, section: AuditSection, row: int, row_id: str) -> Iterator[Finding]:
    """Yield the findings of the dataset checks about one row."""
    names = RowNames([sketch])
    for check, settings in active(section):
        if isinstance(check, DatasetCheck):
            complaints = check.run(facts_of([sketch], check.column), names, settings)
            yield from (
                to_finding(check.name, settings, complaint, row_id) for complaint in complaints if complaint.row == row
            )


def show_token(context: Context, token: int) -> str:
    """Describe a token by its quoted text, its special name, or its bytes."""
    if 0 <= token < len(context.pieces) and (piece := context.pieces[token]):
        try:
            return repr(piece.decode())
        except UnicodeDecodeError:
            return f"bytes {piece.hex(' ')}"
    return context.tokenizer.special_texts.get(
        token, "reserved" if 0 <= token < len(context.pieces) else "outside the vocabulary"
    )


def explain(batch: Batch, section: AuditSection, dataset_findings: list[Finding]) -> Iterator[str]:
    """Yield lines about the one row of a batch; ``dataset_findings`` come from the comparison with other rows."""
    context, fields = batch.context, batch.table.to_pylist()[0]
    yield f"row {fields['id']}: {fields['status']}" + (f" ({fields['reason']})" if fields["reason"] else "")
    for name in ("evidence", "provider", "finish_reason", "billed_tokens", "count_delta"):
        yield f"  {name}: {batch.column(name)[0]}"
    yield f"  notes: {', '.join(fields['notes']) or 'none'}"
    yield "findings:"
    findings = [*(finding for _row, finding in findings_of(batch, section)), *dataset_findings]
    for finding in findings:
        where = "" if finding.position is None else f" at {finding.position}"
        yield f"  {finding.severity} {finding.check}{where}: {finding.message}"
    if not findings:
        yield "  none"
    for title, value in (("prompt as asked", batch.prompts[0]), ("response as received", batch.responses[0])):
        if value is not None:
            yield f"{title}:"
            yield _written(value)
    yield f"prompt, {len(fields['prompt_ids'])} tokens:"
    yield from _tokens(context, fields["prompt_ids"], range(len(fields["prompt_ids"])), set())
    hits = {finding.position for finding in findings if finding.position is not None}
    for kind, start, end in parts_of(fields["segments"], len(fields["completion_ids"])):
        yield f"{kind}, tokens {start} to {end - 1}:"
        yield from _tokens(context, fields["completion_ids"], range(start, end), hits)


def _written(value: Any) -> str:
    """Return indented JSON, or one line where the value is nested too deep to indent."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return str(value)


def _tokens(context: Context, ids: list[int], positions: range, hits: set[int]) -> Iterator[str]:
    for position in positions:
        mark = ">" if position in hits else " "
        yield f" {mark}{position:>6}  {ids[position]:>7}  {show_token(context, ids[position])}"


def explained(source: Source, context: Context, section: AuditSection, row_id: str) -> str:
    """Return all that is known of a row, with hidden and control characters written out.

    Raises:
        InputError: no row has this id.

    """
    batch, dataset_findings = find(source, context, section, row_id)
    return "\n".join(visible(line) for line in explain(batch, section, dataset_findings))
