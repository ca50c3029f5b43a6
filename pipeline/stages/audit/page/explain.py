"""Everything known of one row, as plain text for a terminal."""

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
    """Give the row alone, and what the checks across rows have against it.

    Raises:
        InputError: there is no such row; the message names some that there are.

    """
    some: list[str] = []
    found: tuple[int, Batch] | None = None
    kept = []
    for batch in source.batches(context):
        if found is None and row_id in batch.ids:
            row = batch.ids.index(row_id)
            alone = Batch(
                context, batch.table.slice(row, 1), 0, batch.prompts[row : row + 1], batch.responses[row : row + 1]
            )
            found = batch.start + row, alone
        some += batch.ids[: 3 - len(some)]
        kept.append(sketch_of(batch, section))
    if found is None:
        raise InputError(f"no row has the id {row_id!r}; the file begins with {some}")
    return found[1], list(_across(in_memory("", kept), section, found[0], row_id))


def _across(sketch: Sketch, section: AuditSection, row: int, row_id: str) -> Iterator[Finding]:
    """Findings of the checks across rows about one row."""
    names = RowNames([sketch])
    for check, settings in active(section):
        if isinstance(check, DatasetCheck):
            complaints = check.run(facts_of([sketch], check.column), names, settings)
            yield from (
                to_finding(check.name, settings, complaint, row_id) for complaint in complaints if complaint.row == row
            )


def show_token(context: Context, token: int) -> str:
    """One token: its text quoted, its special name, or its bytes."""
    if 0 <= token < len(context.pieces) and (piece := context.pieces[token]):
        try:
            return repr(piece.decode())
        except UnicodeDecodeError:
            return f"bytes {piece.hex(' ')}"
    return context.tokenizer.special_texts.get(
        token, "reserved" if 0 <= token < len(context.pieces) else "outside the vocabulary"
    )


def explain(batch: Batch, section: AuditSection, across: list[Finding]) -> Iterator[str]:
    """Lines about the one row of a batch; ``across`` is what comparing it with other rows has found. Nothing hidden reaches the terminal: control characters are written out."""
    context, fields = batch.context, batch.table.to_pylist()[0]
    yield f"row {fields['id']}: {fields['status']}" + (f" ({fields['reason']})" if fields["reason"] else "")
    for name in ("evidence", "provider", "finish_reason", "billed_tokens", "count_delta"):
        yield f"  {name}: {batch.column(name)[0]}"
    yield f"  notes: {', '.join(fields['notes']) or 'none'}"
    yield "findings:"
    found = [*(finding for _row, finding in findings_of(batch, section)), *across]
    for finding in found:
        where = "" if finding.position is None else f" at {finding.position}"
        yield f"  {finding.severity} {finding.check}{where}: {finding.message}"
    if not found:
        yield "  none"
    for title, value in (("prompt as asked", batch.prompts[0]), ("response as received", batch.responses[0])):
        if value is not None:
            yield f"{title}:"
            yield _written(value)
    yield f"prompt, {len(fields['prompt_ids'])} tokens:"
    yield from _tokens(context, fields["prompt_ids"], range(len(fields["prompt_ids"])), set())
    hits = {finding.position for finding in found if finding.position is not None}
    for kind, start, end in parts_of(fields["segments"], len(fields["completion_ids"])):
        yield f"{kind}, tokens {start} to {end - 1}:"
        yield from _tokens(context, fields["completion_ids"], range(start, end), hits)


def _written(value: Any) -> str:
    """JSON with indents; on one line what is nested deeper than those can be made for."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        return str(value)


def _tokens(context: Context, ids: list[int], positions: range, hits: set[int]) -> Iterator[str]:
    for position in positions:
        mark = ">" if position in hits else " "
        yield f" {mark}{position:>6}  {ids[position]:>7}  {show_token(context, ids[position])}"


def explained(source: Source, context: Context, section: AuditSection, row_id: str) -> str:
    """Whole text.

    Raises:
        InputError: there is no such row.

    """
    batch, across = find(source, context, section, row_id)
    return "\n".join(visible(line) for line in explain(batch, section, across))
